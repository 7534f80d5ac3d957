"""The commands of an owned store's upkeep: the fold that expires, and `clean-log` and `maintain` again and again."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.common.clock import FixedClock, parse_time_ms
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.errors import CannotClean, WriteConflict
from offsets_pipeline.fold.maintenance import Upkeep
from offsets_pipeline.store.log.clean import Cleaned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def owned(tmp_path_factory: pytest.TempPathFactory) -> str:
    location = tmp_path_factory.mktemp("owned") / "store"
    OwnedStore.create(location, 1)
    return str(location)


@pytest.mark.streaming
@pytest.mark.slow
def test_fold_prints_expired_offsets(spark: SparkSession, owned: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It takes Spark: a fold, and another one with nothing to do."""
    with Coordinator.open(owned, clock=FixedClock(0), housekeeping=False) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 1, ("t", 1): 1}, retention_time_ms=1)
    for said in (f"5 records folded in {owned}; 2 offsets and 1 group expired\n", f"0 records folded in {owned}\n"):
        assert main(["fold", "--store", owned, "--available-now"]) == 0
        assert capsys.readouterr() == (said, "")


def stopped() -> None:
    """Send SIGTERM to this process, and wait until its handler has ended."""
    signal.raise_signal(signal.SIGTERM)
    for thread in threading.enumerate():
        if thread.name == "stop":
            thread.join()


@pytest.fixture(params=["clean-log", "maintain"])
def command(
    request: pytest.FixtureRequest, spark: SparkSession, signal_handlers: None, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Iterator[Callable[[], None]]], str]:
    """Let a command's runs do these things, and then end well."""

    def begin(steps: Iterator[Callable[[], None]]) -> str:
        def clean_log(*_: object, **__: object) -> Cleaned:
            next(steps)()
            return Cleaned(2, 20, 200, 1, 10, 100)

        def maintain_store(*_: object, **__: object) -> list[Upkeep]:
            next(steps)()
            return [Upkeep("log", 2, 20, 1, 10, 0, 4)]

        monkeypatch.setattr("offsets_pipeline.store.log.clean.clean_log", clean_log)
        monkeypatch.setattr("offsets_pipeline.fold.maintenance.maintain_store", maintain_store)
        return str(request.param)

    return begin


def nothing() -> None:
    """A run without a fault."""


def failing(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def test_upkeep_runs_again_and_again_until_it_is_stopped(
    command: Callable[[Iterator[Callable[[], None]]], str], owned: str, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = iter([failing(WriteConflict("others came first")), nothing, stopped])
    assert main([command(steps), "--store", owned, "--every", "PT0.02S"]) == 0
    out, err = capsys.readouterr()
    time, _, warning = err.partition(" ")
    assert (parse_time_ms(time) > 0, warning) == (
        True,
        "offsets: warning: others came first; the next run tries again\n",
    )
    lines = out.splitlines()
    (title, *first), (_, *second) = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    assert title.endswith((f"tables of {owned} compacted", f"log of {owned} cleaned"))
    assert first == second
    assert "20" in first[1].split()
    assert list(steps) == []


def test_upkeep_ends_with_an_error_that_does_not_pass(
    command: Callable[[Iterator[Callable[[], None]]], str], owned: str, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = iter([nothing, failing(CannotClean("its files lie elsewhere")), nothing])
    assert main([command(steps), "--store", owned, "--every", "PT0.02S"]) == 1
    out, err = capsys.readouterr()
    assert (out.count(" compacted\n") + out.count(" cleaned\n"), err) == (
        1,
        "offsets: error: its files lie elsewhere\n",
    )
    assert list(steps) == [nothing]


def test_upkeep_without_an_interval_runs_once(
    command: Callable[[Iterator[Callable[[], None]]], str], owned: str, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = iter([failing(WriteConflict("others came first")), nothing])
    assert main([command(steps), "--store", owned]) == 1
    assert capsys.readouterr() == ("", "offsets: error: others came first\n")
    assert list(steps) == [nothing]
