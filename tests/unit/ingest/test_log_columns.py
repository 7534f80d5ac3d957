"""Which producer ids of a segment the log has (R11)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from offsets_pipeline.ingest.log_columns import log_columns
from offsets_pipeline.kafka.record.segment import read_segment
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from tests.record_batches import BatchOptions, encode_batch, encode_control_batch

PLAIN = BatchOptions()
IDEMPOTENT = BatchOptions(producer_id=7, producer_epoch=1, base_sequence=0)
TRANSACTIONAL = BatchOptions(producer_id=8, producer_epoch=2, base_sequence=0, is_transactional=True)


@pytest.mark.parametrize(
    ("kind", "semantics", "idempotent"),
    [
        (TopicKind.CONSUMER_OFFSETS, MODERN, (7, 1)),
        (TopicKind.CONSUMER_OFFSETS, CoordinatorSemantics.CLASSIC, (None, None)),
        (TopicKind.SHARE_STATE, MODERN, (None, None)),
        (TopicKind.CONNECT_OFFSETS, MODERN, (None, None)),
    ],
)
def test_producer_ids_that_make_a_record_wait(
    kind: TopicKind, semantics: CoordinatorSemantics, idempotent: tuple[int | None, int | None]
) -> None:
    one = pa.array([b"{}"], pa.binary())
    batches = [
        encode_batch(one, one, base_offset=at, offsets=np.array([at]), timestamps=0, options=options)
        for at, options in enumerate((PLAIN, IDEMPOTENT, TRANSACTIONAL))
    ]
    batches.append(encode_control_batch(offset=3, commit=True, producer_id=8, producer_epoch=2))
    properties = StoreProperties(MIRRORED, 1, coordinator_semantics=semantics, topic_kind=kind)
    read = read_segment(b"".join(batches), source="segment").batches()
    rows = pa.Table.from_batches([log_columns(each, 0, "segment", properties) for each in read]).to_pylist()
    found = [(each["producer_id"], each["producer_epoch"]) for each in rows]
    assert found == [(None, None), idempotent, (8, 2), (8, 2)]
