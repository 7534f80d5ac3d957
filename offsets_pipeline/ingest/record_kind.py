"""Checks by its first keys that a source holds the expected records, before an ingest creates anything."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from offsets_pipeline.errors import WrongRecords
from offsets_pipeline.kafka.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.kafka.record.decode import decode_key
from offsets_pipeline.semantics.connect_keys import parse_connect_key
from offsets_pipeline.semantics.share_state import is_share_key
from offsets_pipeline.semantics.topic_kind import TopicKind

#: How many records of each log partition the check reads.
LOOK_RECORDS = 20
# A newer coordinator may write record types up to here. The first two bytes of a text key make a larger number.
_TYPES_TO_COME = range(256)
_SHOWN_BYTES = 40


class RecordKey(NamedTuple):
    """One of the first records of a log partition; never a control record."""

    log_partition: int
    record_offset: int
    key: bytes | None


@dataclass(frozen=True)
class RecordKind:
    """The records of a kind of topic.

    ``name`` and ``remedy`` are parts of the error message; ``is_key`` recognises the keys of such records.
    """

    name: str
    remedy: str
    is_key: Callable[[bytes | None], bool]

    def matches(self, records: Collection[RecordKey]) -> bool:
        """Whether at least half of these records are of this kind."""
        return 2 * sum(self.is_key(record.key) for record in records) >= len(records)

    def require(self, where: str, records: Collection[RecordKey]) -> None:
        """Raise WrongRecords if more than half of these records are of another kind."""
        if not self.matches(records):
            others = [record for record in records if not self.is_key(record.key)]
            first = min(others, key=lambda record: record[:2])
            key = "no key" if first.key is None else f"the key {first.key[:_SHOWN_BYTES]!r}"
            raise WrongRecords(
                f"{where} does not have {self.name}: {len(others)} of the first {len(records)} records are others "
                f"(record {first.record_offset} of partition {first.log_partition} has {key}); {self.remedy}"
            )


def is_offsets_key(key: bytes | None) -> bool:
    """Whether a group coordinator of this or a newer version may have written this key (R5, R6)."""
    try:
        decode_key(key)
    except CorruptRecord:
        return False
    except UnknownRecordType as unknown:
        return unknown.record_type in _TYPES_TO_COME
    return True


def _is_connect_key(kind: TopicKind, key: bytes | None) -> bool:
    """Whether a worker may have written this key to such a topic."""
    try:
        return parse_connect_key(key, kind) is not None
    except CorruptRecord:
        return False


#: Kinds of a worker's topics and what they hold, by the end of their names (connect-cluster-offsets, worker-config), in
#: the singular, which begins the name of the worker's setting, too.
_CONNECT_KINDS = {
    "offset": (TopicKind.CONNECT_OFFSETS, "offsets"),
    "status": (TopicKind.CONNECT_STATUS, "states"),
    "config": (TopicKind.CONNECT_CONFIGS, "configurations"),
}
#: Kinds of topics that can be mirrored, in the order in which an ingest tries them.
RECORD_KINDS = {
    TopicKind.CONSUMER_OFFSETS: RecordKind(
        "records of a group coordinator", "name __consumer_offsets, or a copy of its log", is_offsets_key
    ),
    **{
        kind: RecordKind(
            f"{held} of Kafka Connect", f"name the worker's {part}.storage.topic", partial(_is_connect_key, kind)
        )
        for part, (kind, held) in _CONNECT_KINDS.items()
    },
    TopicKind.SHARE_STATE: RecordKind(
        "records of a share coordinator", "name __share_group_state, or a copy of its log", is_share_key
    ),
}


def topic_kind_of(
    where: str, topic: str, records: Collection[RecordKey], expected: TopicKind | None = None
) -> TopicKind:
    """The kind of a topic by its first records; by the end of its name if it has none.

    Args:
        where: the source, for the error message.
        topic: the topic's name.
        records: its first records.
        expected: the kind that the store holds; None for a new store.

    Raises WrongRecords if the records are of no known kind, or not of the expected one, and for a topic that has no
    records and another name.
    """
    if expected is None and not records:
        return _kind_of_name(where, topic)
    matching = (kind for kind, each in RECORD_KINDS.items() if each.matches(records))
    kind = expected or next(matching, TopicKind.CONSUMER_OFFSETS)
    RECORD_KINDS[kind].require(where, records)
    return kind


def _kind_of_name(where: str, topic: str) -> TopicKind:
    """The kind of a topic without records. A copy of __consumer_offsets may have any prefix."""
    if topic.endswith("__consumer_offsets"):
        return TopicKind.CONSUMER_OFFSETS
    if topic.endswith("__share_group_state"):
        return TopicKind.SHARE_STATE
    for end, (kind, _) in _CONNECT_KINDS.items():
        if topic.endswith((end, f"{end}s")):
            return kind
    raise WrongRecords(
        f"{where} has no records, and the end of its name is not offsets, status or configs: its kind is unknown; try "
        "again when it has a record"
    )
