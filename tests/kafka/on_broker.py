"""A script's operations on a real broker."""

from __future__ import annotations

import base64
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from offsets_pipeline.coordinator.requests import MemberOfGroup
from offsets_pipeline.kafka.record.decode import decode_key, decode_value
from offsets_pipeline.semantics.group_types import GROUP_METADATA, GROUP_TYPE_OF_RECORD_TYPE
from offsets_pipeline.semantics.partitioning import partition_for
from tests.kafka.clients import Clients, KafkaProducer, ProducerByHand, commit_topics, named_errors
from tests.kafka.steps import ANYBODY
from tests.logs import segment_rows
from tests.member_bytes import subscription
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsets_pipeline.semantics.log_row import LogRow
    from tests.kafka.answers import Answer
    from tests.kafka.broker_answers import Broker
    from tests.kafka.clients import Producer
    from tests.kafka.steps import Errors, Joining, Offsets, Place, Stable, Who
    from tests.kafka.wire import Connection, Message

#: What a broker needs to be told for a script: quick heartbeats, and a look at overdue transactions now and then.
SCRIPT_SETTINGS = {
    "share.coordinator.state.topic.num.partitions": 1,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 100,
    "transaction.state.log.num.partitions": 1,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}
_NO_LEADER_EPOCH = -1
_SESSION_MS = 300_000
_ENDED = {"CompleteCommit", "CompleteAbort", "Empty"}


