"""A command that a signal stops."""

from __future__ import annotations

import signal
import threading

import pytest

from offsets_pipeline.cli.stopping import Stopping

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.mark.usefixtures("signal_handlers")
@pytest.mark.parametrize("number", SIGNALS)
def test_signal_handler_may_take_a_lock_of_the_main_thread(number: signal.Signals) -> None:
    held, stopped = threading.Lock(), threading.Event()

    def stop() -> None:
        if held.acquire(timeout=5):
            stopped.set()

    stopping = Stopping(stop)
    assert stopping.status(has_an_end=True) == 0
    with held:
        signal.raise_signal(number)
    assert stopped.wait(10)
    assert stopping.status(has_an_end=True) == 128 + number
    assert stopping.status(has_an_end=False) == 0  # being told is its only end


def test_a_service_manager_that_signals_twice_stops_once() -> None:
    stops: list[int] = []
    done = threading.Event()

    def stop() -> None:
        stops.append(1)
        assert done.wait(10)

    stopping = Stopping(stop)
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
    done.set()
    for thread in threading.enumerate():
        if thread.name == "stop":
            thread.join()
    assert stops == [1]
    assert stopping.status(has_an_end=True) == 128 + signal.SIGTERM
