"""Stores for tests: made, folded, and read back to be compared with the reference and with brokers' answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.fold.state.fold import reload_partitions
from offsets_pipeline.fold.state.fold_progress import FoldProgress
from offsets_pipeline.fold.state.merge_on_read import CONNECT, OFFSETS, RECORDS, STATE_TABLES
from offsets_pipeline.fold.state.published_rows import in_key_order
from offsets_pipeline.fold.state.verify import Verification, verify_store
from offsets_pipeline.fold.stream.folding import Folding
from offsets_pipeline.ingest.segments.segment_ingest import IngestReport, ingest_segments
from offsets_pipeline.questions.query.describe import describe_groups
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.questions.query.views import register_views
from offsets_pipeline.semantics.group_description import describe_group
from offsets_pipeline.semantics.log_row import LogRow
from offsets_pipeline.store.delta.data_file import LATE, late_in
from offsets_pipeline.store.delta.schemas import FOLD_PROGRESS, LOG, TABLE_BY_NAME, VERSIONS
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.store import Store
from tests.compare import compare
from tests.folded_state import FoldedState, assert_same
from tests.logs import CAPTURES
from tests.places import place_of
from tests.replays import in_microseconds, references

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pyspark.sql import Row, SparkSession

    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics

CLOCK = FixedClock(1_795_000_000_000)
#: Later than all records of the captures. CLOCK is earlier than some of them.
AFTER_CAPTURES = FixedClock(1_796_000_000_000)
_LOG_TYPES = {field.name: field.type for field in LOG.arrow_schema()}


@dataclass(frozen=True)
class Workbench:
    """Operations on stores for tests, in one Spark session."""

    spark: SparkSession
    settings: Settings

    def ingest(
        self,
        location: Path | str,
        *paths: Path | str,
        partitions: int | None = None,
        topic: str | None = None,
        clock: FixedClock = CLOCK,
    ) -> IngestReport:
        """Ingest segment files into a store."""
        return ingest_segments(
            self.spark,
            str(location),
            [str(path) for path in paths],
            self.settings,
            clock,
            partitions,
            topic=topic,
        )

    def open(self, location: Path | str) -> Store:
        """Open a store."""
        return Store.open(self.spark, str(location))

    def fold(self, location: Path | str) -> int:
        """Fold the log up to its end; returns the number of records."""
        folded: list[int] = []
        Folding(self.open(location), self.settings, CLOCK, on_fold=folded.append).fold_to_end()
        return sum(folded)

    def reload(self, location: Path | str, *partitions: int, semantics: CoordinatorSemantics | None = None) -> int:
        """Reload these log partitions, or all, by these coordinator semantics or those of the state."""
        return reload_partitions(self.open(location), partitions or None, self.settings, CLOCK, semantics)

    def sql(self, location: Path | str, query: str) -> list[Row]:
        """The rows of a query over the views and tables of a store."""
        register_views(self.spark, str(location), query=query)
        return self.spark.sql(query).collect()

    def verify(self, location: Path | str, *, independent: bool = False) -> Verification:
        """Compare the state with a replay of the log."""
        return verify_store(self.open(location), self.settings.fold, independent=independent)


def appended(
    location: Path | str,
    rows: Iterable[LogRow],
    *,
    backfill: bool = False,
    log_incarnation: int = 0,
    record_timestamp: int | None = 0,
    appended_ms: int | None = None,
) -> None:
    """Append rows to the table `log`, as an ingest does; all with one timestamp in microseconds, by default at once."""
    rows = list(rows)
    appended_us = (record_timestamp or 0) if appended_ms is None else appended_ms * 1000
    columns = [pa.array([getattr(row, name) for row in rows], _LOG_TYPES[name]) for name in LogRow._fields]
    constants = {
        "record_timestamp": pa.scalar(record_timestamp, pa.timestamp("us", tz="UTC")),
        "producer_epoch": pa.scalar(None, pa.int16()),
        "source": pa.scalar("a test"),
        "appended_at": pa.scalar(appended_us, pa.timestamp("us", tz="UTC")),
        "log_incarnation": pa.scalar(log_incarnation, pa.int32()),
        "backfill": pa.scalar(backfill),
    }
    names = [*LogRow._fields, *constants]
    repeated = [pa.repeat(value, len(rows)) for value in constants.values()]
    write_deltalake(f"{location}/log", pa.Table.from_arrays([*columns, *repeated], names), mode="append")
    if backfill:
        table = TableFolder(f"{location}/log", LOG)
        seen = table.snapshot()
        number = seen.transaction(LATE) + 1
        late = {late_in(row.log_partition): number for row in rows}
        table.commit(seen=seen, advance={LATE: number, **late})


def segments_of(capture: str) -> Path:
    """The folder with the log partitions of a capture."""
    return CAPTURES / capture / "segments"


def export_of(location: Path | str, at_most: int = 0) -> dict[str, Any]:
    """Groups in the output of `describe --all-groups --format json`, with up to ``at_most`` records folded by it."""
    reader = StateReader(str(location), at_most)
    return {"groups": {name: asdict(group) for name, group in describe_groups(reader).items()}}


def described_offsets(location: Path | str) -> list[tuple[str, str, int, int]]:
    """Group, topic, partition and committed offset of each offset that `describe` answers, in order."""
    groups = export_of(location)["groups"]
    return sorted(
        (name, each["topic"], each["partition"], each["offset"])
        for name, group in groups.items()
        for each in group["offsets"]
    )


def differences(location: Path | str, oracle: dict[str, Any], *, offsets_only: bool = False) -> list[str]:
    """How our answers differ from the broker's."""
    return compare(export_of(location), oracle, offsets_only=offsets_only)


