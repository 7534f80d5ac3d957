"""Commits of a producer id outside a transaction, as an idempotent producer of a tool writes them (R11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from offsets_pipeline.cli import main
from tests.kafka.answers import offset_answer
from tests.logs import commit_key, commit_value
from tests.record_batches import BatchOptions, encode_batch, encode_control_batch
from tests.spark.segments import write_segment
from tests.spark.stores import described_offsets

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kafka.brokers import KafkaJvm
    from tests.spark.stores import Workbench

#: Committed offset of t-0 by group.
BOTH = {"ended": 33}
MODERN, CLASSIC = BOTH | {"known": 5}, BOTH | {"known": 99, "new": 7}


def commits(first: int, offsets: dict[str, int | None], producer_id: int = -1, sequence: int = -1) -> bytes:
    """A batch that is not transactional; None deletes the offset."""
    return encode_batch(
        pa.array([commit_key(group) for group in offsets], pa.binary()),
        pa.array([None if offset is None else commit_value(offset) for offset in offsets.values()], pa.binary()),
        base_offset=first,
        offsets=np.arange(first, first + len(offsets), dtype=np.int64),
        timestamps=1_700_000_000_000,
        options=BatchOptions(
            producer_id=producer_id, producer_epoch=min(producer_id, 0), base_sequence=min(producer_id, sequence)
        ),
    )


@pytest.mark.parametrize(("release", "expected"), [("4.2", MODERN), ("3.9", CLASSIC)])
def test_they_wait_for_a_marker_as_at_the_broker(
    kafka: KafkaJvm,
    classic_kafka: KafkaJvm,
    workbench: Workbench,
    tmp_path: Path,
    release: str,
    expected: dict[str, int],
) -> None:
    """Needs a broker of each release that loads the segment, and Spark to ingest it."""
    batches = [
        commits(0, {"known": 5, "deleted": 4, "ended": 3}),
        commits(3, {"known": 99, "new": 7}, 4000, 0),
        commits(5, {"deleted": None}, 4000, 2),
        commits(6, {"ended": 33}, 4001, 0),
        encode_control_batch(offset=7, commit=True, producer_id=4001),
    ]
    write_segment(tmp_path / "log", 0, b"".join(batches))
    with (kafka if release == "4.2" else classic_kafka).broker(tmp_path / "log", 1) as broker:
        answered = broker.offsets(["known", "deleted", "ended", "new"])
        stable = {group: broker.stable_offsets(group) for group in ("known", "ended", "new")}
        semantics = "modern" if release == "4.2" else "classic"
        store = str(tmp_path / "store")
        at = ["--store", store, "--offsets-partitions", "1", "--coordinator-semantics", semantics]
        assert main(["ingest-segments", *at, str(tmp_path / "log")]) == 0
        workbench.fold(store)
        assert main(["verify", "--store", store, "--against", broker.address()]) == 0
    assert {group: offsets for group, offsets in answered.items() if offsets} == {
        group: [offset_answer("t", 0, offset, None, "")] for group, offset in expected.items()
    }
    assert described_offsets(store) == [(group, "t", 0, offset) for group, offset in sorted(expected.items())]
    waiting = {"known", "new"} if release == "4.2" else set()
    assert {group for group, offsets in stable.items() if not offsets} == waiting
    unstable = workbench.sql(store, "SELECT group_id FROM unstable_offsets")
    assert {row["group_id"] for row in unstable} == waiting
