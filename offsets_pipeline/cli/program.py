"""The program `offsets`: all commands. Spark is imported by the command that needs it, when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from offsets_pipeline import __version__
from offsets_pipeline.cli.command import DEBUG_ENV, CommandGroup, usage_error_line
from offsets_pipeline.cli.section_connect import connect
from offsets_pipeline.cli.section_coordinator import coordinator
from offsets_pipeline.cli.section_questions import questions
from offsets_pipeline.cli.section_sources import sources
from offsets_pipeline.cli.section_state import state, upkeep
from offsets_pipeline.common.input_text import is_utf8, shown


@click.group(
    cls=CommandGroup,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    commands=[
        *(each for section in (sources, state, questions, coordinator) for each in section.commands),
        connect,
        *upkeep.commands,
    ],
)
@click.version_option(__version__, message="%(version)s")
def offsets() -> None:
    """Where consumers are, where they were, and why: Kafka's __consumer_offsets as Delta tables.

    `offsets COMMAND --help` shows a command's options and examples.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status.

    The status is 0, 1 after one line on stderr for an error, or 2 after one line for a wrong command line.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell closed it: `>&-`
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the end
    arguments = sys.argv[1:] if argv is None else list(argv)
    for number, each in enumerate(arguments, 1):
        if not is_utf8(each):
            sys.stderr.write(f"offsets: error: argument {number} is not UTF-8: {shown(each)}. See `offsets --help`.\n")
            return 2
    try:
        return int(offsets.main(arguments, prog_name="offsets", standalone_mode=False))
    except OSError as error:  # of the help: a command answers its own
        if os.environ.get(DEBUG_ENV):
            raise
        sys.stderr.write(f"offsets: error: cannot write to stdout: {error.strerror}\n")
        return 1
    except click.Abort:  # Ctrl-C before a command ran
        return 130
    except click.ClickException as error:
        sys.stderr.write(usage_error_line(error))
        return error.exit_code
