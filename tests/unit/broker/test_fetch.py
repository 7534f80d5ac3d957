"""What becomes of a broker's answers to a fetch, and of its connection; a broker of our own answers as told."""

from __future__ import annotations

import itertools
import struct
import threading
import zlib
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import crc32c
import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest

from offsets_pipeline.errors import BrokerUnreachable, KafkaFailed, NoSuchTopic, NotAuthorized, OffsetsError
from offsets_pipeline.kafka.broker import log_offsets
from offsets_pipeline.kafka.broker.client_settings import FetchLimits
from offsets_pipeline.kafka.broker.cluster import Cluster
from offsets_pipeline.kafka.broker.fetch import (
    BatchBytes,
    Fetched,
    Fetcher,
    FetchPosition,
    FetchProblem,
    last_good,
    whole_batches,
)
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from offsets_pipeline.kafka.broker.log_offsets import LogBounds, log_bounds
from offsets_pipeline.kafka.record.batch import checked_stretch
from offsets_pipeline.kafka.record.segment import read_segment
from tests.unit.broker.fake_broker import TOPIC, VERSIONS, FakeBroker, fake_broker, fetched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.unit.broker.fake_broker import Answer

FETCH, METADATA, API_VERSIONS = FetchRequest.API_KEY, MetadataRequest.API_KEY, ApiVersionsRequest.API_KEY
OPTIONS = {"request.timeout.ms": "2000", "default.api.timeout.ms": "3000", "retry.backoff.ms": "1"}


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with fake_broker() as broker:
        yield broker


def cluster_of(broker: FakeBroker, **more: str) -> Cluster:
    options = OPTIONS | {name.replace("_", "."): value for name, value in more.items()}
    return Cluster(KafkaOptions(broker.address, options))


def fetch(broker: FakeBroker, *answers: Answer, offset: int = 7) -> Fetched:
    """What comes of so many fetches of partition 0; that of the last."""
    before = broker.count(FETCH)
    broker.answers[FETCH] = lambda number: answers[number - before]
    with cluster_of(broker) as cluster, Fetcher(cluster, cluster.topic(TOPIC), 1) as fetcher:
        found = [fetcher.fetch({0: FetchPosition(offset, 3)}) for _ in answers]
    return found[-1][0]


def segment_of(captures: Path, capture: str) -> bytes:
    return max((path.read_bytes() for path in captures.glob(f"{capture}/segments/*/*.log")), key=len)


