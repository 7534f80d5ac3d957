"""Offsets of sink connectors in an owned store for groups (R32); tests/kafka compares them with a worker's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.connect.sink_offsets import SinkOffsets
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.errors import BadConnectRequest, NonEmptyGroup, NoSuchGroup
from tests.unit.coordinator.groups import stable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    """The coordinator of an owned store for groups."""
    with Coordinator.open(OwnedStore.create(tmp_path / "groups", 3)) as opened:
        yield opened


def pair(partition: Any, offset: Any, topic: str = "t") -> dict[str, Any]:  # noqa: ANN401
    """An offset in Connect's form; None deletes it."""
    at = {"kafka_topic": topic, "kafka_partition": partition}
    return {"partition": at, "offset": None if offset is None else {"kafka_offset": offset}}


def held(coordinator: Coordinator, group_id: str = "connect-sink") -> dict[tuple[str, int], int | None]:
    """The committed offsets of a group."""
    return {(where.topic, where.partition): each.offset for where, each in coordinator.fetch_offsets(group_id).items()}


def test_offsets_are_added_replaced_deleted_and_reset(coordinator: Coordinator) -> None:
    sink = SinkOffsets(coordinator, "connect-sink")
    sink.alter("sink", [pair(0, 5), pair("1", "6"), pair(2, 7, "u")])
    assert held(coordinator) == {("t", 0): 5, ("t", 1): 6, ("u", 2): 7}
    sink.alter("sink", [pair(0, 3), pair(1, None)])
    assert held(coordinator) == {("t", 0): 3, ("u", 2): 7}
    for _ in range(2):
        assert sink.reset("sink") == "The offsets for this connector have been reset successfully"
        assert held(coordinator) == {}
    with pytest.raises(NoSuchGroup):
        sink.alter("sink", [pair(0, None)])


def test_a_group_with_members_keeps_its_offsets(coordinator: Coordinator) -> None:
    sink = SinkOffsets(coordinator, "connect-sink")
    sink.alter("sink", [pair(0, 5)])
    coordinator.store_group(stable("connect-sink", "t"))
    requests: list[Callable[[], str]] = [
        lambda: sink.alter("sink", [pair(0, 6)]),
        lambda: sink.alter("sink", [pair(0, None)]),
        lambda: sink.reset("sink"),
    ]
    for request in requests:
        with pytest.raises(NonEmptyGroup, match="its group connect-sink has members; stop the connector"):
            request()
    assert held(coordinator) == {("t", 0): 5}


@pytest.mark.parametrize(
    "wrong",
    [
        {"partition": None, "offset": None},
        {"partition": {"kafka_topic": "t"}, "offset": None},
        {"partition": {"filename": "/a"}, "offset": {"position": 1}},
        *({"partition": {"kafka_topic": topic, "kafka_partition": 0}, "offset": None} for topic in (None, "")),
        {"partition": {"kafka_topic": "t", "kafka_partition": 0}, "offset": {}},
        *(pair(partition, 1) for partition in (None, "x", -1, 1.0, 2**31)),
        *(pair(0, offset) for offset in ("x", -1, 1.5, 2**63)),
    ],
)
def test_wrong_offsets_are_refused_and_none_is_written(coordinator: Coordinator, wrong: dict[str, Any]) -> None:
    sink = SinkOffsets(coordinator, "connect-sink")
    with pytest.raises(BadConnectRequest, match="is no offset of a sink connector"):
        sink.alter("sink", [pair(0, 5), wrong])
    with pytest.raises(BadConnectRequest, match="need to be provided"):
        sink.alter("sink", [])
    assert held(coordinator) == {}


def test_commands_alter_and_reset_a_store_for_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    OwnedStore.create(tmp_path / "groups", 3)
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps({"offsets": [pair(0, 5)]}))
    of_sink = ["--store", str(tmp_path / "groups"), "--connector", "sink"]
    assert main(["connect", "alter", *of_sink, "--offsets", str(file)]) == 0
    assert capsys.readouterr().out == "The offsets for this connector have been altered successfully\n"
    assert main(["connect", "describe", *of_sink, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"offsets": [pair(0, 5)]}
    assert main(["connect", "reset", *of_sink]) == 0
    assert capsys.readouterr().out == "The offsets for this connector have been reset successfully\n"
    assert main(["connect", "describe", *of_sink, "--format", "json"]) == 0  # as a worker answers
    out, err = capsys.readouterr()
    assert json.loads(out) == {"offsets": []}
    assert err.endswith("/groups has no offsets of a group connect-sink; check the connector's name\n")
    with Coordinator.open(OwnedStore.open(tmp_path / "groups")) as coordinator:
        assert held(coordinator) == {}
