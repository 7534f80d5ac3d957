"""A stream over facts gets each change once. The documents have one that keeps a copy of the published offsets."""

from __future__ import annotations

import contextlib
import io
import re
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.fold.maintenance import maintain_store
from offsets_pipeline.fold.state.fold import reload_partitions
from offsets_pipeline.fold.state.publishing import publish
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from tests.folded_stores import new_store
from tests.logs import LogPartition, in_batches
from tests.published import rows_of
from tests.random_logs import MANY, Shape, random_log
from tests.readers.stores import IN_DRIVER, LogOfStore, captured, fold
from tests.spark.stores import CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from offsets_pipeline.store.store import Store

    Facts = list[tuple[Any, ...]]

MODERN, CLASSIC = CoordinatorSemantics
PRODUCER = 7


class Steps:
    """Folds of one log partition, record by record."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._log = LogPartition()

    def fold(self, *append: Callable[[LogPartition], object]) -> None:
        """Append records, and fold them at once."""
        self._log.rows.clear()
        for each in append:
            each(self._log)
        fold(self.store, self._log.rows)

    def commit(self, group_id: str, partition: int, offset: int, producer_id: int | None = None) -> None:
        """Fold a commit."""
        self.fold(lambda log: log.commit((group_id, "t", partition), offset, producer_id))


@contextlib.contextmanager
def following(spark: SparkSession, table: str, columns: list[str]) -> Iterator[Callable[[], Facts]]:
    """A stream over a table; the function returns the rows that it got since the last call, in their order."""
    got: Facts = []

    def take(rows: DataFrame, _: int) -> None:
        got.extend(tuple(row) for row in rows.orderBy("record_offset").select(columns).collect())

    query = spark.readStream.format("delta").load(table).writeStream.foreachBatch(take).start()

    def since() -> Facts:
        query.processAllAvailable()
        found = got.copy()
        got.clear()
        return found

    try:
        yield since
    finally:
        query.stop()


@pytest.mark.streaming
def test_stream_over_facts_gets_each_change_once(spark: SparkSession, place: Path) -> None:
    steps = Steps(new_store(place / "store", 1))
    steps.commit("first", 0, 1)
    offsets = f"{steps.store.location}/offset_facts", ["group_id", "partition", "committed_offset"]
    groups = f"{steps.store.location}/group_facts", ["group_id", "state"]
    with following(spark, *offsets) as new_offsets, following(spark, *groups) as new_groups:
        assert (new_offsets(), new_groups()) == ([], [])  # a first fold only publishes

        steps.commit("g", 0, 1)
        assert (new_offsets(), new_groups()) == ([("g", 0, 1)], [("g", "Empty")])
        steps.fold(lambda log: log.commit(("g", "t", 0), 2), lambda log: log.commit(("g", "t", 0), 3))
        assert (new_offsets(), new_groups()) == ([("g", 0, 3)], [])
        assert publish(steps.store, CLOCK)
        steps.commit("g", 1, 4, PRODUCER)
        assert (new_offsets(), new_groups()) == ([], [])  # not before the end of the transaction
        steps.fold(lambda log: log.end_commit(PRODUCER), lambda log: log.delete(("g", "t", 0)))
        assert (new_offsets(), new_groups()) == ([("g", 1, 4), ("g", 0, None)], [])
        steps.fold(lambda log: log.group_tombstone(2, "first"))
        assert (new_offsets(), new_groups()) == ([], [("first", "Dead")])

        for semantics in (None, CLASSIC, MODERN):
            assert reload_partitions(steps.store, None, IN_DRIVER, CLOCK, semantics) == 8
            maintain_store(steps.store, CLOCK)  # removes facts, and those of the replaced incarnation
        assert (new_offsets(), new_groups()) == ([], [])
        steps.commit("g", 0, 9)
        steps.commit("g", 0, 9)  # another commit of the same offset
        assert (new_offsets(), new_groups()) == ([("g", 0, 9), ("g", 0, 9)], [])


def documented_example(root: Path) -> str:
    text = (root / "docs" / "questions.md").read_text(encoding="utf-8")
    blocks: list[str] = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (found,) = (block for block in blocks if "foreachBatch" in block)
    return found


@pytest.mark.streaming
@pytest.mark.slow  # starts two streams five times
@pytest.mark.parametrize(
    "log",
    [
        LogOfStore("random", random_log(Random(3), 300, Shape(groups=MANY, log_partitions=2)).rows(), 2, MODERN),
        pytest.param(captured("3.9.2-txn-open"), marks=pytest.mark.long),
        pytest.param(captured("4.2.0-share"), marks=pytest.mark.long),
    ],
    ids=lambda log: log.name,
)
def test_documented_example_keeps_a_copy_of_the_published_offsets(
    root: Path, spark: SparkSession, tmp_path: Path, log: LogOfStore
) -> None:
    store = new_store(tmp_path / "store", log.offsets_partitions, log.semantics)
    first, second, third, fourth, fifth = in_batches(log.rows, 5)
    code = compile(documented_example(root), "the example", "exec")
    columns = list(log.specified()["current_offsets"][0])
    runs: list[int] = []

    def assert_copied(folded: list[list[Any]], semantics: CoordinatorSemantics = log.semantics) -> None:
        names: dict[str, Any] = {}
        with contextlib.chdir(tmp_path), contextlib.redirect_stdout(io.StringIO()):
            exec(code, names)
        expected = log._replace(rows=[row for each in folded for row in each], semantics=semantics).specified()
        assert rows_of("current_offsets", names["current"].select(columns).toArrow()) == expected["current_offsets"]
        runs.append(len(expected["current_offsets"]))

    fold(store, first)
    fold(store, second)
    assert_copied([first, second])
    fold(store, third)
    assert publish(store, CLOCK)
    assert_copied([first, second, third])
    fold(store, fourth)
    reload_partitions(store, None, IN_DRIVER, CLOCK)
    assert publish(store, CLOCK)
    assert_copied([first, second, third, fourth])
    other = CLASSIC if log.semantics is MODERN else MODERN
    reload_partitions(store, None, IN_DRIVER, CLOCK, other)
    fold(store, fifth)
    assert_copied([first, second, third, fourth, fifth], other)
    assert max(runs) > 3
