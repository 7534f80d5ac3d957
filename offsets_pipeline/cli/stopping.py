"""Ending a command that runs on when it is told to: by SIGTERM, or by Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

_ENDED_BY_SIGNAL = 128  # to which a shell adds the signal's number


class Stopping:
    """From here on the first SIGTERM or SIGINT calls ``stop``, in a thread of its own; later ones change nothing.

    A handler runs in the main thread, in the middle of whatever that does. It may be a call to the JVM, beside which
    the thread cannot make another one, or the wait for the very event that is to be set, whose lock it then holds.

    ``spark`` is the session that ``stop`` needs: SIGTERM does not end its JVM, which gets it too where a service
    manager signals all processes of a service, or a shell a process group.
    """

    def __init__(self, stop: Callable[[], object], spark: SparkSession | None = None) -> None:
        self._stop = stop
        self._number: int | None = None
        if spark is not None:
            _leave_sigterm_to_python(spark)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told)

    def _told(self, number: int, _: object) -> None:
        if self._number is None:
            self._number = number
            threading.Thread(target=self._stop, name="stop").start()

    def status(self, *, has_an_end: bool) -> int:
        """The command's exit status: not 0 where it ``has_an_end`` of its own, and was told to stop before that."""
        return _ENDED_BY_SIGNAL + self._number if has_an_end and self._number is not None else 0


def _leave_sigterm_to_python(spark: SparkSession) -> None:
    """Keep the JVM alive on SIGTERM until this process ends: the JVM ends then, whichever of the two started the other.

    A JVM that this process started ignores the signal. One of spark-submit passes it on, for it may be the only
    process that gets it (`kill`, or a container's first process).
    """
    jvm: Any = spark._jvm
    handler: Any = jvm.sun.misc.SignalHandler.SIG_IGN
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        from pyspark.java_gateway import ensure_callback_server_started

        ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
        handler = _PassedOn()
    jvm.sun.misc.Signal.handle(jvm.sun.misc.Signal("TERM"), handler)


class _PassedOn:
    """A Java `SignalHandler` that sends SIGTERM to this process."""

    def handle(self, _: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    class Java:
        implements = ("sun.misc.SignalHandler",)
