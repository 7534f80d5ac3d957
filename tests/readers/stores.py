"""Folded and published stores, with the rows that their logs give by the specification."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from offsets_pipeline.common.config import Settings
from offsets_pipeline.common.config.sections import FoldSettings
from offsets_pipeline.fold.state.fold import fold_log
from offsets_pipeline.fold.state.publishing import publish
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from tests.folded_stores import new_store
from tests.logs import ALIKE, CAPTURE_NAMES, capture_partitions, capture_rows, capture_semantics, in_batches
from tests.published import KEYS, Specification
from tests.random_logs import MANY, Shape, random_log
from tests.replays import named_topics, references
from tests.spark.stores import CLOCK, appended

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from offsets_pipeline.semantics.log_row import LogRow
    from offsets_pipeline.store.store import Store

IN_DRIVER = Settings(fold=FoldSettings(driver_rows=2**31 - 1))
_BATCHES = 3
_RANDOM = Shape(groups=MANY, log_partitions=3, strays=0.1)
_RANDOM_STEPS = 250


class LogOfStore(NamedTuple):
    """A log: its rows, number of log partitions, and coordinator semantics."""

    name: str
    rows: list[LogRow]
    offsets_partitions: int
    semantics: CoordinatorSemantics

    def specified(self) -> dict[str, list[dict[str, Any]]]:
        """The rows of each published table, in order."""
        specification = Specification(self.rows, self.offsets_partitions, self.semantics)
        topics = named_topics(references(self.rows, self.offsets_partitions, self.semantics).values())  # R35
        ends = {at: specification.end(at) for at in range(self.offsets_partitions)}
        return {name: specification.rows(name, ends, topics) for name in KEYS}


def captured(capture: str) -> LogOfStore:
    """The log of a capture."""
    rows = [row for partition in capture_rows(capture).values() for row in partition]
    return LogOfStore(capture, rows, capture_partitions(capture), capture_semantics(capture))


def logs_of_stores() -> Iterator[LogOfStore]:
    """18 recorded logs and 7 random ones."""
    for capture in CAPTURE_NAMES:
        if capture not in ALIKE:
            yield captured(capture)
    yield from random_logs(7)


def random_logs(count: int) -> Iterator[LogOfStore]:
    """Random logs of a few log partitions, by the semantics in turn."""
    for seed in range(count):
        semantics = list(CoordinatorSemantics)[seed % 2]
        rows = random_log(Random(seed), _RANDOM_STEPS, _RANDOM).rows()
        yield LogOfStore(f"random-{seed}", rows, _RANDOM.log_partitions, semantics)


def fold(store: Store, rows: Iterable[LogRow]) -> None:
    """Append records to the log, and fold them in the driver."""
    appended(store.location, rows)
    fold_log(store, IN_DRIVER, CLOCK)


def published_store(folder: Path, log: LogOfStore, batches: int = _BATCHES) -> Path:
    """A store with this log, folded and published batch by batch, without Spark."""
    store = new_store(folder, log.offsets_partitions, log.semantics)
    for batch in in_batches(log.rows, batches):
        fold(store, batch)
        assert publish(store, CLOCK)
    return folder
