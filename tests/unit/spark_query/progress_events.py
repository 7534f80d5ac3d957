"""Progress events as Spark posts them."""

from __future__ import annotations

import uuid
from typing import Any

from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryProgress

from tests.unit.spark_query.checkpoints import QUERY_ID

#: What Spark says of a Kafka source.
KAFKA = "KafkaV2[Subscribe[orders]]"


def progress(
    batch_id: int,
    *ends: str,
    query_id: str = QUERY_ID,
    name: str | None = None,
    description: str = KAFKA,
    **more: object,
) -> QueryProgressEvent:
    """A progress event, as Spark's JSON has it."""
    source = {"startOffset": None, "latestOffset": None, "numInputRows": 1} | {
        "description": description,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
    }
    found: dict[str, Any] = {
        "id": query_id,
        "runId": str(uuid.uuid4()),
        "name": name,
        "timestamp": "2026-11-22T17:00:00.000Z",
        "batchId": batch_id,
        "batchDuration": 5,
        "durationMs": {"addBatch": 3, "commitOffsets": 1},
        "eventTime": {},
        "stateOperators": [],
        "sources": [source | {"endOffset": end} for end in ends],
        "sink": {"description": "sink", "numOutputRows": 1},
        "numInputRows": 1,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
        "observedMetrics": {},
    }
    return QueryProgressEvent(StreamingQueryProgress.fromJson(found | more))
