"""Commands that run again and again: `--every` of `expire-offsets`, `clean-log` and `maintain`."""

from __future__ import annotations

import argparse
import sys
import threading
from typing import TYPE_CHECKING, TypeVar

from offsets_pipeline.cli.stopping import Stopping
from offsets_pipeline.clock import due, duration_ms
from offsets_pipeline.errors import InvalidTime, OffsetsError, in_one_line, raised_on_executor
from offsets_pipeline.observability.warnings import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from offsets_pipeline.clock import Clock

#: What `--every` without a duration gives, where a setting says how often.
AS_SET = 0

_Result = TypeVar("_Result")


def add_every(command: argparse._ActionsContainer, default: str | None = None) -> None:
    """Add the option `--every` to a command or a group of options; ``default`` names the setting of the interval.

    Its value is in milliseconds, AS_SET where no duration is given, None without the option.
    """
    help_ = 'run again and again, until SIGTERM or Ctrl-C; seconds, or a duration as "PT1H30M"'
    if default is None:
        command.add_argument("--every", type=every_of, metavar="DURATION", help=help_)
    else:
        help_ += f" (default: {default})"
        command.add_argument("--every", type=every_of, metavar="DURATION", nargs="?", const=AS_SET, help=help_)


def every_of(text: str) -> int:
    """The milliseconds of an interval of the command line: seconds, or a duration in ISO 8601."""
    try:
        every_ms = int(text) * 1000 if text.isascii() and text.isdigit() else duration_ms(text)
    except InvalidTime:
        every_ms = 0
    if every_ms <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; it takes seconds, or a duration as PT1H30M")
    return every_ms


def repeated(
    run: Callable[[], _Result],
    every_ms: int | None,
    clock: Clock,
    stopped: threading.Event | None = None,
    spark: SparkSession | None = None,
) -> Iterator[_Result]:
    """Yield what one run returns; with ``every_ms`` what each run returns, until SIGTERM or SIGINT set ``stopped``.

    ``spark`` is the session that runs need: its JVM outlives the signal. Of runs with an interval an error that may
    pass is a warning, and the next run tries again. Raises any other error.
    """
    if every_ms is None:
        yield run()
        return
    stopped = stopped or threading.Event()
    Stopping(stopped.set, spark)
    for _ in due(every_ms, clock, stopped):
        try:
            result = run()
        except Exception as error:
            if not _may_pass(error):
                raise
            warn(f"{in_one_line(error)}; the next run tries again")
        else:
            yield result
            sys.stdout.flush()


def _may_pass(error: Exception) -> bool:
    ours = error if isinstance(error, OffsetsError) else raised_on_executor(error)
    if ours is not None:
        return ours.retriable
    return not isinstance(error, ConnectionError)  # to the JVM: it is gone for good
