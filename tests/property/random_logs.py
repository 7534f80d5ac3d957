"""Random logs and random ways to deliver them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from hypothesis import strategies as st

from offsets_pipeline.semantics.log_row import ABORT, COMMIT, LogRow
from tests.logs import NO_TOPIC_ID, commit_key, commit_value, group_key, group_value

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUPS = ["g", "h", "ü-\U0001f600"]
TOPICS = ["t", "u"]
PRODUCERS = [7, 8]
MEMBERS = ["m", "n"]
TOPIC_IDS = [None, NO_TOPIC_ID, "AAAAAAAAAAAAAAAAAAAAAQ"]
TIMESTAMPS = [-1, 0, 1_700_000_000_000, 2**63 - 1]
GROUP_TYPES = [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 19, 20, 21, 22, 23]
FREQUENT_GROUP_TYPES = [2, 3, 5, 8, 10, 11, 16, 17, 19]
EPOCH_FIELDS = {3: "epoch", 11: "epoch", 17: "epoch", 2: "generation", 5: "rebalance_timeout_ms", 8: "member_epoch"}


class Record(NamedTuple):
    """A row of the log that has no record offset yet."""

    key: bytes | None
    value: bytes | None
    producer_id: int | None = None
    control_type: str | None = None


maybe_producer = st.sampled_from([None, None, *PRODUCERS])
group_ids = st.sampled_from(GROUPS)


@st.composite
def commit_keys(draw: st.DrawFn, key_version: int | None = None) -> bytes:
    version = draw(st.sampled_from([1, 1, 0])) if key_version is None else key_version
    return commit_key(draw(group_ids), draw(st.sampled_from(TOPICS)), draw(st.integers(0, 1)), version=version)


@st.composite
def commit_values(draw: st.DrawFn, version: int) -> bytes:
    fields: dict[str, object] = {
        "metadata": draw(st.sampled_from(["", "meta", "größe"])),
        "commit_timestamp": draw(st.sampled_from(TIMESTAMPS)),
    }
    if version == 1:
        fields["expire_timestamp"] = draw(st.sampled_from([None, *TIMESTAMPS[1:]]))
    if version >= 3:
        fields["leader_epoch"] = draw(st.sampled_from([None, 0, 5]))
    if version == 4:
        fields["topic_id"] = draw(st.sampled_from(TOPIC_IDS))
    return commit_value(draw(st.integers(-1, 50)), version, **fields)


@st.composite
def commits(draw: st.DrawFn) -> Record:
    key_version = draw(st.sampled_from([1, 1, 1, 0]))
    version = draw(st.integers(0, 4)) if key_version else 0
    return Record(draw(commit_keys(key_version)), draw(commit_values(version)), draw(maybe_producer))


tombstones = st.builds(Record, commit_keys(), st.none(), maybe_producer)
markers = st.builds(
    Record,
    st.just(bytes(4)),
    st.just(bytes(6)),
    st.sampled_from(PRODUCERS),
    st.sampled_from([COMMIT, COMMIT, ABORT, "OTHER"]),
)


@st.composite
def group_records(draw: st.DrawFn) -> Record:
    record_type = draw(st.sampled_from(FREQUENT_GROUP_TYPES) | st.sampled_from(GROUP_TYPES))
    key = group_key(record_type, draw(group_ids), draw(st.sampled_from(MEMBERS)))
    if draw(st.booleans()):
        return Record(key, None)
    fields = {EPOCH_FIELDS[record_type]: draw(st.integers(0, 3))} if record_type in EPOCH_FIELDS else {}
    return Record(key, group_value(record_type, **fields))


unknown_records = st.builds(
    Record,
    st.sampled_from([18, 24, 99, 32767, -1]).map(lambda each: each.to_bytes(2, "big", signed=True) + b"rest"),
    st.none() | st.just(b"anything"),
    maybe_producer,
)


@st.composite
def damaged_records(draw: st.DrawFn) -> Record:
    """A record without a key, cut short, or with a bit flipped; some of them decode all the same."""
    record = draw(st.one_of(commits(), tombstones, group_records()))
    assert record.key is not None
    how = draw(st.sampled_from(["no key", "cut key", "cut value", "flip key", "flip value"]))
    if how == "no key":
        return record._replace(key=None)
    if how == "cut key":
        return record._replace(key=record.key[: draw(st.integers(0, len(record.key) - 1))])
    if how == "flip key":
        return record._replace(key=draw(_flipped(record.key)))
    if record.value is None:
        return record
    if how == "cut value":
        return record._replace(value=record.value[: draw(st.integers(0, len(record.value) - 1))])
    return record._replace(value=draw(_flipped(record.value)))


@st.composite
def _flipped(draw: st.DrawFn, data: bytes) -> bytes:
    at = draw(st.integers(0, len(data) * 8 - 1))
    changed = bytearray(data)
    changed[at // 8] ^= 1 << at % 8
    return bytes(changed)


records = st.one_of(commits(), commits(), tombstones, markers, group_records(), unknown_records, damaged_records())


@dataclass
class Log:
    """The rows of some log partitions."""

    partitions: dict[int, list[LogRow]] = field(default_factory=dict)

    def rows(self) -> list[LogRow]:
        return [row for rows in self.partitions.values() for row in rows]


@st.composite
def logs(draw: st.DrawFn, log_partitions: int = 1, max_records: int = 25) -> Log:
    """Records of any sort, in any log partition: most groups are misplaced in one of two."""
    log = Log()
    for record in draw(st.lists(records, min_size=1, max_size=max_records)):
        at = draw(st.integers(0, log_partitions - 1)) if log_partitions > 1 else 0
        rows = log.partitions.setdefault(at, [])
        offset = rows[-1].record_offset + 1 if rows else 0
        rows.append(LogRow(at, offset + draw(st.sampled_from([0, 0, 0, 3])), *record))
    return log


@dataclass
class Batch:
    """Rows in the order in which they are delivered, and how many of them at once."""

    rows: Sequence[LogRow]
    chunk_rows: int


@st.composite
def deliveries(draw: st.DrawFn, log: Log) -> list[Batch]:
    """Batches that bring every row at least once, each with all that is new up to somewhere.

    Rows that were brought before come again; within a batch, rows come in any order.
    """
    done = dict.fromkeys(log.partitions, 0)
    batches: list[Batch] = []
    while any(done[at] < len(rows) for at, rows in log.partitions.items()):
        last = len(batches) >= 6
        batch: list[LogRow] = []
        for at, rows in log.partitions.items():
            left = len(rows) - done[at]
            taken = left if last else draw(st.integers(0, left))
            again = draw(st.integers(0, done[at])) if draw(st.booleans()) else 0
            batch += rows[done[at] - again : done[at] + taken]
            done[at] += taken
        if draw(st.booleans()):
            batch = draw(st.permutations(batch))
        batches.append(Batch(batch, draw(st.sampled_from([1, 3, 1000]))))
    return batches
