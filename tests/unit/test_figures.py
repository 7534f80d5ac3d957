"""Metrics stay up to date, also after errors."""

from __future__ import annotations

import socket
import threading
import urllib.request
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from offsets_pipeline.errors import BrokerUnreachable, StorageFailed, TargetNotWritable
from offsets_pipeline.fold.state.fold import fold_log
from offsets_pipeline.ingest.topic.topic_client import LogPartitionBounds
from offsets_pipeline.ingest.topic.topic_plan import CompleteReads, Reading
from offsets_pipeline.ingest.topic.topic_progress import TopicProgress
from offsets_pipeline.kafka.broker.fetch import FetchPosition
from offsets_pipeline.observability.collectors import LogExtent, QueryMetrics, StateMetrics
from offsets_pipeline.observability.operator_log import FollowedTopic, OperatorLog
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.service.metrics import exposition
from offsets_pipeline.service.metrics.exposition import Exposition
from offsets_pipeline.store.delta.schemas import LOG
from offsets_pipeline.store.delta.table_folder import TableFolder
from tests.figures import exposed
from tests.folded_stores import new_store
from tests.logs import LogPartition, commit_key
from tests.spark.stores import CLOCK, appended
from tests.unit.share_logs import IN_DRIVER

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    import pyarrow.parquet as pq

    from offsets_pipeline.service.metrics.exposition import Values
    from offsets_pipeline.store.delta.data_file import DataFile
    from offsets_pipeline.store.delta.snapshot import Snapshot
    from tests.figures import Figures

PATIENCE_SECONDS = 30


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "_WRITE_SECONDS", 0.01)
    monkeypatch.setattr(exposition, "_COUNT_SECONDS", 0.01)


@pytest.mark.usefixtures("_hasty")
def test_failed_metrics_are_warned_of_once_and_retried(tmp_path: Path) -> None:
    file, counted = tmp_path / "m.prom", threading.Event()
    warnings: list[str] = []
    fails = ["no such column\nand a stack", "no such column", "another", None, "another"]

    def count() -> Values:
        why = fails.pop(0) if fails else None
        if not fails:
            counted.set()
        if why is not None:
            raise RuntimeError(why)
        return {"offsets_groups": 5}

    with Exposition(file, None, warnings.append) as metrics:
        metrics.start(count)
        assert counted.wait(PATIENCE_SECONDS)
    assert "offsets_groups 5.0\n" in file.read_text()
    cannot = "cannot count the state tables: "
    assert warnings == [cannot + "no such column", cannot + "another", cannot + "another"]


@pytest.mark.usefixtures("_hasty")
def test_a_file_that_cannot_be_written_to_for_a_while_is_written_to_later(tmp_path: Path) -> None:
    folder, warned = tmp_path / "folder", threading.Event()
    warnings: list[str] = []
    folder.mkdir()
    file, groups = folder / "m.prom", 5

    def warn(text: str) -> None:
        warnings.append(text)
        warned.set()

    with Exposition(file, None, warn, lambda: {"offsets_groups": groups}) as metrics:
        file.unlink()
        folder.rmdir()
        metrics.start()
        assert warned.wait(PATIENCE_SECONDS)
        groups = 7
        folder.mkdir()
    assert "offsets_groups 7.0\n" in file.read_text()
    expected = f"metrics are not up to date: cannot write metrics to {file}: No such file or directory"
    assert warnings == [expected]


@pytest.mark.parametrize(
    ("has_file", "has_port", "expected_ms"),
    [(True, False, [30_000, 2_000]), (False, True, [30_000]), (False, False, [])],
)
def test_groups_are_counted_every_half_minute_and_the_file_is_written_every_two_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_file: bool, has_port: bool, expected_ms: list[int]
) -> None:
    intervals_ms = []

    def periodic(run: Callable[[], None], interval_ms: int, **options: object) -> SimpleNamespace:
        assert (options["rests"], options["at_end"]) == (True, run)  # from the end of a run on, and once more
        intervals_ms.append(interval_ms)
        return SimpleNamespace(start=run, close=lambda *_: None)

    monkeypatch.setattr(exposition, "Periodic", periodic)
    file, address = tmp_path / "m.prom" if has_file else None, ("127.0.0.1", 0) if has_port else None
    with Exposition(file, address, pytest.fail, lambda: {"offsets_topic_up": 1}) as metrics:
        metrics.start(lambda: {"offsets_groups": 7})
        server = metrics._server
        texts = [file.read_text()] if file is not None else []
        if server is not None:
            with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
                texts.append(answer.read().decode())
    assert intervals_ms == expected_ms  # docs/metrics.md
    assert len(texts) == has_file + has_port
    assert all("offsets_topic_up 1.0\n" in each and "offsets_groups 7.0\n" in each for each in texts)
    if server is not None:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port), timeout=10)