def table(location: Path | str, name: str, at_most: int = 0) -> pa.Table:
    """A table of a store, read without Spark, timestamps as microseconds.

    Of a state table the rows that count, with up to ``at_most`` records folded by the reader.
    """
    reader = StateReader(str(location), at_most)
    rows = {each.name: each for each in (*STATE_TABLES, CONNECT)}
    if name in rows:
        found = in_key_order(rows[name], reader.current.newest(rows[name], rows[name].columns))
    else:
        found = reader.table(name).rows()
    return in_microseconds(found)


def rows_of(location: Path | str, name: str, at_most: int = 0) -> list[dict[str, Any]]:
    """The rows of a table of a store, as `table`."""
    rows: list[dict[str, Any]] = table(location, name, at_most).to_pylist()
    return rows


def folded_in(location: Path | str) -> int:
    """Number of records that the state counts."""
    return sum(row["records"] for row in rows_of(location, "fold_progress"))


def versions(location: Path) -> dict[str, int]:
    """The version of each table: it moves with every write."""
    return {log.parent.name: DeltaTable(log.parent).version() for log in location.glob("*/_delta_log")}


def alter(location: Path | str, name: str, columns: Mapping[str, str], where: str = "TRUE") -> None:
    """Change columns of rows of a state table as only a fault of this program would; both in SQL of DuckDB.

    A reader refuses a table that another program has changed.
    """
    changes = (f"CASE WHEN {where} THEN {new} ELSE {column} END AS {column}" for column, new in columns.items())
    _rewrite(location, name, f"SELECT * REPLACE ({', '.join(changes)}) FROM rows")


def remove(location: Path | str, name: str, where: str = "TRUE") -> None:
    """Remove rows of a state table as `alter` changes them."""
    _rewrite(location, name, f"SELECT * FROM rows WHERE ({where}) IS NOT TRUE")


def add(location: Path | str, name: str, columns: Mapping[str, str], where: str) -> None:
    """Add rows like others of a state table, with these columns changed, as `alter` changes them."""
    changes = ", ".join(f"{new} AS {column}" for column, new in columns.items())
    like = f"SELECT * {f'REPLACE ({changes})' if changes else ''} FROM rows WHERE {where}"
    _rewrite(location, name, f"SELECT * FROM rows UNION ALL {like}")


def _rewrite(location: Path | str, name: str, query: str) -> None:
    """Put the rows of a query over each file of a table in place of the file; they belong to the progress."""
    folder = TableFolder(f"{location}/{name}", TABLE_BY_NAME[name])
    seen, added = folder.snapshot(), []
    for file in seen.files():
        with folder.open_file(file) as parquet, duckdb.connect() as connection:
            before = parquet.read()
            connection.register("rows", before)
            after = connection.sql(query).to_arrow_table()
        if after.num_rows:
            added.append(folder.write_file(after.cast(before.schema), file.partition))
    version = folder.commit(added, seen.files(), seen=seen)
    progress = FoldProgress.read(TableFolder(f"{location}/{FOLD_PROGRESS.name}", FOLD_PROGRESS))
    if name in progress.versions:
        progress.replace(progress.partitions, progress.versions | {name: version})


