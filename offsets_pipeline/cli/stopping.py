"""Commands that run until SIGTERM or Ctrl-C: they stop gracefully, repeat their work at intervals, or serve."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from offsets_pipeline.common.foreign_errors import in_one_line, may_pass
from offsets_pipeline.common.periodic import Periodic
from offsets_pipeline.common.warnings import set_line_times, warn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from starlette.types import ASGIApp

    from offsets_pipeline.cli.options import ServiceAccess
    from offsets_pipeline.common.clock import Clock

_Result = TypeVar("_Result")
_ENDED_BY_SIGNAL = 128  # to which a shell adds the signal's number


class Stopping:
    """Calls ``stop`` in a new thread on the first SIGTERM or SIGINT; ignores later signals.

    A signal handler runs in the main thread and cannot call ``stop`` itself: the main thread may be in a call to the
    JVM, or hold the lock of the event that ``stop`` sets.

    From now on lines of the process have times.

    ``spark`` is a session that ``stop`` needs: its JVM survives the signal (`spare_jvm`).
    """

    def __init__(self, stop: Callable[[], object], spark: SparkSession | None = None) -> None:
        self._stop = stop
        self._number: int | None = None
        set_line_times(are_on=True)
        if spark is not None:
            self.spare_jvm(spark)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    @staticmethod
    def spare_jvm(spark: SparkSession) -> None:
        """Let the session's JVM survive SIGTERM until this process ends.

        The JVM gets the signal too if a service manager signals all processes of a service, or a shell a process group.
        A JVM that this process started ignores the signal. The JVM of spark-submit passes the signal on to this
        process: it may be the only process that gets it (`kill`, or a container's first process).
        """
        from offsets_pipeline.store.session import on_connect

        if on_connect(spark):
            return
        jvm: Any = spark._jvm
        handler: Any = jvm.sun.misc.SignalHandler.SIG_IGN
        if is_submitted():
            from pyspark.java_gateway import ensure_callback_server_started

            ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
            handler = _PassedOn()
        jvm.sun.misc.Signal.handle(jvm.sun.misc.Signal("TERM"), handler)

    def _on_signal(self, number: int, _: object) -> None:
        if self._number is None:
            self._number = number
            threading.Thread(target=self._stop, name="stop").start()

    def status(self, *, has_an_end: bool) -> int:
        """Exit status: 128 plus the signal's number if a signal stopped a command that ``has_an_end``, else 0."""
        return _ENDED_BY_SIGNAL + self._number if has_an_end and self._number is not None else 0


def repeated(
    run: Callable[[], _Result],
    every_ms: int | None,
    clock: Clock,
    stopped: threading.Event | None = None,
    spark: Callable[[], SparkSession] | None = None,
) -> Iterator[_Result]:
    """Yield the result of one run, or with ``every_ms`` of each run until SIGTERM or SIGINT sets ``stopped``.

    ``spark`` returns a session that the runs need: its JVM survives the signal. With an interval, a retriable error is
    a warning, once until a run succeeds, and the next run tries again. Raises any other error.
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
        describe=lambda error: f"{in_one_line(error)}; the next run tries again",
        may_pass=may_pass,
        stopped=stopped,
    )
    for result in runs.results():
        yield result
        sys.stdout.flush()


@contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C end the process at once while code runs that only reads: DuckDB does not look at Python's handler."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if is_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def serve_until_stopped(
    what: str,
    listen: tuple[str, int],
    access: ServiceAccess,
    app_at: Callable[[str], ASGIApp],
    max_request_bytes: int,
) -> None:
    """Serve an application over HTTP, and print that ``what`` is served; ``app_at`` makes it, given the address.

    Raises as `RestServer`.
    """
    from offsets_pipeline.service.rest.server import Access, RestServer

    rules = Access(access.token_file, access.tls_certificate, access.tls_key, access.tls_client_ca)
    with RestServer(*listen, rules, app_at, max_request_bytes) as server:
        if server.is_in_clear:
            warn("the token is sent in clear text; name --tls-certificate and --tls-key")
        Stopping(server.close)
        sys.stdout.write(f"{what} at {server.url}\n")
        sys.stdout.flush()
        server.wait()
    sys.stdout.write(f"the service at {server.url} has stopped\n")


def is_submitted() -> bool:
    """Whether spark-submit started this process: its JVM runs already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


class _PassedOn:
    """A Java `SignalHandler` that sends SIGTERM to this process."""

    def handle(self, _: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    class Java:
        implements = ("sun.misc.SignalHandler",)
