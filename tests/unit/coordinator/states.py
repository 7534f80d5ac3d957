"""Short names for tests of the coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from offsets_pipeline.errors import OffsetsError
from offsets_pipeline.semantics.partition_state import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from offsets_pipeline.semantics.log_row import LogRow

ROW_SCHEMA = pa.schema(
    {
        "log_partition": pa.int32(),
        "record_offset": pa.int64(),
        "key": pa.binary(),
        "value": pa.binary(),
        "producer_id": pa.int64(),
        "control_type": pa.string(),
    }
)


def table_of(rows: Sequence[LogRow]) -> pa.Table:
    """The rows as the coordinator reads them from its log."""
    columns = [pa.array([getattr(row, field.name) for row in rows], field.type) for field in ROW_SCHEMA]
    return pa.Table.from_arrays(columns, schema=ROW_SCHEMA)


def calls(*asked: Callable[[], object]) -> tuple[Callable[[], object], ...]:
    """The questions, for a loop over them."""
    return asked


def at(topic: str = "t", partition: int = 0) -> TopicPartition:
    """A partition of a topic."""
    return TopicPartition(topic, partition)


def refusal(call: Callable[..., object], *arguments: object, **options: object) -> str:
    """Kafka's name of the error that a call raises; empty if it succeeds."""
    try:
        call(*arguments, **options)
    except OffsetsError as error:
        return error.kafka_name or type(error).__name__
    return ""
