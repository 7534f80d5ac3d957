"""Checkpoints for tests, in the files that Spark writes (OffsetSeqLog and CommitLog in its source)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

QUERY_ID = "6f0b1e1c-7c1e-4d2c-9d53-3f1d6b3a2a11"
BEGAN_MS = 1_795_000_000_000


def time_of(batch_id: int) -> int:
    """The time of a batch, in ms since 1970."""
    return BEGAN_MS + 1_000 * batch_id


def kafka(**offsets: Sequence[int]) -> str:
    """The JSON of a Kafka source: by topic the offsets of partitions 0, 1, ..."""
    found = {topic: {str(at): offset for at, offset in enumerate(each)} for topic, each in offsets.items()}
    return json.dumps(found, separators=(",", ":"))


class WrittenCheckpoint:
    """A checkpoint folder, written batch by batch."""

    def __init__(self, folder: Path, query_id: str | None = QUERY_ID) -> None:
        self.folder = folder
        for name in ("offsets", "commits"):
            (folder / name).mkdir(parents=True)
        if query_id is not None:
            (folder / "metadata").write_text(json.dumps({"id": query_id}))

    def plan(self, batch_id: int, sources: Sequence[str] | Mapping[str, str]) -> None:
        """Write the offsets of a batch: by position as version 1, by name as version 2."""
        metadata = {"batchWatermarkMs": 0, "batchTimestampMs": time_of(batch_id), "conf": {}}
        named = isinstance(sources, dict)
        lines = [f"{name}:{offset}" for name, offset in sources.items()] if isinstance(sources, dict) else list(sources)
        head = ["v2" if named else "v1", json.dumps(metadata)]
        (self.folder / "offsets" / str(batch_id)).write_text("\n".join([*head, *lines]))

    def complete(self, batch_id: int, sources: Sequence[str] | Mapping[str, str]) -> None:
        """Plan a batch, and write its commit."""
        self.plan(batch_id, sources)
        (self.folder / "commits" / str(batch_id)).write_text('v1\n{"nextBatchWatermarkMs":0}')
