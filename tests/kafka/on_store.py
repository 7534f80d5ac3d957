"""A script's operations on the coordinator of an owned store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.coordinator.requests import ClassicMember, GroupMetadata
from offsets_pipeline.errors import OffsetsError
from offsets_pipeline.kafka.record.decode import decode_key, decode_value
from offsets_pipeline.semantics.group_types import GROUP_METADATA
from tests.kafka.answers import coordinator_answers
from tests.kafka.steps import ANYBODY
from tests.member_bytes import subscription
from tests.unit.coordinator.stores import append_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from offsets_pipeline.common.clock import FixedClock
    from offsets_pipeline.coordinator.coordinator import Coordinator
    from offsets_pipeline.semantics.log_row import LogRow
    from tests.kafka.answers import Answer
    from tests.kafka.on_broker import OnBroker
    from tests.kafka.steps import Errors, Joining, Offsets, Place, Stable, Who

_NO_OFFSET = -1


class OnStore:
    """Runs the script on our coordinator. Members do not join: it stores the group records that the broker wrote."""

    def __init__(self, coordinator: Coordinator, clock: FixedClock, broker: OnBroker, offsets_partitions: int) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._broker = broker
        self._offsets_partitions = offsets_partitions
        self._copied: dict[str, int] = {}
        self._epochs: dict[str, int] = {}
        self._producers: dict[str, tuple[int, int, int]] = {}

    def groups(self) -> Answer:
        return coordinator_answers(self._coordinator, self._offsets_partitions)

    def stable(self, group_ids: Iterable[str], places: Iterable[Place] | None) -> Stable:
        places = None if places is None else list(places)
        return {
            (group_id, *where): (_NO_OFFSET if each.offset is None else each.offset, each.leader_epoch, each.metadata)
            if each.error is None
            else str(each.error.kafka_name)
            for group_id in group_ids
            for where, each in self._coordinator.fetch_offsets(group_id, places, require_stable=True).items()
        }

    def describe(self, group_id: str) -> Errors:
        (found,) = self._coordinator.describe_groups([group_id]).values()
        return (str(found.kafka_name),) if isinstance(found, OffsetsError) else ()

    def fetch(self, group_id: str, who: Who = ANYBODY) -> Errors:
        return _errors(lambda: self._coordinator.fetch_offsets(group_id, member=who.of(self._broker.members)))

    def commit(
        self, group_id: str, offsets: Offsets, who: Who = ANYBODY, *, retention_time_ms: int | None = None
    ) -> Errors:
        member = who.of(self._broker.members)
        return _errors(
            lambda: self._coordinator.commit_offsets(
                group_id, offsets, member=member, retention_time_ms=retention_time_ms
            )
        )

    def alter(self, group_id: str, offsets: Offsets) -> Errors:
        return self.commit(group_id, offsets)

    def commit_alone(self, group_id: str, offsets: Offsets) -> Errors:
        return self.commit(group_id, offsets)

    def commit_sync(self, consumer: str, offsets: Offsets) -> Errors:
        member = self._broker.members[consumer]
        group_id = self._broker.group_of(consumer)
        return _errors(lambda: self._coordinator.commit_offsets(group_id, offsets, member=member))

    def delete_group(self, group_id: str) -> Errors:
        return _errors(lambda: self._coordinator.remove_group(group_id))

    def delete_offsets(self, group_id: str, places: Iterable[Place]) -> Errors:
        return _errors(lambda: self._coordinator.delete_offsets(group_id, places))

    def join(self, group_id: str, *consumers: Joining, protocol: str = "classic") -> Errors:
        del consumers, protocol  # the broker's log tells of them
        return self._store(group_id)

    def share(self, group_id: str, topics: tuple[str, ...]) -> Errors:
        del topics
        return self._store(group_id)

    def leave(self, group_id: str, consumer: str) -> Errors:
        del consumer
        return self._store(group_id)

    def half_join(self, group_id: str, consumer: str, protocol_type: str, topics: tuple[str, ...]) -> Errors:
        member = self._broker.members[consumer]
        members = (ClassicMember(member.member_id, subscription=subscription(*topics)),)
        group = GroupMetadata(group_id, protocol_type, member.generation, None, None, members)
        return _errors(lambda: self._coordinator.store_group(group))

    def sync(self, group_id: str, consumer: str) -> Errors:
        del consumer
        return self._store(group_id)

    def start(
        self, producer: str, transactional_id: str, *, timeout_ms: int = 600_000, by_hand: bool = False
    ) -> Errors:
        del by_hand
        epoch = self._epochs[transactional_id] = self._epochs.get(transactional_id, -1) + 1
        self._producers[producer] = list(self._epochs).index(transactional_id), epoch, timeout_ms
        return self.begin(producer)

    def begin(self, producer: str) -> Errors:
        producer_id, epoch, timeout_ms = self._producers[producer]
        return _errors(
            lambda: self._coordinator.begin_transaction(producer_id, epoch, transaction_timeout_ms=timeout_ms)
        )

    def send(self, producer: str, group_id: str, offsets: Offsets, who: Who = ANYBODY) -> Errors:
        producer_id, epoch, _ = self._producers[producer]
        member = who.of(self._broker.members)
        return _errors(
            lambda: self._coordinator.txn_commit_offsets(producer_id, epoch, group_id, offsets, member=member)
        )

    def end(self, producer: str, *, commit: bool) -> Errors:
        producer_id, epoch, _ = self._producers[producer]
        return _errors(lambda: self._coordinator.end_transaction(producer_id, epoch, commit=commit))

    def wait_for_abort(self, producer: str) -> Errors:
        producer_id, _, timeout_ms = self._producers[producer]
        self._clock.advance_ms(timeout_ms)
        assert self._coordinator.abort_overdue_transactions() == [producer_id]
        return ()

    def expire(self, later_ms: int) -> Errors:
        self._clock.advance_ms(later_ms)
        errors = (each.error for each in self._coordinator.expire_loaded())
        return tuple(str(each.kafka_name) for each in errors if isinstance(each, OffsetsError))

    def _store(self, group_id: str) -> Errors:
        """Store the broker's records of a group: a classic group as a whole, other groups record by record."""
        rows = [row for row in self._broker.rows_of(group_id) if row.record_offset >= self._copied.get(group_id, 0)]
        self._copied[group_id] = rows[-1].record_offset + 1 if rows else self._copied.get(group_id, 0)
        if rows and decode_key(rows[-1].key).record_type == GROUP_METADATA:
            last = rows[-1]
            return _errors(lambda: self._coordinator.store_group(_stored(group_id, last)))
        append_rows(self._coordinator.store.location, rows, self._offsets_partitions)
        return ()


def _stored(group_id: str, row: LogRow) -> GroupMetadata:
    assert row.value is not None
    value = decode_value(GROUP_METADATA, row.value).fields
    return GroupMetadata(
        group_id,
        value["protocol_type"],
        value["generation"],
        value["protocol"],
        value["leader"],
        tuple(
            ClassicMember(
                each["member_id"],
                each["client_id"],
                each["client_host"],
                each["group_instance_id"],
                each["rebalance_timeout"],
                each["session_timeout"],
                each["subscription"],
                each["assignment"],
            )
            for each in value["members"]
        ),
    )


def _errors(call: Callable[[], object]) -> Errors:
    try:
        call()
    except OffsetsError as error:
        return (str(error.kafka_name),)
    return ()
