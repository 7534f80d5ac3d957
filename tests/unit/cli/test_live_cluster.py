"""Brokers that a reading command asks for positions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.cli.live_cluster import LiveCluster
from offsets_pipeline.cli.options import LiveBrokers
from offsets_pipeline.errors import StoreMismatch
from offsets_pipeline.questions.lag.lag_rows import StoreGroups

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.common.config import Settings


def test_brokers_of_another_cluster_are_refused(tmp_path: Path, settings: Settings) -> None:
    brokers = LiveBrokers(bootstrap_server="b:9092", client_options=(), command_config=None)
    reader: Any = SimpleNamespace(properties=SimpleNamespace(cluster_id="ours"), location=str(tmp_path))
    live = LiveCluster(brokers, settings)
    live.cluster = SimpleNamespace(  # type: ignore[assignment]
        cluster_id=lambda: "theirs", settings=SimpleNamespace(at="b:9092")
    )
    time: Any = SimpleNamespace(data_ms={})
    with pytest.raises(
        StoreMismatch, match=r"^b:9092 is cluster theirs, but .* has the log of cluster ours; name brok"
    ):
        live.positions(StoreGroups(reader, {}, time))


@pytest.mark.parametrize("command", ["describe --all-groups", "groups", "status", "check", "lag"])
def test_brokers_are_about_one_store(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--store", "a", "--store", "b", "--bootstrap-server", "b:9092"]) != 0
    assert "--bootstrap-server is about one store: give --store once" in capsys.readouterr().err
