"""How a repair of a cluster ends that could not commit everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from offsets_pipeline.cli.live_cluster import say_undo
from offsets_pipeline.cli.options import LiveBrokers, OneStore
from offsets_pipeline.cli.repair_commands import raise_errors
from offsets_pipeline.errors import NonEmptyGroup, NoSuchTopic, NotAuthorized, OffsetsError


def test_the_first_error_ends_a_repair_and_each_other_one_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    raise_errors({}, [], "reset")
    assert capsys.readouterr().err == ""
    refused: list[OffsetsError] = [NoSuchTopic("no topic t"), NotAuthorized("no access to u")]
    with pytest.raises(NoSuchTopic, match=r"^no topic t$"):
        raise_errors({"g": "Stable"}, [*refused, refused[0]], "reset")
    assert capsys.readouterr().err == (
        "offsets: warning: no access to u\n"
        "offsets: warning: cannot reset groups with members: 'g' is Stable; stop the members first\n"
    )
    with pytest.raises(NonEmptyGroup, match=r"^cannot restore groups with members: 'g' is Stable, 'h' is Assigning; "):
        raise_errors({"g": "Stable", "h": "Assigning"}, [], "restore")


def test_the_command_that_undoes_a_repair_has_the_settings_of_the_repair(capsys: pytest.CaptureFixture[str]) -> None:
    brokers = LiveBrokers(bootstrap_server="b:9092", client_options=("client.id=x",), command_config=Path("p.txt"))
    for config, words in ((Path("my settings.toml"), " --config 'my settings.toml'"), (None, "")):
        say_undo(OneStore(store="s", config=config), brokers, ["g"], 0)
        assert capsys.readouterr().err == (
            "offsets: to undo this, when the store has the records up to now: offsets restore --store s "
            f"--as-of 1970-01-01T00:00:00.000Z{words} --bootstrap-server b:9092 --option client.id=x "
            "--command-config p.txt --group g\n"
        )