def test_unwritable_metrics_file_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(TargetNotWritable, match="cannot write metrics to"):
        Exposition(tmp_path / "none" / "m.prom", None, lambda _: None)


def append(folder: Path, rows: list[tuple[int, int, int]]) -> Snapshot:
    """Append rows of log incarnation, log partition, record offset."""
    names = ("log_incarnation", "log_partition", "record_offset")
    columns = zip(*rows, strict=True)
    write_deltalake(
        folder, pa.table({name: list(each) for name, each in zip(names, columns, strict=True)}), mode="append"
    )
    return TableFolder(str(folder), LOG).snapshot()


def test_extent_of_the_log_is_per_log_incarnation_and_reads_only_new_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extent = LogExtent()
    opened: list[str] = []

    open_file = TableFolder.open_file

    def noted(folder: TableFolder, file: DataFile, **options: Any) -> AbstractContextManager[pq.ParquetFile]:  # noqa: ANN401
        opened.append(file.name)
        return open_file(folder, file, **options)

    monkeypatch.setattr(TableFolder, "open_file", noted)
    log = tmp_path / "a log"
    assert extent.look(append(log, [(0, 0, 5), (0, 1, 2), (0, 0, 9)]), 0) == {0: (5, 9), 1: (2, 2)}
    assert extent.look(append(log, [(1, 1, 0), (0, 1, 3)]), 0) == {0: (5, 9), 1: (2, 3)}
    assert extent.look(TableFolder(str(log), LOG).snapshot(), 1) == {1: (0, 0)}
    assert len(opened) == len(set(opened)) == 2


def test_state_is_behind_the_log_by_the_record_offsets_after_the_last_fold(tmp_path: Path) -> None:
    store = new_store(tmp_path / "a store", 4)
    state = StateMetrics(lambda: StateReader(store.location, at_most=0))  # what a stream has folded
    names = "offsets_groups", "offsets_committed_offsets", "offsets_quarantined_records"

    def assert_counted(behind: dict[int, int], *numbers: int) -> None:
        found = state.count()
        assert found["offsets_fold_behind_log_records"] == dict.fromkeys(range(4), 0) | behind
        assert tuple(found[name] for name in names) == numbers

    of_d, of_a, of_b = LogPartition(0), LogPartition(1, start=5), LogPartition(2, start=40)  # groups by R1
    of_d.commit(("d", "t", 0), 7)
    of_d.commit(("a", "t", 0), 7)  # another log partition answers for it
    of_d.record(commit_key("d"), b"\xff")
    of_a.commit(("a", "t", 0), 7)
    of_a.commit(("a", "t", 1), 7)
    appended(store.location, of_d.rows + of_a.rows)
    assert_counted({0: 3, 1: 2}, 0, 0, 0)
    fold_log(store, IN_DRIVER, CLOCK)
    assert_counted({}, 2, 3, 1)
    of_a.skip(3)
    of_a.commit(("a", "t", 2), 7)
    of_b.commit(("b", "t", 0), 7)
    appended(store.location, [of_a.rows[-1], of_b.rows[-1]])
    assert_counted({1: 4, 2: 1}, 2, 3, 1)  # from 7 to 10, and from the start of the log, 40


def test_batches_are_counted_while_the_block_runs() -> None:
    listeners: list[QueryMetrics] = []
    spark: Any = SimpleNamespace(
        streams=SimpleNamespace(addListener=listeners.append, removeListener=lambda _: listeners.clear())
    )
    metrics = QueryMetrics()
    with metrics.counting(spark):
        assert listeners == [metrics]
        for name, duration_ms in (("fold", 1500), ("fold", 500), ("publish", 250)):
            progress: Any = SimpleNamespace(name=name, batchDuration=duration_ms)
            listeners[0].onQueryProgress(cast("Any", SimpleNamespace(progress=progress)))
    assert listeners == []
    assert metrics.values() == {
        "offsets_batch_duration_seconds": {"fold": (2, 2.0), "publish": (1, 0.25)},
        "offsets_batches_total": {"fold": 2, "publish": 1},
    }


def test_the_last_batch_of_a_query_is_counted_before_the_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark calls a listener some time after the query has ended."""
    spark: Any = SimpleNamespace(streams=SimpleNamespace(addListener=lambda _: None, removeListener=lambda _: None))
    metrics, query = QueryMetrics(), cast("Any", SimpleNamespace(runId="a run"))
    progress = cast("Any", SimpleNamespace(progress=SimpleNamespace(name="fold", batchDuration=500)))
    waits: list[float] = []

    def wait_for(has_ended: Callable[[], bool], seconds: float) -> None:
        waits.append(seconds)
        assert not has_ended()
        metrics.onQueryProgress(progress)
        assert not has_ended()
        metrics.onQueryTerminated(query)
        assert has_ended()

    notified: list[bool] = []
    monkeypatch.setattr(metrics._changed, "wait_for", wait_for)
    monkeypatch.setattr(metrics._changed, "notify_all", lambda: notified.append(not metrics._running))
    with metrics.counting(spark):
        metrics.onQueryStarted(query)
    assert (waits, notified) == ([10], [True])
    assert metrics.values()["offsets_batches_total"] == {"fold": 1}


class Gauges:
    """A topic's metrics, at a time that the test sets."""

    def __init__(self) -> None:
        self.now_ms_ = 1_000_000
        self.topic = FollowedTopic("t", OperatorLog(self, only_warnings=True), self)

    def now_ms(self) -> int:
        return self.now_ms_

    def values(self) -> Figures:
        found = exposed(self.topic.values)
        del found["offsets_records_read_total"]
        return found


