"""How a repair of a cluster ends that could not commit everything."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offsets_pipeline.cli import repair_commands
from offsets_pipeline.cli.live_cluster import say_undo
from offsets_pipeline.cli.options import LiveBrokers, OneStore
from offsets_pipeline.cli.program import main
from offsets_pipeline.cli.repair_commands import raise_errors
from offsets_pipeline.errors import NonEmptyGroup, NoSuchTopic, NotAuthorized, OffsetsError
from offsets_pipeline.repair.offset_reset.plan import GroupOffsets
from offsets_pipeline.semantics.group_description import EMPTY
from offsets_pipeline.semantics.partition_state import TopicPartition


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


def test_offsets_that_are_deleted_before_their_group_is_refused_are_shown_and_can_be_undone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held = {TopicPartition("t", at): at for at in range(3)}
    groups = {"few": GroupOffsets(EMPTY, held), "many": GroupOffsets(EMPTY, held), "none": GroupOffsets(EMPTY, {})}
    answer = {"many": NonEmptyGroup("many has members")}, {("many", ("t", 0)), ("many", ("t", 1))}
    cluster: Any = SimpleNamespace(settings=SimpleNamespace(at="b:9092"))
    monkeypatch.setattr(repair_commands, "mirrored_cluster", lambda *_: nullcontext(cluster))
    monkeypatch.setattr(repair_commands, "cluster_group_offsets", lambda *_: groups)
    monkeypatch.setattr(repair_commands, "delete_groups", lambda *_: answer)
    named = [word for each in groups for word in ("--group", each)]
    asked = ["--bootstrap-server", "b:9092", "--execute", "--format", "csv"]
    assert main(["delete-group", "--store", "s", *named, *asked]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[1:] == ["few,t,0,0", "few,t,1,1", "few,t,2,2", "many,t,0,0", "many,t,1,1", "none,,,"]
    said = err.splitlines()
    assert said[:2] == [
        "offsets: 2 groups deleted from b:9092",
        "offsets: 2 offsets of group many deleted from b:9092",
    ]
    assert said[2].endswith(" --group few --group many")
    assert said[3:] == ["offsets: error: many has members"]
