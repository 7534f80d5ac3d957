"""A progress bar on stderr for work of more than two seconds, if stderr is a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    #: How much of the work is done, of how much, and the unit; the second is None while it is unknown.
    Progress = tuple[int, int | None, str]

_QUIET_SECONDS = 2.0
_REFRESH_SECONDS = 0.25


@contextmanager
def progress_bar(
    work: str, progress: Callable[[], Progress], *, after_seconds: float = _QUIET_SECONDS
) -> Iterator[None]:
    """Show a bar until the block ends; ``progress`` is called a few times a second, in a thread of its own."""
    if not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_draw, args=(work, progress, after_seconds, ended), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _draw(work: str, progress: Callable[[], Progress], after_seconds: float, ended: threading.Event) -> None:
    if ended.wait(after_seconds):
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
    )
    # The bar disappears at the end. Only stderr is redirected: stdout has the command's output.
    bar = Bar(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False, refresh_per_second=4)
    with suppress(Exception), bar:  # a command does not fail because its bar does: Spark may stop at any time
        task = bar.add_task(work, total=None, amount="")
        while not ended.wait(_REFRESH_SECONDS):
            done, total, unit = progress()
            amount = f"{done:,}/{total:,} {unit}" if total is not None else f"{done:,} {unit}" if done else ""
            bar.update(task, completed=done, total=total, amount=amount)


def tasks() -> Progress:
    """The tasks of the jobs that Spark runs at the moment: how many there are, and how many are done."""
    from pyspark import SparkContext

    context, done, total = SparkContext._active_spark_context, 0, 0  # noqa: SLF001 - None: nothing has needed Spark yet
    tracker: Any = None if context is None else context.statusTracker()
    for job_id in () if tracker is None else tracker.getActiveJobsIds():
        job = tracker.getJobInfo(job_id)
        for stage_id in job.stageIds if job is not None else ():
            stage = tracker.getStageInfo(stage_id)
            if stage is not None:
                done += stage.numCompletedTasks
                total += stage.numTasks
    return done, total or None, "tasks"