def progress(
    read_to: dict[int, int],
    bounds: dict[int, LogPartitionBounds],
    open_since_ms: dict[int, int],
    log_incarnation: int = 0,
) -> TopicProgress:
    found = TopicProgress(Reading(log_incarnation, read_to, CompleteReads(0)), bounds, {}, 0, 0)
    found.open_since_ms = open_since_ms
    return found


def test_a_log_is_behind_the_topic_up_to_its_high_watermark() -> None:
    gauges = Gauges()
    gauges.topic.looked(
        progress({0: 7, 1: 5}, {0: LogPartitionBounds(0, 6, 10), 1: LogPartitionBounds(0, 4, 4)}, {0: 400_000})
    )
    assert gauges.values() == {
        "offsets_log_behind_topic_records": {"0": 3, "1": 0},
        "offsets_topic_unstable_records": {"0": 4, "1": 0},
        "offsets_topic_open_transaction_seconds": {"0": 600},
        "offsets_store_up": {"": 1},
        "offsets_topic_up": {"": 1},
        "offsets_topic_last_success_timestamp_seconds": {"": 1000},
    }


def test_a_batch_brings_the_log_nearer_to_the_topic_of_the_last_look() -> None:
    gauges, behind = Gauges(), "offsets_log_behind_topic_records"
    gauges.topic.landed(2)  # before the first look nothing is known of the topic's end
    assert behind not in gauges.values()
    reading = progress({0: 7}, {0: LogPartitionBounds(0, 6, 10)}, {})
    gauges.topic.looked(reading)
    for end, records_behind in ((9, 1), (12, 0)):  # a query that is stopped after this looks no more
        reading.advance({0: FetchPosition(end, None)})
        gauges.topic.landed(2)
        assert gauges.values()[behind] == {"0": records_behind}
    gauges.topic.unreachable(BrokerUnreachable("away"))
    gauges.topic.landed(2)
    assert behind not in gauges.values()
    assert gauges.topic.values()["offsets_records_read_total"] == 8


def test_during_an_outage_the_gauges_of_the_topic_have_no_value() -> None:
    gauges = Gauges()
    gauges.topic.looked(progress({0: 7}, {0: LogPartitionBounds(0, 6, 10)}, {0: 400_000}))
    gauges.now_ms_ += 60_000
    gauges.topic.unreachable(BrokerUnreachable("away"))
    assert gauges.values() == {
        "offsets_store_up": {"": 1},
        "offsets_topic_up": {"": 0},
        "offsets_topic_last_success_timestamp_seconds": {"": 1000},
    }
    gauges.topic.planned(progress({0: 7}, {0: LogPartitionBounds(0, 6, 10)}, {}, 2))
    assert gauges.values() == {
        "offsets_store_up": {"": 1},
        "offsets_topic_up": {"": 1},
        "offsets_topic_last_success_timestamp_seconds": {"": 1060},
        "offsets_log_incarnation": {"": 2},
    }


def test_during_an_outage_of_the_store_the_distance_of_the_log_is_not_known() -> None:
    gauges, behind = Gauges(), "offsets_log_behind_topic_records"

    def up() -> tuple[Any, Any, bool]:
        values = gauges.values()
        return values["offsets_store_up"][""], values["offsets_topic_up"][""], behind in values

    gauges.topic.looked(progress({0: 7}, {0: LogPartitionBounds(0, 6, 7)}, {}))
    gauges.topic.unreachable(StorageFailed("away"))
    assert up() == (0, 1, False)
    gauges.topic.planned(progress({0: 7}, {0: LogPartitionBounds(0, 6, 10)}, {}))
    gauges.topic.looked(progress({0: 7}, {0: LogPartitionBounds(0, 6, 10)}, {}))  # reads alone may succeed
    assert up() == (0, 1, True)
    gauges.topic.landed(3)
    assert up() == (1, 1, True)
    gauges.topic.unreachable(StorageFailed("away"))
    gauges.topic.looked(progress({0: 10}, {0: LogPartitionBounds(0, 6, 10)}, {}))
    assert up() == (1, 1, True)
