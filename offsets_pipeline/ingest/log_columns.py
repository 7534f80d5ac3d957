"""Records of segments, from files and from a broker, with the columns of the table `log` that their source provides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.connect.redaction import redacted_values
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.schemas import LOG, RECORD_COLUMNS

if TYPE_CHECKING:
    from offsets_pipeline.store.delta.properties import StoreProperties

#: These columns, which all may be null here.
LOG_COLUMNS = pa.schema([(name, LOG.arrow_schema().field(name).type) for name in (*RECORD_COLUMNS, "source")])


def log_columns(batch: pa.RecordBatch, log_partition: int, source: str, properties: StoreProperties) -> pa.RecordBatch:
    """Records in SEGMENT_SCHEMA as LOG_COLUMNS, for a store with these properties; secrets are left out.

    The log has the producer ids that make a record wait for a marker (R11), and those of markers.
    """
    values = batch["value"].cast(pa.binary())
    if properties.topic_kind is TopicKind.CONNECT_CONFIGS:
        control = pc.is_valid(batch["control_type"])
        values = pc.if_else(control, values, redacted_values(batch["key"], values))
    rows = batch.num_rows
    if properties.topic_kind is TopicKind.CONSUMER_OFFSETS and not properties.coordinator_semantics.is_classic:
        waits = pa.scalar(value=True)  # R11: `modern` does not look whether the batch is transactional
    else:
        waits = pc.or_(batch["is_transactional"], batch["control_type"].is_valid())
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(log_partition, pa.int32()), rows),
            batch["record_offset"],
            batch["record_timestamp"].cast(pa.timestamp("us", tz="UTC")),
            batch["key"].cast(pa.binary()),
            values,
            pc.if_else(waits, batch["producer_id"], pa.scalar(None, pa.int64())),
            pc.if_else(waits, batch["producer_epoch"], pa.scalar(None, pa.int16())),
            batch["control_type"],
            pa.repeat(pa.scalar(source), rows),
        ],
        schema=LOG_COLUMNS,
    )
