"""Random logs, one generator for all tests.

`random_log` draws from a `random.Random`: with a seed, for logs of any length, or from hypothesis, which shrinks its
draws (`logs`). A `Shape` gives the kinds of records and their frequencies.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st

from offsets_pipeline.kafka.record.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from offsets_pipeline.kafka.record.message_types import MESSAGE_TYPES
from offsets_pipeline.semantics.group_types import GROUP_TYPE_OF_RECORD_TYPE
from offsets_pipeline.semantics.log_row import ABORT, COMMIT, LogRow
from offsets_pipeline.semantics.partitioning import partition_for
from tests.logs import NO_TOPIC_ID, LogPartition, commit_key, commit_value, group_key, group_value
from tests.member_bytes import subscription

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from random import Random

MANY = [f"group-{number}" for number in range(12)] + ["ü-\U0001f600", ""]
TOPIC_IDS = [None, NO_TOPIC_ID, "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"]
UNUSED_TYPE = 9
NAMING_TYPES = (4, 9, 15)
GROUP_RECORD_TYPES = [*GROUP_TYPE_OF_RECORD_TYPE, UNUSED_TYPE]
FREQUENT_RECORD_TYPES = [2, 3, 5, 8, 10, 11, 15, 16, 17, 19]
UNKNOWN_TYPES = [18, 24, 99, 32767, -1]
#: The types of the records of a group and of a member, in the order in which a coordinator writes them.
CONSUMER_TYPES, CONSUMER_MEMBER_TYPES = (3, 6), (5, 7, 8)
SHARE_TYPES, SHARE_MEMBER_TYPES = (11, 12), (10, 13, 14)
STREAMS_TYPES, STREAMS_MEMBER_TYPES = (17, 23, 20), (19, 21, 22)

#: What a coordinator of 4.x writes, removing what it made, with how often.
WRITTEN_BY_COORDINATOR = {
    "commit": 6,
    "tombstone": 2,
    "marker": 4,
    "classic": 2,
    "consumer": 2,
    "leave": 2,
    "remove": 2,
}
#: That, groups of every type in any order, and what no broker writes.
EVERYTHING = {
    **WRITTEN_BY_COORDINATOR,
    "commit": 16,
    "tombstone": 5,
    "marker": 5,
    "share": 1,
    "streams": 1,
    "group record": 5,
    "group tombstone": 3,
    "unknown": 1,
    "damaged": 2,
    "gap": 2,
    "other control record": 1,
}


@dataclass(frozen=True)
class Shape:
    """Kinds of records in random logs, and their frequencies.

    ``strays`` is the share of groups in a wrong log partition (R1). None puts each record in any log partition.
    """

    steps: Mapping[str, int] = field(default_factory=lambda: EVERYTHING)
    groups: Sequence[str] = ("g", "h", "ü-\U0001f600")
    topics: Sequence[str] = ("t", "u")
    topic_partitions: int = 2
    producers: Sequence[int] = (7, 8)
    members: Sequence[str] = ("m", "n")
    times_ms: Sequence[int] = (-1, 0, 1_700_000_000_000, 2**63 - 1)
    expire_times_ms: Sequence[int] = (0, 1_700_000_000_000, 2**63 - 1)
    log_partitions: int = 1
    tombstones_in_transactions: bool = True
    strays: float | None = None


ANY = Shape()
#: One log partition as a coordinator writes it.
LEGAL = Shape(steps=WRITTEN_BY_COORDINATOR, groups=("g", "h"), topics=("t",), tombstones_in_transactions=False)


#: Anything, about one offset of one group.
NARROW = Shape(groups=("g",), topics=("t",), topic_partitions=1)
#: Anything that segments can hold, in three log partitions.
IN_SEGMENTS = Shape(
    steps={step: weight for step, weight in EVERYTHING.items() if step != "other control record"},
    groups=MANY,
    log_partitions=3,
    strays=0.3,
)


def several(log_partitions: int) -> Shape:
    """Anything, in several log partitions: most groups are misplaced in one of them."""
    return replace(ANY, log_partitions=log_partitions)


@dataclass
class Log:
    """The rows of some log partitions."""

    partitions: dict[int, list[LogRow]] = field(default_factory=dict)

    def rows(self) -> list[LogRow]:
        """All rows, of one log partition after the other."""
        return [row for rows in self.partitions.values() for row in rows]


class LogWriter:
    """Writes random records, a step at a time, and knows the groups that it made: it removes them as brokers of 4.x."""

    def __init__(self, shape: Shape, chosen: Random) -> None:
        self._shape = shape
        self._chosen = chosen
        self._steps = [step for step, weight in shape.steps.items() for _ in range(weight)]
        self._logs = [LogPartition(number) for number in range(shape.log_partitions)]
        self._classic: set[tuple[int, str]] = set()  # log partition and group
        self._members: dict[tuple[int, str], set[str]] = {}  # of consumer groups
        self._places: dict[str, int] = {}
        self._number = 0

    @property
    def log(self) -> Log:
        """The records written so far."""
        return Log({log.log_partition: log.rows for log in self._logs if log.rows})

    def step(self) -> None:
        """Write the records of one step, mostly one."""
        self._number += 1
        step, group_id = self._chosen.choice(self._steps), self._chosen.choice(self._shape.groups)
        writes: dict[str, Callable[[LogPartition, str], None]] = {
            "commit": self._commit,
            "tombstone": self._tombstone,
            "marker": self._marker,
            "other control record": self._other_control,
            "classic": self._join_classic,
            "consumer": self._join_consumer,
            "share": partial(self._describe, of_group=SHARE_TYPES, of_member=SHARE_MEMBER_TYPES),
            "streams": partial(self._describe, of_group=STREAMS_TYPES, of_member=STREAMS_MEMBER_TYPES),
            "leave": self._leave_consumer,
            "remove": self._remove,
            "group record": self._any_group_record,
            "group tombstone": self._any_group_tombstone,
            "unknown": self._unknown,
            "damaged": self._damaged,
            "gap": self._gap,
        }
        writes[step](self._log_of(group_id), group_id)

    def _log_of(self, group_id: str) -> LogPartition:
        if len(self._logs) == 1:
            return self._logs[0]
        if self._shape.strays is None:
            return self._chosen.choice(self._logs)
        if group_id not in self._places:
            away = int(self._chosen.random() < self._shape.strays)
            self._places[group_id] = (partition_for(group_id, len(self._logs)) + away) % len(self._logs)
        return self._logs[self._places[group_id]]

    def _maybe_producer(self) -> int | None:
        return self._chosen.choice(self._shape.producers) if self._chosen.choice([False, True]) else None

    def _time(self) -> int:
        return self._chosen.choice(self._shape.times_ms)

    # --- offsets

    def _commit_key(self, group_id: str, version: int) -> bytes:
        topic, partition = self._chosen.choice(self._shape.topics), self._chosen.randrange(self._shape.topic_partitions)
        return commit_key(group_id, topic, partition, version=version)

    def _commit(self, log: LogPartition, group_id: str) -> None:
        key_version = self._chosen.choice([1, 1, 1, 0])
        value = self._commit_value(self._chosen.randrange(5) if key_version else 0)
        log.record(self._commit_key(group_id, key_version), value, self._maybe_producer())

    def _commit_value(self, version: int) -> bytes:
        chosen = self._chosen
        fields: dict[str, object] = {
            "metadata": chosen.choice(["", "meta", "größe"]),
            "commit_timestamp": self._time(),
        }
        if version == 1:
            fields["expire_timestamp"] = chosen.choice([None, *self._shape.expire_times_ms])
        if version >= 3:
            fields["leader_epoch"] = chosen.choice([None, 0, 5])
        if version == 4:
            fields["topic_id"] = chosen.choice(TOPIC_IDS)
        return commit_value(chosen.randrange(-1, 50), version, **fields)

    def _tombstone(self, log: LogPartition, group_id: str) -> None:
        producer_id = self._maybe_producer() if self._shape.tombstones_in_transactions else None
        log.record(self._commit_key(group_id, self._chosen.choice([1, 1, 0])), None, producer_id)

    def _marker(self, log: LogPartition, _: str) -> None:
        log.marker(self._chosen.choice(self._shape.producers), self._chosen.choice([COMMIT, COMMIT, ABORT]))

    def _other_control(self, log: LogPartition, _: str) -> None:
        log.marker(self._chosen.choice(self._shape.producers), "OTHER")

    def _gap(self, log: LogPartition, _: str) -> None:
        log.skip(self._chosen.randrange(1, 5))

    # --- groups

    def _any_group_record(self, log: LogPartition, group_id: str) -> None:
        self._group(log, self._record_type(), group_id, self._chosen.choice(self._shape.members))

    def _any_group_tombstone(self, log: LogPartition, group_id: str) -> None:
        log.group_tombstone(self._record_type(), group_id, self._chosen.choice(self._shape.members))

    def _record_type(self) -> int:
        return self._chosen.choice(FREQUENT_RECORD_TYPES * 2 + GROUP_RECORD_TYPES)

    def _group(self, log: LogPartition, record_type: int, group_id: str, name: str = "") -> None:
        version = self._chosen.randint(0, MESSAGE_TYPES[record_type].values[0].max_version)
        log.record(group_key(record_type, group_id, name), self._group_value(record_type, version))

    def _group_value(self, record_type: int, version: int) -> bytes:
        schema = MESSAGE_TYPES[record_type].values[0]
        fields = self._group_fields(record_type, version)
        given = {each.name for each in schema.fields if each.in_version(version)}
        return group_value(record_type, version, **{name: fields[name] for name in fields.keys() & given})

    def _group_fields(self, record_type: int, version: int) -> dict[str, Any]:
        chosen = self._chosen
        epoch = chosen.choice([0, 1, 2, self._number])
        if record_type == 2:
            return self._classic_fields(epoch, version)
        if record_type in NAMING_TYPES:
            topics = [self._named_topic(record_type) for _ in range(chosen.randrange(3))]
            return {"topics": topics, "initialized_topics": topics}
        return {
            "epoch": epoch,
            "assignment_epoch": epoch,
            "member_epoch": epoch,
            "state": chosen.choice([0, 1]),
            "subscribed_topic_names": self._some_topics(),
            "subscribed_topic_regex": chosen.choice([None, None, "x.*", "y.*"]),
            "topics": self._some_topics(),
            "subtopologies": [self._subtopology()],
            # in turns of the subtopology and of one that the topology lacks
            "active_tasks": [{"subtopology_id": str(1 + self._number % 2), "partitions": [0, 2]}],
        }

    def _classic_fields(self, generation: int, version: int) -> dict[str, Any]:
        chosen = self._chosen
        protocol_type = chosen.choice([CONSUMER_PROTOCOL_TYPE] * 3 + ["connect", ""])
        fields: dict[str, Any] = {
            "protocol_type": protocol_type,
            "generation": generation,
            "current_state_timestamp": chosen.choice([None, self._time()]),
        }
        if protocol_type and chosen.choice([False, True]):
            sent = [subscription(*self._some_topics()), b"?"]
            members = [_classic_member(name, chosen.choice(sent), version) for name in self._some(self._shape.members)]
            fields |= {"protocol": "range", "leader": "m", "members": members}
        return fields

    def _some(self, of: Sequence[str]) -> list[str]:
        return [each for each in of if self._chosen.choice([False, True])]

    def _some_topics(self) -> list[str]:
        return self._some(self._shape.topics)

    def _named_topic(self, record_type: int) -> dict[str, Any]:
        topic = {"topic_id": self._chosen.choice(TOPIC_IDS[2:]), "topic_name": self._chosen.choice(self._shape.topics)}
        return topic | ({"num_partitions": 1, "partition_metadata": []} if record_type != 15 else {"partitions": []})

    def _subtopology(self) -> dict[str, Any]:
        lists = (
            "source_topic_regex",
            "state_changelog_topics",
            "repartition_sink_topics",
            "repartition_source_topics",
            "copartition_groups",
        )
        return {"subtopology_id": "1", "source_topics": self._some_topics(), **{name: [] for name in lists}}

    def _join_classic(self, log: LogPartition, group_id: str) -> None:
        self._remove_consumer(log, group_id)
        self._classic.add((log.log_partition, group_id))
        self._group(log, 2, group_id)

    def _join_consumer(self, log: LogPartition, group_id: str) -> None:
        at, member = (log.log_partition, group_id), self._chosen.choice(self._shape.members)
        if at in self._classic:
            self._remove_classic(log, group_id)
        self._members.setdefault(at, set()).add(member)
        self._describe(log, group_id, CONSUMER_TYPES, CONSUMER_MEMBER_TYPES, [member])
        if self._chosen.choice([False, True]):
            self._group(log, 16, group_id, "x.*")

    def _describe(
        self,
        log: LogPartition,
        group_id: str,
        of_group: Sequence[int],
        of_member: Sequence[int],
        members: Sequence[str] | None = None,
    ) -> None:
        for member in self._some(self._shape.members) if members is None else members:
            for record_type in of_member:
                self._group(log, record_type, group_id, member)
        for record_type in of_group:
            self._group(log, record_type, group_id)

    def _leave_consumer(self, log: LogPartition, group_id: str) -> None:
        members = self._members.get((log.log_partition, group_id))
        if members:
            member = self._chosen.choice(sorted(members))
            members.remove(member)
            self._remove_member(log, group_id, member)
            self._group(log, CONSUMER_TYPES[0], group_id)

    def _remove_member(self, log: LogPartition, group_id: str, member: str) -> None:
        for record_type in reversed(CONSUMER_MEMBER_TYPES):
            log.group_tombstone(record_type, group_id, member)

    def _remove(self, log: LogPartition, group_id: str) -> None:
        """Remove the group; a coordinator writes the tombstone of a simple group, too."""
        if not self._remove_consumer(log, group_id):
            self._remove_classic(log, group_id)

    def _remove_classic(self, log: LogPartition, group_id: str) -> None:
        self._classic.discard((log.log_partition, group_id))
        log.group_tombstone(2, group_id)

    def _remove_consumer(self, log: LogPartition, group_id: str) -> bool:
        """Remove a consumer group as a coordinator does; False if there is none."""
        members = self._members.pop((log.log_partition, group_id), None)
        if members is None:
            return False
        for member in sorted(members):
            self._remove_member(log, group_id, member)
        log.group_tombstone(16, group_id, "x.*")
        for record_type in reversed(CONSUMER_TYPES):
            log.group_tombstone(record_type, group_id)
        return True

    # --- what brokers do not write

    def _unknown(self, log: LogPartition, _: str) -> None:
        key = self._chosen.choice(UNKNOWN_TYPES).to_bytes(2, "big", signed=True) + b"rest"
        log.record(key, self._chosen.choice([None, b"anything"]), self._maybe_producer())

    def _damaged(self, log: LogPartition, group_id: str) -> None:
        """A record without a key, cut short, or with a bit flipped; some of them decode all the same."""
        chosen = self._chosen
        if chosen.choice([True, True, False]):
            key, value = self._commit_key(group_id, 1), self._commit_value(chosen.randrange(5))
        else:
            record_type = self._record_type()
            key, value = group_key(record_type, group_id, "m"), self._group_value(record_type, 0)
        producer_id = self._maybe_producer()
        match chosen.randrange(5):
            case 0:
                log.record(None, value, producer_id)
            case 1:
                log.record(key[: chosen.randrange(len(key))], value, producer_id)
            case 2:
                log.record(key, value[: chosen.randrange(len(value))], producer_id)
            case 3:
                log.record(self._flipped(key), chosen.choice([value, None]), producer_id)
            case _:
                log.record(key, self._flipped(value), producer_id)

    def _flipped(self, data: bytes) -> bytes:
        at = self._chosen.randrange(len(data) * 8)
        changed = bytearray(data)
        changed[at // 8] ^= 1 << at % 8
        return bytes(changed)


def _classic_member(member_id: str, sent: bytes, version: int) -> dict[str, Any]:
    since = {"rebalance_timeout": 1, "group_instance_id": 3}
    fields = {
        "member_id": member_id,
        "group_instance_id": None,
        "client_id": "",
        "client_host": "",
        "rebalance_timeout": 1,
        "session_timeout": 1,
        "subscription": sent,
        "assignment": b"",
    }
    return {name: value for name, value in fields.items() if version >= since.get(name, 0)}


def random_log(chosen: Random, steps: int, shape: Shape = ANY) -> Log:
    """The log after this number of steps."""
    writer = LogWriter(shape, chosen)
    for _ in range(steps):
        writer.step()
    return writer.log


@st.composite
def logs(draw: st.DrawFn, shape: Shape = ANY, max_steps: int = 25) -> Log:
    """Random logs with at least one record, which hypothesis shrinks step by step."""
    writer = LogWriter(shape, draw(st.randoms(use_true_random=False)))
    draw(st.lists(st.builds(writer.step), min_size=1, max_size=max_steps))
    assume(writer.log.partitions)
    return writer.log


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


def examples(count: int, *suppressed: HealthCheck) -> settings:
    """Settings for this number of examples; `make test-long` runs ten times as many, with new seeds."""
    return settings(
        max_examples=count * (10 if settings.get_current_profile_name() == "long" else 1),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, *suppressed],
    )
