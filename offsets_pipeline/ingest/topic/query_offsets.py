"""Offsets of a query that reads a topic: of a batch that is planned, and of the last one that is done."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from offsets_pipeline.ingest.topic.record_batch_source import parsed

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql.streaming.query import StreamingQuery

    from offsets_pipeline.broker.fetch import Position


def planned_ends(checkpoint: Path, batch_id: int) -> dict[int, Position]:
    """By log partition, the end of a batch. Spark writes it to the query's checkpoint before it runs the batch."""
    of_source = (checkpoint / "offsets" / str(batch_id)).read_text(encoding="utf-8").splitlines()[-1]
    return parsed(json.loads(of_source))


def last_ends(query: StreamingQuery) -> dict[int, Position]:
    """By log partition, the end of the query's last batch; the log holds this batch."""
    progress: Any = query.lastProgress
    found: dict[int, Position] = {}
    for source in progress["sources"] if progress else ():
        ends = source["endOffset"]
        ends = json.loads(ends) if isinstance(ends, str) else ends
        found |= parsed(ends or {})
    return found
