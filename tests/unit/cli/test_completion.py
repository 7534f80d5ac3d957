"""Shells complete commands and options; the README says how to turn that on."""

from __future__ import annotations

import pytest

from offsets_pipeline.cli import main


@pytest.mark.parametrize(
    ("words", "last", "proposed"),
    [
        ("offsets", "de", {"describe", "delete-offsets", "delete-group"}),
        ("offsets describe", "--a", {"--all-groups"}),
        ("offsets describe --store s --format", "", {"table", "json", "csv"}),
    ],
)
def test_shells_complete_commands_options_and_choices(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, last: str, proposed: set[str]
) -> None:
    monkeypatch.setenv("_OFFSETS_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"{words} {last}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    with pytest.raises(SystemExit):
        main([])
    assert {line.split(",")[1] for line in capsys.readouterr().out.splitlines()} == proposed


def test_paths_are_completed_by_the_shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("_OFFSETS_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "offsets describe --store st")
    monkeypatch.setenv("COMP_CWORD", "3")
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out == "file,st\n"
