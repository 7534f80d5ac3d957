"""The help of the program and its commands, and the README's table of them."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import click
import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.cli.program import offsets

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.cli.command import Command

SECTIONS = ("Sources", "State", "Questions", "Coordinator", "Connect", "Upkeep")
COMMANDS = offsets.leaves()
by_command = pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)


def test_readme_has_each_command_as_the_help_has_it(root: Path) -> None:
    rows = re.findall(
        r"^\| (\*\*\w+\*\*|`[\w -]+`) \| (.*?) ?\|$", (root / "README.md").read_text("utf-8"), re.MULTILINE
    )
    assert rows == [
        row
        for section in SECTIONS
        for row in (
            (f"**{section}**", ""),
            *(
                (f"`{name}`", each.get_short_help_str(limit=200))
                for name, each in COMMANDS.items()
                if each.section == section
            ),
        )
    ]


def test_help_lists_each_command_in_its_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    found = re.findall(r"^(?:(\w+):|  ([a-z]+(?:[ -][a-z]+)*)  .*)$", capsys.readouterr().out, re.MULTILINE)
    listed: dict[str, list[str]] = {}
    for section, name in found:
        if section:
            listed[section] = []
        else:
            listed[next(reversed(listed))].append(name)
    listed.pop("Options")
    assert list(listed) == list(SECTIONS)
    assert sorted(name for names in listed.values() for name in names) == sorted(COMMANDS)


@by_command
def test_each_option_has_a_help(command: Command) -> None:
    for parameter in command.params:
        assert isinstance(parameter, click.Option | click.Argument)
        assert parameter.help
        assert parameter.help.endswith("."), parameter.help


@by_command
def test_brokers_have_the_same_options_on_every_command(command: Command) -> None:
    names = {name for parameter in command.params for name in parameter.opts}
    of_brokers = {"--bootstrap-server", "--option", "--command-config"}
    assert names & of_brokers in (set(), of_brokers)


@by_command
def test_examples_are_command_lines_of_the_command(command: Command) -> None:
    assert command.examples
    for example in command.examples:
        (name,) = (name for name, each in COMMANDS.items() if each is command)
        program, *words = shlex.split(example)
        of_name = len(name.split())
        assert (program, " ".join(words[:of_name])) == ("offsets", name)
        command.make_context(name, words[of_name:])  # raises for a wrong one