@pytest.mark.parametrize(
    "capture", ["4.2.0-classic", "2.4.1-old-ibp0.10.0-fmt0.10.0-codec1", "2.4.1-old-ibp0.9.0-fmt0.9.0"]
)
def test_a_last_batch_that_is_cut_off_is_left_for_the_next_fetch(
    captures: Path, broker: FakeBroker, capture: str
) -> None:
    segment = segment_of(captures, capture)
    ends = batch_ends(segment)
    assert len(ends) > 2
    for index in (0, len(ends) // 2):
        whole, cut = ends[index], (ends[index] + ends[index + 1]) // 2
        found = fetch(broker, fetched(segment[:cut]), offset=0)
        assert found.records == segment[:whole]
        reader = read_segment(found.records, source="fetched")
        assert list(reader.batches())
        assert (found.next_offset, reader.torn_tail) == (reader.end_offset, None)


@pytest.mark.parametrize("capture", ["4.2.0-classic", "2.4.1-old-ibp0.9.0-fmt0.9.0"])
def test_each_batch_is_checked_once_by_its_checksum(
    captures: Path, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, capture: str
) -> None:
    segment = segment_of(captures, capture)
    starts = [0, *batch_ends(segment)[:-1]]
    stretches = [checked_stretch(memoryview(segment), start)[2:] for start in starts]
    checked: Counter[bytes] = Counter()

    def counted(checksum: Callable[..., int], data: bytes, *more: int) -> int:
        checked[bytes(data)] += 1
        return checksum(data, *more)

    monkeypatch.setattr(crc32c, "crc32c", partial(counted, crc32c.crc32c))
    monkeypatch.setattr(zlib, "crc32", partial(counted, zlib.crc32))
    found = fetch(broker, fetched(segment), offset=0)
    assert found.good_at == starts[-1]
    reader = read_segment(found.records, source="fetched", good_at=found.good_at)
    assert list(reader.batches())
    assert {checked[segment[start:end]] for start, end in stretches} == {1}

    damaged = bytearray(segment)
    damaged[starts[1] - 1] ^= 1
    found = fetch(broker, fetched(bytes(damaged)), offset=0)
    reader = read_segment(found.records, source="fetched", good_at=found.good_at)
    assert sum(each.num_rows for each in reader.batches())
    assert [(each.position, each.length) for each in reader.damage] == [(0, starts[1])]


def test_bounds_of_a_partition_are_its_log_start_and_high_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that knows no offset for a time answers none: of an empty log from 0 on."""
    refused = KafkaFailed("no leader")
    known: dict[str, tuple[int | KafkaFailed | None, int | KafkaFailed | None]] = {
        "both": (3, 9),
        "none": (None, None),
        "no end": (5, None),
        "cut meanwhile": (5, 4),
        "no start": (refused, 4),
        "end refused": (5, refused),
    }
    answers = iter((0, 1))

    def list_offsets(_: object, times_ms: dict[tuple[str, int], int]) -> dict[tuple[str, int], object]:
        at = next(answers)
        return {place: known[place[0]][at] for place in times_ms}

    monkeypatch.setattr(log_offsets, "list_offsets", list_offsets)
    cluster: Any = None
    found = log_bounds(cluster, [(name, 0) for name in known])
    assert list(found.values()) == [
        *(LogBounds(3, 9), LogBounds(0, 0), LogBounds(5, 5), LogBounds(5, 5)),
        *(refused, refused),
    ]


@pytest.mark.parametrize("length", [-1, -12, -(2**31)])
def test_a_negative_length_ends_the_whole_batches(captures: Path, length: int) -> None:
    segment = segment_of(captures, "4.2.0-classic")
    whole = whole_batches(segment)
    assert [each.end for each in whole[:-1]] == [each.start for each in whole[1:]]
    assert whole_batches(segment + struct.pack(">qi", 9, length) + segment) == whole


def test_last_good_batch_is_the_last_one_with_its_checksum(captures: Path) -> None:
    segment = bytearray(segment_of(captures, "4.2.0-classic"))
    batches = whole_batches(bytes(segment))
    assert last_good(bytes(segment), batches) == (batches[-1], read_end(segment))
    segment[batches[-1].end - 1] ^= 1
    before = read_end(segment[: batches[-1].start])
    assert last_good(bytes(segment), batches) == (batches[-2], before)
    assert last_good(bytes(segment), batches[-1:]) == last_good(b"", []) == (BatchBytes(0, 0), 0)


def read_end(segment: bytes | bytearray) -> int:
    """The record offset after a segment: the base offset of its last batch, and that of the last record in it."""
    last = segment[[0, *batch_ends(bytes(segment))][-2] :]
    return int.from_bytes(last[:8], "big") + int.from_bytes(last[23:27], "big") + 1


def batch_ends(segment: bytes) -> list[int]:
    """The end of each batch of a segment, by their lengths."""
    ends, position = [], 0
    while position < len(segment):
        position += 12 + int.from_bytes(segment[position + 8 : position + 12], "big")
        ends.append(position)
    return ends


def test_a_batch_larger_than_the_limits_comes_whole(captures: Path, broker: FakeBroker) -> None:
    segment = segment_of(captures, "4.2.0-classic")
    large = b"".join(itertools.repeat(segment, 64 * 1024 * 1024 // len(segment)))  # above fetch.max.bytes
    found = fetch(broker, fetched(large))
    assert (len(found.records), whole_batches(large)[-1].end) == (len(large), len(large))


def test_a_first_batch_that_is_cut_off_is_told(captures: Path, broker: FakeBroker) -> None:
    with pytest.raises(
        KafkaFailed, match=r"part of a batch for partition 0 .* record offset 7: set max.partition.fetch"
    ):
        fetch(broker, fetched(segment_of(captures, "4.2.0-classic")[:50]))


def test_the_offsets_of_an_answer_are_told_and_a_position_does_not_go_back(captures: Path, broker: FakeBroker) -> None:
    assert fetch(broker, fetched()) == Fetched(b"", 7, 100)
    assert fetch(broker, fetched(None)).records == b""
    assert fetch(broker, fetched(segment_of(captures, "4.2.0-classic")), offset=10_000).next_offset == 10_000


@pytest.mark.parametrize(
    ("code", "problem"),
    [(code, FetchProblem.STALE_METADATA) for code in (3, 5, 6, 7, 9, 56, 74, 75, 78, 100, 103)]
    + [(1, FetchProblem.OUT_OF_RANGE)],
)
def test_errors_that_new_metadata_or_another_position_heals_are_problems(
    broker: FakeBroker, code: int, problem: FetchProblem
) -> None:
    assert fetch(broker, fetched(error_code=code)) == Fetched(b"", 7, None, problem)


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (29, NotAuthorized, rf"does not allow us to read partition 0 of topic {TOPIC} \(TOPIC_AUTHORIZATION_FAILED\)"),
        (2, KafkaFailed, rf"cannot read partition 0 of topic {TOPIC}: CORRUPT_MESSAGE"),
        (-1, KafkaFailed, "UNKNOWN"),
        (999, KafkaFailed, "error 999"),
    ],
)
def test_other_errors_are_raised(broker: FakeBroker, code: int, kind: type[Exception], said: str) -> None:
    with pytest.raises(OffsetsError, match=rf"^{broker.address} .*{said}") as refused:
        fetch(broker, fetched(error_code=code))
    assert refused.type is kind


@pytest.mark.parametrize(("code", "problem"), [(71, FetchProblem.STALE_METADATA), (31, None)])
def test_an_error_of_a_whole_answer_is_that_of_its_partitions(
    broker: FakeBroker, code: int, problem: FetchProblem | None
) -> None:
    whole = FetchResponse(throttle_time_ms=0, error_code=code, session_id=0, responses=[])
    if problem is not None:  # INVALID_FETCH_SESSION_EPOCH, which a retry heals
        assert fetch(broker, whole) == Fetched(b"", 7, None, problem)
        return
    with pytest.raises(NotAuthorized) as refused:
        fetch(broker, whole)
    reason = f"does not allow us to read topic {TOPIC} (CLUSTER_AUTHORIZATION_FAILED); grant READ on it"
    assert str(refused.value) == f"{broker.address} {reason}"


def test_a_fetch_asks_for_whole_batches_of_all_transactions_and_waits_longer_than_the_broker(
    broker: FakeBroker,
) -> None:
    broker.answers[FETCH] = lambda _: fetched()
    limits = {"fetch_min_bytes": "2", "fetch_max_wait_ms": "250", "fetch_max_bytes": "4"}
    with (
        cluster_of(broker, max_partition_fetch_bytes="5", **limits) as cluster,
        Fetcher(cluster, cluster.topic(TOPIC), 1) as fetcher,
    ):
        assert fetcher._connection._socket.gettimeout() == 2
        fetcher.fetch({0: FetchPosition(7, 3)})
        fetcher.fetch({0: FetchPosition(8, None)})
        assert fetcher._connection._socket.gettimeout() == 2.25  # request.timeout.ms on top
        assert cluster.any_connection()._socket.gettimeout() == 2
        fetcher.fetch({0: FetchPosition(7, 3)}, FetchLimits(6, 7, 8, 9))
    asked = broker.request(FetchRequest, 2)
    of_call = (asked.min_bytes, asked.max_wait_ms, asked.max_bytes, asked.topics[0].partitions[0].partition_max_bytes)
    assert of_call == (6, 7, 8, 9)
    for number, offset, epoch in ((0, 7, 3), (1, 8, -1)):
        asked = broker.request(FetchRequest, number)
        assert (asked.min_bytes, asked.max_wait_ms, asked.max_bytes, asked.isolation_level) == (2, 250, 4, 0)
        assert (asked.session_id, asked.session_epoch, asked.rack_id, asked.forgotten_topics_data) == (0, -1, "", [])
        ((at,),) = [topic.partitions for topic in asked.topics]
        assert (at.partition, at.fetch_offset, at.current_leader_epoch, at.partition_max_bytes) == (0, offset, epoch, 5)
        assert (at.last_fetched_epoch, at.log_start_offset) == (-1, -1)


def test_the_next_request_waits_as_long_as_the_broker_throttles(broker: FakeBroker) -> None:
    fetch(broker, fetched(throttle_ms=300), fetched())
    first = next(i for i, (key, _, _) in enumerate(broker.requests) if key == FETCH)
    assert broker.requests[first + 1][2] - broker.answered[first] >= 0.3


def test_an_older_broker_is_asked_in_its_own_versions(broker: FakeBroker) -> None:
    unsupported = ApiVersionsResponse(
        error_code=35, api_keys=[ApiVersionsResponse.ApiVersion(api_key=API_VERSIONS, min_version=0, max_version=1)]
    )
    broker.answers[API_VERSIONS] = lambda number: unsupported if number == 0 else broker.api_versions()
    assert fetch(broker, fetched()).high_watermark == 100
    assert [version for key, version, _ in broker.requests if key == API_VERSIONS][:2] == [4, 1]
    assert {key: version for key, version, _ in broker.requests if key != API_VERSIONS} == {FETCH: 12, METADATA: 9}


@pytest.mark.parametrize("versions", [(0, 3), (13, 17)])  # before batches, and by topic ids only
def test_a_broker_without_fetches_of_batches_by_name_is_refused(broker: FakeBroker, versions: tuple[int, int]) -> None:
    broker.answers[API_VERSIONS] = lambda _: broker.api_versions(VERSIONS | {FETCH: versions})
    with pytest.raises(KafkaFailed, match=rf"^{broker.address} does not support FetchRequest in versions 4 to "):
        fetch(broker, fetched())


def test_what_is_no_broker_is_unreachable(broker: FakeBroker) -> None:
    broker.answers[API_VERSIONS] = lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with pytest.raises(BrokerUnreachable, match=rf"no broker answers at {broker.address} \(it answers, but not as"):
        fetch(broker, fetched())


@pytest.mark.parametrize(
    "answer",
    [b"\x00\x00\x00\x06\x00\x00\x00\x01\x00\x00", b"\x00\x00\x00\x0a\x00\x00\x00\x63\x00\x00\x00\x00\x00\x00"],
    ids=["cut short", "to another request"],
)
def test_an_answer_that_does_not_decode_is_told(broker: FakeBroker, answer: bytes) -> None:
    broker.answers[API_VERSIONS] = lambda _: answer
    with pytest.raises(
        KafkaFailed, match=rf"^{broker.address} sent an answer to ApiVersionsRequest that cannot be decoded$"
    ):
        fetch(broker, fetched())


def test_a_broker_that_does_not_answer_in_time_is_unreachable(broker: FakeBroker) -> None:
    never = threading.Event()
    broker.answers[API_VERSIONS] = lambda _: b"" if never.wait(10) else b"late"
    with (
        cluster_of(broker, request_timeout_ms="200") as cluster,
        pytest.raises(BrokerUnreachable, match="it did not answer in time"),
    ):
        cluster.cluster_id()
    never.set()


def test_a_fetch_that_waits_ends_when_the_fetcher_is_closed(broker: FakeBroker) -> None:
    asked, never = threading.Event(), threading.Event()

    def answer(_: int) -> bytes:
        asked.set()
        never.wait(10)
        return b""

    broker.answers[FETCH] = answer
    errors: list[Exception] = []
    with (
        cluster_of(broker, request_timeout_ms="10000") as cluster,
        Fetcher(cluster, cluster.topic(TOPIC), 1) as fetcher,
    ):

        def wait() -> None:
            try:
                fetcher.fetch({0: FetchPosition(0, 3)})
            except BrokerUnreachable as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        assert asked.wait(10)
        fetcher.close()
        thread.join(5)
        assert not thread.is_alive()
    never.set()
    assert len(errors) == 1


def test_a_connection_that_breaks_is_replaced_and_a_leader_that_moves_is_waited_for(broker: FakeBroker) -> None:
    moves = {1: lambda: broker.metadata(leader=-1), 2: lambda: broker.metadata(leader=2)}
    broker.answers[METADATA] = lambda number: moves.get(number, broker.metadata)()
    with cluster_of(broker) as cluster:
        assert cluster.topic(TOPIC).partitions[0].node_id == 1
        assert cluster.topic(TOPIC).partitions[0].node_id is None
        for each in broker._open:
            each.shutdown(2)  # of sockets: both ways
        with pytest.raises(KafkaFailed, match="does not support ListOffsetsRequest"):
            log_bounds(cluster, [(TOPIC, 0)])
        assert broker.count(METADATA) == 4  # the third names a broker that is not there


@pytest.mark.parametrize(("code", "kind"), [(3, NoSuchTopic), (17, NoSuchTopic), (29, NotAuthorized)])
def test_a_topic_that_metadata_refuse_is_told_at_once(broker: FakeBroker, code: int, kind: type[Exception]) -> None:
    broker.answers[METADATA] = lambda _: broker.metadata(error_code=code)
    with cluster_of(broker) as cluster, pytest.raises(OffsetsError, match=f"topic {TOPIC}") as refused:
        cluster.topic(TOPIC)
    assert refused.type is kind
    assert broker.count(METADATA) == 1


def test_the_addresses_are_tried_one_after_the_other(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(KafkaOptions(f"127.0.0.1:1,{broker.address}", OPTIONS)) as cluster:
        assert cluster.cluster_id() == "c"
    monkeypatch.setattr("offsets_pipeline.kafka.broker.cluster._failed_at", {})  # else those that failed come last
    with (
        Cluster(KafkaOptions("127.0.0.1:1,127.0.0.1:2", OPTIONS)) as cluster,
        pytest.raises(BrokerUnreachable, match=r"^no broker answers at 127.0.0.1:2 \(Connection refused\); check the"),
    ):
        cluster.cluster_id()