class OnBroker:
    """Runs the script on a real broker. ``members`` are the script's consumers as group members."""

    def __init__(self, broker: Broker, wire: Connection, offsets_partitions: int, topics: dict[str, int]) -> None:
        self.members: dict[str, MemberOfGroup] = {}
        self._broker = broker
        self._wire = wire
        self._offsets_partitions = offsets_partitions
        self._clients = Clients(broker.gateway, broker.port)
        self._consumers: dict[str, dict[str, Any]] = {}
        self._abandoned: list[Any] = []
        self._producers: dict[str, tuple[str, Producer]] = {}
        self._topics = self._create(topics)

    def close(self) -> None:
        """Close all clients, also after one cannot be closed: a consumer without its broker never stops looking."""
        consumers = [each for group in self._consumers.values() for each in group.values()]
        with ExitStack() as clients:
            for consumer in [*consumers, *self._abandoned]:
                clients.callback(self._clients.abandon, consumer)
            for _, producer in self._producers.values():
                clients.callback(producer.close)

    def group_of(self, consumer: str) -> str:
        """The group that a consumer is in."""
        return next(group_id for group_id, consumers in self._consumers.items() if consumer in consumers)

    def rows_of(self, group_id: str) -> list[LogRow]:
        """The records of a group in the broker's own log, without its commits."""
        at = partition_for(group_id, self._offsets_partitions)
        rows = []
        for row in segment_rows(self._broker.data, at).get(at, []):
            if row.control_type is None:
                key = decode_key(row.key)
                if key.record_type in GROUP_TYPE_OF_RECORD_TYPE and key.group_id == group_id:
                    rows.append(row)
        return rows

    def groups(self) -> Answer:
        return self._broker.groups() | {"topics": self._topics}

    def stable(self, group_ids: Iterable[str], places: Iterable[Place] | None) -> Stable:
        named = (
            None
            if places is None
            else [{"name": topic, "partitionIndexes": at} for topic, at in _by_topic(places).items()]
        )
        groups = [{"groupId": each, "memberId": None, "memberEpoch": -1, "topics": named} for each in group_ids]
        answer = self._wire.ask("OFFSET_FETCH", 9, {"groups": groups, "requireStable": True})
        return {
            (group["groupId"], topic["name"], each["partitionIndex"]): self._fetched(each)
            for group in answer["groups"]
            for topic in group["topics"]
            for each in topic["partitions"]
        }

    def describe(self, group_id: str) -> Errors:
        answer = self._wire.ask("DESCRIBE_GROUPS", 6, {"groups": [group_id], "includeAuthorizedOperations": False})
        return self._errors(answer["groups"])

    def fetch(self, group_id: str, who: Who = ANYBODY) -> Errors:
        member = who.of(self.members)
        group = {
            "groupId": group_id,
            "memberId": member.member_id or None,
            "memberEpoch": member.generation,
            "topics": None,
        }
        return self._errors(self._wire.ask("OFFSET_FETCH", 9, {"groups": [group], "requireStable": False})["groups"])

    def commit(
        self, group_id: str, offsets: Offsets, who: Who = ANYBODY, *, retention_time_ms: int | None = None
    ) -> Errors:
        member = who.of(self.members)
        request = {
            "groupId": group_id,
            "generationIdOrMemberEpoch": member.generation,
            "memberId": member.member_id,
            "groupInstanceId": member.group_instance_id,
            "retentionTimeMs": -1 if retention_time_ms is None else retention_time_ms,
            "topics": commit_topics(offsets),
        }
        # only the versions 2-4 have a retention time
        answer = self._wire.ask("OFFSET_COMMIT", 9 if retention_time_ms is None else 4, request)
        return self._errors([each for topic in answer["topics"] for each in topic["partitions"]])

    def alter(self, group_id: str, offsets: Offsets) -> Errors:
        return self._clients.errors(lambda: self._broker.alter_offsets(group_id, self._clients.offsets(offsets)))

    def commit_alone(self, group_id: str, offsets: Offsets) -> Errors:
        consumer = self._clients.consumer(group_id)
        given = self._clients.offsets(offsets)
        try:
            consumer.assign(list(given))
            return self._clients.errors(lambda: consumer.commitSync(given))
        finally:
            consumer.close()

    def commit_sync(self, consumer: str, offsets: Offsets) -> Errors:
        found = self._consumers[self.group_of(consumer)][consumer]
        return self._clients.errors(lambda: found.commitSync(self._clients.offsets(offsets)))

    def delete_group(self, group_id: str) -> Errors:
        return self._errors(self._wire.ask("DELETE_GROUPS", 2, {"groupsNames": [group_id]})["results"])

    def delete_offsets(self, group_id: str, places: Iterable[Place]) -> Errors:
        topics = [
            {"name": name, "partitions": [{"partitionIndex": at} for at in partitions]}
            for name, partitions in _by_topic(places).items()
        ]
        answer = self._wire.ask("OFFSET_DELETE", 0, {"groupId": group_id, "topics": topics})
        return self._errors([answer, *(each for topic in answer["topics"] for each in topic["partitions"])])

    def join(self, group_id: str, *consumers: Joining, protocol: str = "classic") -> Errors:
        group = self._consumers.setdefault(group_id, {})
        taken = {each.instance_id for each in consumers if each.instance_id is not None}
        for name in [each for each in group if self.members[each].group_instance_id in taken]:
            self._abandoned.append(group.pop(name))  # it is fenced
        for each in consumers:
            group[each.name] = self._clients.consumer(group_id, each, protocol)
        self._settle(group_id)
        return ()

    def share(self, group_id: str, topics: tuple[str, ...]) -> Errors:
        member_id = str(self._broker.gateway.jvm.org.apache.kafka.common.Uuid.randomUuid())
        request = {"groupId": group_id, "memberId": member_id, "rackId": None, "subscribedTopicNames": list(topics)}
        return self._errors(
            [self._wire.ask("SHARE_GROUP_HEARTBEAT", 1, {**request, "memberEpoch": epoch}) for epoch in (0, -1)]
        )

    def leave(self, group_id: str, consumer: str) -> Errors:
        if consumer in self._consumers.get(group_id, {}):
            self._clients.leave(self._consumers[group_id].pop(consumer))
        else:
            leaving = [{"memberId": self.members[consumer].member_id, "groupInstanceId": None}]
            answer = self._wire.ask("LEAVE_GROUP", 4, {"groupId": group_id, "members": leaving})
            assert self._errors([answer, *answer["members"]]) == ()
        self._settle(group_id)
        return ()

    def half_join(self, group_id: str, consumer: str, protocol_type: str, topics: tuple[str, ...]) -> Errors:
        sent = base64.b64encode(subscription(*topics)).decode()
        answer = self._wire.ask(
            "JOIN_GROUP",
            3,  # later ones have to join twice
            {
                "groupId": group_id,
                "sessionTimeoutMs": _SESSION_MS,
                "rebalanceTimeoutMs": _SESSION_MS,
                "memberId": "",
                "protocolType": protocol_type,
                "protocols": [{"name": "range", "metadata": sent}],
            },
        )
        self.members[consumer] = MemberOfGroup(answer["memberId"], answer["generationId"])
        return self._errors([answer])

    def sync(self, group_id: str, consumer: str) -> Errors:
        member = self.members[consumer]
        request = {
            "groupId": group_id,
            "generationId": member.generation,
            "memberId": member.member_id,
            "assignments": [{"memberId": member.member_id, "assignment": ""}],
        }
        return self._errors([self._wire.ask("SYNC_GROUP", 1, request)])

    def start(
        self, producer: str, transactional_id: str, *, timeout_ms: int = 600_000, by_hand: bool = False
    ) -> Errors:
        made: Producer = (
            ProducerByHand(self._wire, transactional_id, timeout_ms)
            if by_hand
            else KafkaProducer(self._clients, transactional_id, timeout_ms)
        )
        self._producers[producer] = transactional_id, made
        return made.start() or made.begin()

    def begin(self, producer: str) -> Errors:
        return self._producers[producer][1].begin()

    def send(self, producer: str, group_id: str, offsets: Offsets, who: Who = ANYBODY) -> Errors:
        return self._producers[producer][1].send(group_id, offsets, who.of(self.members))

    def end(self, producer: str, *, commit: bool) -> Errors:
        errors = self._producers[producer][1].end(commit=commit)
        if not errors:
            self._wait_for_end(producer)
        return errors

    def wait_for_abort(self, producer: str) -> Errors:
        self._wait_for_end(producer)
        return ()

    def expire(self, later_ms: int) -> Errors:
        del later_ms  # it does by itself, as time goes by
        return ()

    def _wait_for_end(self, producer: str) -> None:
        transactional_id, _ = self._producers[producer]

        def has_ended() -> bool:
            answer = self._wire.ask("DESCRIBE_TRANSACTIONS", 0, {"transactionalIds": [transactional_id]})
            return answer["transactionStates"][0]["transactionState"] in _ENDED

        wait_until(f"the transaction of {producer} ends", has_ended)

    def _settle(self, group_id: str) -> None:
        """Let the consumers of a group do their part until the log and they themselves say the same of it."""
        consumers = self._consumers.get(group_id, {})

        def is_settled() -> bool:
            for each in consumers.values():
                self._clients.poll(each)
            known = {name: each.groupMetadata() for name, each in consumers.items()}
            for name, each in known.items():
                instance_id = each.groupInstanceId().orElse(None)
                self.members[name] = MemberOfGroup(each.memberId(), each.generationId(), instance_id)
            group = self._broker.groups()["groups"].get(group_id, {"describe": {}})
            if "members" not in group["describe"]:
                return False  # it is being replaced by one of another kind
            ids = {each["member_id"] for each in group["describe"]["members"]}
            if ids != {self.members[name].member_id for name in consumers}:
                return False
            if group["list_state"] != ("Stable" if ids else "Empty"):
                return False
            generations = {self.members[name].generation for name in consumers}
            if group["list_type"] == "Consumer":
                return generations in ({group["describe"]["group_epoch"]}, set())
            value = next((row.value for row in reversed(self.rows_of(group_id))), None)
            stored = None if value is None else decode_value(GROUP_METADATA, value).fields
            return (
                stored is not None
                and generations in ({stored["generation"]}, set())
                and {each["member_id"] for each in stored["members"]} == ids
            )

        wait_until(f"group {group_id} settles", is_settled)

    def _fetched(self, answer: Message) -> tuple[int, int | None, str] | str:
        if answer["errorCode"]:
            return self._wire.name_of(answer["errorCode"])
        epoch = answer["committedLeaderEpoch"]
        return answer["committedOffset"], None if epoch == _NO_LEADER_EPOCH else epoch, answer["metadata"] or ""

    def _errors(self, answers: list[Message]) -> Errors:
        return named_errors(self._wire, answers)

    def _create(self, topics: dict[str, int]) -> Answer:
        wanted = [
            {"name": name, "numPartitions": partitions, "replicationFactor": 1, "assignments": [], "configs": []}
            for name, partitions in topics.items()
        ]
        request = {"topics": wanted, "timeoutMs": 10_000, "validateOnly": False}
        answer = self._wire.ask("CREATE_TOPICS", 7, request)
        assert self._errors(answer["topics"]) == ()
        return {each["name"]: {"topic_id": each["topicId"]} for each in answer["topics"]}


def _by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, partition in places:
        found.setdefault(topic, []).append(partition)
    return found
