"""Brokers' logs, cleaned: the state still equals the broker's answers, and removed records do not come back (R23)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.common.clock import FixedClock, SystemClock
from offsets_pipeline.errors import CannotClean
from offsets_pipeline.fold.maintenance import maintain_store
from offsets_pipeline.questions.query.log_info import log_info
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.store.log.clean import clean_log
from tests.logs import oracle
from tests.places import copied
from tests.spark.segments import write_prefix
from tests.spark.stores import AFTER_CAPTURES, CLOCK, differences, export_of, log_of, rows_of, segments_of
from tests.unit.share_logs import CAPTURE, PARTITIONS, TOPIC, answers, as_described, needed, shown
from tests.unit.state.test_stream_upkeep import keeps_nothing

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from tests.spark.stores import Workbench

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "capture",
    [
        *("4.2.0-kip848", "4.2.0-txn-open", "4.2.0-expiry-after"),
        pytest.param("4.2.0-inject", marks=pytest.mark.long),
    ],
)
def test_cleaned_log_gives_what_the_broker_answers(
    workbench: Workbench, folded: Callable[[str], Path], place: Path, capture: str
) -> None:
    store = copied(folded(capture), place / "store")
    before, rows = export_of(store), rows_of(store, "log")
    done = clean_log(workbench.open(store), workbench.settings, CLOCK)
    left = rows_of(store, "log")
    assert (done.records_before, done.records, done.removed) == (len(rows), len(left), len(rows) - len(left))
    assert done.removed > 0
    assert done.bytes is not None
    assert done.bytes < done.bytes_before
    assert all(row in rows for row in left)  # every column as it was
    assert workbench.verify(store).equal
    assert export_of(store) == before
    assert workbench.reload(store) == len(left)
    assert export_of(store) == before
    assert differences(store, oracle(capture)) == []

    again = workbench.ingest(store, segments_of(capture))
    assert (again.added, again.left_out) == (0, done.removed)
    assert workbench.fold(store) == 0
    assert rows_of(store, "log") == left

    once_more = clean_log(workbench.open(store), workbench.settings, CLOCK)
    assert once_more.removed == 0
    assert rows_of(store, "log") == left
    info = log_info(StateReader(str(store)))
    assert sum(each.records for each in info) == len(left)
    assert {each.log_partition for each in info if each.cleaned_to is not None} == {
        row["log_partition"] for row in rows if row not in left
    }
    assert all(each.cleaned_to < (each.folded_to or 0) for each in info if each.cleaned_to is not None)


def test_cleaned_and_compacted_share_partitions_are_those_of_the_broker(  # R39
    workbench: Workbench, place: Path, tmp_path: Path, chance: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, segments = place / "store", segments_of(CAPTURE.name)
    for share in (0.3, 0.65, 1):
        prefix = write_prefix(segments, tmp_path / str(share), share, chance, TOPIC)
        workbench.ingest(store, prefix, topic=TOPIC, partitions=PARTITIONS)
        workbench.fold(store)
    expected, rows = shown(str(store)), log_of(store)
    assert as_described(expected) == answers()["described"]

    def assert_same() -> None:
        assert shown(str(store)) == expected
        assert workbench.verify(store).equal

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("offsets_pipeline.store.log.clean.LogMetadata.cleaned", die)
        with pytest.raises(KeyboardInterrupt):
            clean_log(workbench.open(store), workbench.settings, CLOCK)
    assert log_of(store) == rows
    assert_same()
    keeps_nothing(workbench.open(store))
    done = clean_log(workbench.open(store), workbench.settings, CLOCK)
    left = log_of(store)
    assert (done.records_before, done.records) == (len(rows), len(left))
    # the last folded record of a log partition removes nothing; here it is the tombstone of these two
    assert {(row.log_partition, row.record_offset) for row in left} == needed() | {(1, 2), (1, 3)}
    assert_same()
    maintain_store(workbench.open(store), SystemClock())
    assert_same()
    workbench.reload(store)
    assert_same()
    again = workbench.ingest(store, segments, topic=TOPIC)
    assert (again.added, again.left_out) == (0, done.removed)


def test_young_records_and_records_that_are_not_folded_stay(
    workbench: Workbench, empty: Callable[[int], Path], place: Path
) -> None:
    store = copied(empty(5), place / "store")
    workbench.ingest(store, segments_of("4.2.0-kip848"), clock=AFTER_CAPTURES)
    workbench.fold(store)
    first = min(row["record_timestamp"] for row in rows_of(store, "log")) // 1000
    done = clean_log(workbench.open(store), workbench.settings, FixedClock(first + 1000), older_than_ms=1001)
    assert done.removed == 0
    unfolded = copied(empty(5), place / "unfolded")
    workbench.ingest(unfolded, segments_of("4.2.0-kip848"))
    rows = log_of(unfolded)
    done = clean_log(workbench.open(unfolded), workbench.settings, CLOCK)
    assert (done.records_before, done.removed) == (len(rows), 0)
    assert log_of(unfolded) == rows


def test_log_that_tasks_cannot_write_is_refused_in_one_line(
    workbench: Workbench, folded: Callable[[str], Path], place: Path
) -> None:
    store = copied(folded("4.2.0-kip848"), place / "store")
    before = log_of(store)
    workbench.spark.sql(f"ALTER TABLE delta.`{store}/log` ADD CONSTRAINT mine CHECK (record_offset < 1000000)")
    with pytest.raises(
        CannotClean, match=r"^cannot clean delta\..*/log`: its table requires the constraint mine"
    ) as refused:
        clean_log(workbench.open(store), workbench.settings, CLOCK)
    assert "\n" not in str(refused.value)
    workbench.spark.sql(f"ALTER TABLE delta.`{store}/log` DROP CONSTRAINT mine")
    workbench.spark.sql(f"ALTER TABLE delta.`{store}/log` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    workbench.spark.sql(f"DELETE FROM delta.`{store}/log` WHERE log_partition = 0 AND record_offset = 0")
    with pytest.raises(CannotClean, match=r"\(deletion vectors\); run REORG TABLE .* APPLY \(PURGE\)"):
        clean_log(workbench.open(store), workbench.settings, CLOCK)
    assert workbench.spark.read.format("delta").load(f"{store}/log").count() == len(before) - 1


def test_store_from_before_there_was_cleaning_is_cleaned(
    workbench: Workbench, folded: Callable[[str], Path], place: Path
) -> None:
    store = copied(folded("4.2.0-kip848"), place / "store")
    table = f"delta.`{store}/log_partitions`"
    without = workbench.spark.table(table).drop("cleaned_to")
    without.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(f"{store}/log_partitions")
    assert {each.cleaned_to for each in log_info(StateReader(str(store)))} == {None}
    assert workbench.ingest(store, segments_of("4.2.0-kip848")).added == 0
    assert clean_log(workbench.open(store), workbench.settings, CLOCK).removed > 0
    assert any(each.cleaned_to for each in log_info(StateReader(str(store))))
    assert workbench.ingest(store, segments_of("4.2.0-kip848")).added == 0