def log_of(location: Path | str) -> list[LogRow]:
    """The rows of the table `log`, in order."""
    names = LogRow._fields
    rows = [LogRow(*(row[name] for name in names)) for row in table(location, "log").select(list(names)).to_pylist()]
    return sorted(rows, key=lambda row: (row.log_partition, row.record_offset))


def state_of(location: Path | str, at_most: int = 0) -> FoldedState:
    """The state of a store, with up to ``at_most`` records folded by the reader."""
    reader = StateReader(str(location), at_most)
    current = reader.current
    state = FoldedState(current.offsets_partitions, current.semantics, progress=dict(current.progress))
    state.take_rows(*(reader.current.newest(each, each.columns) for each in (OFFSETS, RECORDS)))
    for row in rows_of(location, "quarantine"):
        if row["record_offset"] is not None:
            assert row["record_offset"] not in state.quarantine.get(row["log_partition"], {})
            state.quarantine.setdefault(row["log_partition"], {})[row["record_offset"]] = row["reason"]
    state.topics |= reader.topic_names()
    return state


def assert_as_reference(location: Path | str, rows: Iterable[LogRow], earlier: Iterable[LogRow] = ()) -> None:
    """Assert that the state tables equal the reference replay of these rows.

    They also keep the names of topic ids from ``earlier`` incarnations of the log (R35).
    """
    rows = list(rows)
    state = state_of(location)
    before = references(list(earlier), state.offsets_partitions, state.semantics).values()
    assert_same(state, references(rows, state.offsets_partitions, state.semantics), before)
    counted = {row["log_partition"]: row["records"] for row in rows_of(location, "fold_progress")}
    assert counted == {at: sum(row.log_partition == at for row in rows) for at in counted}
    described = {}
    for at, (kind, values) in state.groups().items():
        group = describe_group(kind, values)
        described[at] = (group.group_type, group.state, group.protocol_type, group.protocol or "", len(group.members))
    names = ("group_type", "state", "protocol_type")
    assert described == {
        (row["log_partition"], row["group_id"]): (
            *(row[name] for name in names),
            row["protocol"] or "",  # as it is published
            len(row["members"] or ()),
        )
        for row in rows_of(location, "group_facts")
        if row["state"] != "Dead"
    }


def assert_answers_as_reference(
    location: Path | str, rows: Iterable[LogRow], earlier: Iterable[LogRow] = (), at_most: int = 10_000
) -> None:
    """Assert that a reader of the store answers as the reference replay of these rows, without writing to the store."""
    before = versions(place_of(location))
    state = state_of(location, at_most)
    expected = references(rows, state.offsets_partitions, state.semantics)
    state.quarantine = {at: each.quarantined for at, each in expected.items()}  # a table for folds, not an answer
    assert_same(state, expected, references(list(earlier), state.offsets_partitions, state.semantics).values())
    assert versions(place_of(location)) == before


def state_rows(location: Path | str) -> dict[str, list[str]]:
    """Contents of the state tables, without write times, and without how dead groups are kept and what is published."""
    names = ("offset_facts", "group_records", "group_facts", "quarantine", "topics", "fold_progress")
    return {
        name: sorted(str(_said(name, row)) for row in rows_of(location, name) if _says(name, row)) for name in names
    }


def _says(name: str, row: dict[str, Any]) -> bool:
    if name == "group_facts":
        return bool(row["state"] != "Dead")
    return not (name == "group_records" and row["record_type"] == 1)  # of commits as many as needed (R14)


def _said(name: str, row: dict[str, Any]) -> dict[str, Any]:
    without = {"folded_at", "quarantined_at", "incarnation", "published_to", "log_commit", *VERSIONS} | (
        {"record_offset"} if name == "group_facts" else set()
    )
    return {key: value or "" if key == "protocol" else value for key, value in row.items() if key not in without}
