"""`follow` beside a test, and what its store then holds."""

from __future__ import annotations

import threading
import traceback
from contextlib import closing, contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.fold.stream.folding import follow
from offsets_pipeline.ingest.topic.topic_ingest import TopicIngest
from offsets_pipeline.ingest.topic.topic_progress import TopicObserver
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from offsets_pipeline.questions.query.local_sql import LocalSql
from offsets_pipeline.questions.query.state_reader import StateReader
from tests.kafka.live import LogRecord
from tests.kafka.live_clients import wait_until
from tests.spark.stores import differences, export_of, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.errors import OffsetsError
    from tests.kafka.live_clients import LiveClients
    from tests.spark.stores import Workbench


class Heard(TopicObserver):
    """Warnings of an ingest, and the errors of requests that it retries."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def unreachable(self, error: OffsetsError) -> None:
        self.warned(f"{error}; trying again")

    def warned(self, text: str) -> None:
        self.warnings.append(text)


def ingest_of(
    workbench: Workbench, store: Path, broker: LiveClients, settings: Settings, heard: Heard | None = None
) -> TopicIngest:
    options = KafkaOptions(broker.address, {})
    return TopicIngest(workbench.spark, str(store), options, settings, SystemClock(), heard)


@contextmanager
def beside(run: Callable[[], object], stop: Callable[[], object]) -> Iterator[list[BaseException]]:
    """Call ``run`` in a thread, and ``stop`` at the end of the context. Yields the failures; one fails the test."""
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - asserted below
            traceback.print_exc()  # code that waits for an effect of the thread fails first
            failures.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        yield failures
    finally:
        stop()
        thread.join()
    assert not failures, failures


@contextmanager
def following(
    workbench: Workbench, store: Path, broker: LiveClients, settings: Settings, heard: Heard | None = None
) -> Iterator[None]:
    """Both queries run meanwhile; the test fails if one ends early."""
    ingest = ingest_of(workbench, store, broker, settings, heard)
    ingest.prepare()
    with beside(lambda: follow(ingest, settings, SystemClock()), ingest.stop):
        yield


def caught_up(store: Path, broker: LiveClients) -> None:
    """Wait until our answers are the broker's."""
    wait_until(
        lambda: differences(store, broker.answers.groups()) == [],
        "we answer otherwise than the broker",
        say=lambda: str(differences(store, broker.answers.groups())),
    )


def log_places(store: Path | str, log_incarnation: int = 0) -> list[tuple[int, int]]:
    return [(each.log_partition, each.record_offset) for each in log_records(store, log_incarnation)]


def log_records(store: Path | str, log_incarnation: int = 0) -> list[LogRecord]:
    """Each record of a log incarnation, as often as the log holds it."""
    rows = table(store, "log")
    names = [field.name for field in fields(LogRecord)]
    columns = [rows["record_timestamp"].cast(pa.int64()) if name == "timestamp_us" else rows[name] for name in names]
    lists = [column.to_pylist() for column in (*columns, rows["log_incarnation"])]
    found = [LogRecord(*row) for *row, of in zip(*lists, strict=True) if of == log_incarnation]
    return sorted(found, key=lambda each: (each.log_partition, each.record_offset))


def viewed(store: Path, query: str) -> set[tuple[Any, ...]]:
    """The rows of a query over the views of a store, without Spark."""
    with closing(LocalSql([StateReader(str(store))])) as local:
        return {tuple(row) for row in local.run(query)[1]}


def answers_of(store: Path) -> dict[str, dict[tuple[str, int], int]]:
    groups = export_of(store)["groups"]
    return {
        name: {(each["topic"], each["partition"]): each["offset"] for each in group["offsets"]}
        for name, group in groups.items()
    }
