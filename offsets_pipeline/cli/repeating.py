"""Repeated runs of a command: `--every` of `expire-offsets`, `clean-log` and `maintain`."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, TypeVar

from offsets_pipeline.cli.stopping import Stopping
from offsets_pipeline.foreign_errors import in_one_line, may_pass
from offsets_pipeline.periodic import Periodic
from offsets_pipeline.warnings import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from offsets_pipeline.clock import Clock

_Result = TypeVar("_Result")


def repeated(
    run: Callable[[], _Result],
    every_ms: int | None,
    clock: Clock,
    stopped: threading.Event | None = None,
    spark: Callable[[], SparkSession] | None = None,
    say: Callable[[str], object] = warn,
) -> Iterator[_Result]:
    """Yield the result of one run, or with ``every_ms`` of each run until SIGTERM or SIGINT sets ``stopped``.

    ``spark`` returns a session that the runs need: its JVM survives the signal. With an interval, a retriable error is
    a warning by ``say``, once until a run succeeds, and the next run tries again. Raises any other error.
    """
    if every_ms is None:
        yield run()
        return
    stopped = stopped or threading.Event()
    Stopping(stopped.set, None if spark is None else spark())
    runs = Periodic(
        run,
        every_ms,
        clock.now_ms,
        warn=say,
        describe=lambda error: f"{in_one_line(error)}; the next run tries again",
        may_pass=may_pass,
        stopped=stopped,
    )
    for result in runs.results():
        yield result
        sys.stdout.flush()
