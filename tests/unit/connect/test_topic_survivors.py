"""A cleaned log of a topic of Connect replays to the same state (R23, R30)."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from offsets_pipeline.semantics.log_row import ABORT, COMMIT
from offsets_pipeline.semantics.survivors import SCHEMA, topic_survivors
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.semantics.topic_state import ConnectRow, TopicPartitionState

KIND = TopicKind.CONNECT_OFFSETS
A, B = b'["c",{"f":"a"}]', b'["c", {"f":"a"}]'  # one identity
_ROWS = st.lists(
    st.tuples(
        st.sampled_from([A, B, b'["d",null]', b'["d"]', b"x", None]),
        st.sampled_from([b'{"p":1}', b'{"p":2}', None, b"null", b"{"]),
        st.sampled_from([None, None, 7, 8]),
        st.sampled_from([None, None, COMMIT, ABORT, "OTHER"]),
    ),
    min_size=1,
    max_size=40,
)


def cleaned(rows: list[ConnectRow], up_to: int, aged_to: int) -> list[ConnectRow]:
    """The rows that a cleaning below ``up_to`` keeps."""
    below = [row for row in rows if row.record_offset < up_to]
    table = pa.Table.from_pylist(
        [{**row._asdict(), "aged": row.record_offset < aged_to} for row in below],
        schema=SCHEMA,
    )
    stays = topic_survivors(table, KIND).tolist()
    return [row for row, each in zip(below, stays, strict=True) if each] + rows[len(below) :]


def said(rows: list[ConnectRow]) -> tuple[object, ...]:
    """What a replay makes of rows."""
    state = TopicPartitionState(KIND)
    for row in rows:
        state.replay(row)
    return state.records, {producer: each for producer, each in state.pending.items() if each}


@settings(max_examples=150)
@given(drawn=_ROWS, data=st.data())
def test_a_cleaned_log_gives_the_same_whatever_follows(
    drawn: list[tuple[bytes | None, bytes | None, int | None, str | None]], data: st.DataObject
) -> None:
    rows = [
        ConnectRow(0, offset, 1000 - offset, key, value, producer, None if producer is None else control)
        for offset, (key, value, producer, control) in enumerate(drawn)
    ]
    up_to, aged_to = (data.draw(st.integers(0, len(rows))) for _ in range(2))
    kept = cleaned(rows, up_to, aged_to)
    for end in range(up_to, len(rows) + 1):
        assert said([row for row in kept if row.record_offset < end]) == said(rows[:end])
    again = cleaned(kept, up_to, aged_to)
    assert said(again) == said(rows)


def test_one_record_of_each_raw_key_stays() -> None:
    def row(offset: int, key: bytes | None, value: bytes | None, producer: int | None = None) -> ConnectRow:
        return ConnectRow(0, offset, offset, key, value, producer, None)

    rows = [
        row(0, A, b'{"p":1}'),
        row(1, B, b'{"p":2}'),
        row(2, A, None),
        row(3, b"x", b"1"),
        row(4, b"x", b"2"),
        row(5, b'["d",null]', b'{"p":3}', 7),
        ConnectRow(0, 6, 6, None, None, 7, ABORT),
        row(7, b'["d",null]', b'{"p":4}', 8),
        ConnectRow(0, 8, 8, None, None, 8, COMMIT),
    ]
    assert [each.record_offset for each in cleaned(rows, 9, 9)] == [1, 2, 4, 7, 8]
    assert [each.record_offset for each in cleaned(rows, 9, 0)] == [1, 2, 4, 6, 7, 8]  # the producer's epoch


def test_record_stays_behind_one_of_a_transaction_that_is_open_or_aborted() -> None:
    plain = ConnectRow(0, 0, 0, A, b'{"p":1}', None, None)
    of_transaction = ConnectRow(0, 1, 1, A, b'{"p":2}', 7, None)
    for marker, stay in ((None, [0, 1]), (ABORT, [0]), (COMMIT, [1, 2])):
        rows = [plain, of_transaction, *([ConnectRow(0, 2, 2, None, None, 7, marker)] if marker else [])]
        assert [each.record_offset for each in cleaned(rows, 3, 3)] == stay
