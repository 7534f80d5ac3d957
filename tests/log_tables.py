"""Stores with a log and without state, made without Spark, for exports."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake
from pyspark.sql.pandas.types import from_arrow_schema

from offsets_pipeline.kafka.record.segment import SEGMENT_SCHEMA, read_segment
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.delta.schemas import LOG, LOG_PARTITIONS
from tests.logs import CAPTURES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from offsets_pipeline.store.delta.schemas import Table

LOG_SCHEMA = LOG.arrow_schema()
_BOUNDS_SCHEMA = LOG_PARTITIONS.arrow_schema()
#: Of records that were read from segment files long after they were written, in 2096.
APPENDED_MS = 4_000_000_000_000


def log_store(
    location: Path,
    offsets_partitions: int,
    appends: Iterable[pa.Table],
    bounds: Mapping[int, tuple[int, int]] | None = None,
    log_incarnation: int = 0,
    topic_kind: TopicKind = TopicKind.CONSUMER_OFFSETS,
) -> Path:
    """A store whose log is made by these appends; ``bounds``: log start and end by log partition."""
    _create(
        location / LOG.name,
        LOG,
        StoreProperties(MIRRORED, offsets_partitions, topic_kind=topic_kind).as_table_properties(),
    )
    _create(location / LOG_PARTITIONS.name, LOG_PARTITIONS, {})
    for rows in appends:
        write_deltalake(location / LOG.name, rows, mode="append")
    noted = [
        {
            "log_partition": at,
            "log_incarnation": log_incarnation,
            "start_offset": start,
            "end_offset": end,
            "updated_at": 0,
        }
        for at, (start, end) in (bounds or {}).items()
    ]
    write_deltalake(location / LOG_PARTITIONS.name, pa.Table.from_pylist(noted, _BOUNDS_SCHEMA), mode="append")
    return location


def log_table(
    records: pa.Table, log_partition: int | pa.Array, *, appended_at_ms: int = APPENDED_MS, log_incarnation: int = 0
) -> pa.Table:
    """Rows of the table `log` from records with the columns of a segment."""
    others = {
        "log_partition": log_partition,
        "source": "a test",
        "appended_at": pa.scalar(appended_at_ms * 1000, pa.timestamp("us", tz="UTC")),
        "log_incarnation": log_incarnation,
        "backfill": False,
    }
    columns = [
        records[field.name].cast(field.type)
        if field.name not in others
        else others[field.name]
        if isinstance(others[field.name], pa.Array)
        else pa.repeat(pa.scalar(others[field.name]), records.num_rows).cast(field.type)
        for field in LOG_SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=LOG_SCHEMA)


def segment_records(folder: Path, topic: str = "__consumer_offsets") -> dict[int, pa.Table]:
    """Records of the segment files of each log partition of a topic, in file order."""
    found: dict[int, list[pa.RecordBatch]] = {}
    for path in sorted(folder.glob(f"{topic}-*/*.log")):
        reader = read_segment(path.read_bytes(), source=str(path))
        found.setdefault(int(path.parent.name.rpartition("-")[2]), []).extend(reader.batches())
        assert not reader.damage
        assert reader.torn_tail is None
    return {at: pa.Table.from_batches(batches, SEGMENT_SCHEMA) for at, batches in sorted(found.items())}


@cache
def capture_records(name: str, topic: str = "__consumer_offsets") -> dict[int, pa.Table]:
    """The records of a recorded log by log partition, as the table `log` takes them in: R11 of producer ids."""
    records = segment_records(CAPTURES / name / "segments", topic)
    return {at: _of_transactions(of_partition) for at, of_partition in records.items()}


def capture_log(name: str, topic: str = "__consumer_offsets") -> pa.Table:
    """The rows of the table `log` with a recorded log."""
    return pa.concat_tables(log_table(records, at) for at, records in capture_records(name, topic).items())


def _of_transactions(records: pa.Table) -> pa.Table:
    matters = pc.or_(records["is_transactional"], records["control_type"].is_valid())
    for name in ("producer_id", "producer_epoch"):
        index = records.schema.get_field_index(name)
        none = pa.scalar(None, records.schema.field(name).type)
        records = records.set_column(index, records.schema.field(name), pc.if_else(matters, records[name], none))
    return records


def _create(folder: Path, table: Table, properties: Mapping[str, str]) -> None:
    """The first commit of a table: deltalake itself would not take the program's own properties."""
    (folder / "_delta_log").mkdir(parents=True)
    actions = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": table.name,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": from_arrow_schema(table.arrow_schema()).json(),
                "partitionColumns": [],
                "configuration": dict(properties),
                "createdTime": 0,
            }
        },
    ]
    (folder / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))
