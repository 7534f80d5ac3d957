"""Records of segments, from files and from a broker, with the columns of the table `log` that their source provides."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.connect.redaction import redacted_values
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.schemas import LOG, RECORD_COLUMNS

#: These columns, which all may be null here.
LOG_COLUMNS = pa.schema([(name, LOG.arrow_schema().field(name).type) for name in (*RECORD_COLUMNS, "source")])


def log_columns(batch: pa.RecordBatch, log_partition: int, source: str, kind: TopicKind) -> pa.RecordBatch:
    """Records in SEGMENT_SCHEMA as LOG_COLUMNS; secrets of such a topic are left out."""
    values = batch["value"].cast(pa.binary())
    if kind is TopicKind.CONNECT_CONFIGS:
        control = pc.is_valid(batch["control_type"])
        values = pc.if_else(control, values, redacted_values(batch["key"], values))
    # A replay needs producer ids only for transactions (R11).
    matters = pc.or_(batch["is_transactional"], batch["control_type"].is_valid())
    rows = batch.num_rows
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(log_partition, pa.int32()), rows),
            batch["record_offset"],
            batch["record_timestamp"].cast(pa.timestamp("us", tz="UTC")),
            batch["key"].cast(pa.binary()),
            values,
            pc.if_else(matters, batch["producer_id"], pa.scalar(None, pa.int64())),
            pc.if_else(matters, batch["producer_epoch"], pa.scalar(None, pa.int16())),
            batch["control_type"],
            pa.repeat(pa.scalar(source), rows),
        ],
        schema=LOG_COLUMNS,
    )
