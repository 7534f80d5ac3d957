"""Files, requests and records of users with anything in them: read, or refused in one clear line; and soon."""

from __future__ import annotations

import json
import random
import re
import struct
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from offsets_pipeline.cli.command import error_line
from offsets_pipeline.common.clock import duration_ms, parse_time_ms
from offsets_pipeline.common.config import load_settings
from offsets_pipeline.connect.connect_log import ConnectLog
from offsets_pipeline.connect.connector_config import validated_config
from offsets_pipeline.connect.request_bodies import connector_of, offsets_of, settings_of
from offsets_pipeline.connect.sink_offsets import _parsed
from offsets_pipeline.coordinator.zookeeper.consumer_nodes import read_dump
from offsets_pipeline.errors import (
    BadConnectRequest,
    ConfigError,
    DependencyMissing,
    InvalidReset,
    InvalidTime,
    MalformedFile,
    NoSuchPath,
    OffsetsError,
)
from offsets_pipeline.ingest.topic_positions.broker_positions import read_client_properties
from offsets_pipeline.ingest.topic_positions.positions import read_positions
from offsets_pipeline.ingest.topic_positions.sample_table import read_sample_file
from offsets_pipeline.ingest.zookeeper_import import metadata_of
from offsets_pipeline.kafka.broker.client_settings import ClientSettings
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from offsets_pipeline.kafka.record.commit_columns import CommitColumns
from offsets_pipeline.kafka.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.kafka.record.decode import decode_key, decode_value
from offsets_pipeline.repair.offset_reset.plan import read_plan
from offsets_pipeline.semantics.connect_keys import (
    offset_key,
    offset_value,
    parse_connect_key,
    parse_connect_value,
    state_value,
)
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.spark_query.checkpoint_import import read_checkpoint
from offsets_pipeline.spark_query.kafka_source_offsets import BatchMark, commits_of
from tests.kafka.certificates import Authority, jks_digest, jks_file
from tests.logs import CAPTURES, capture_rows
from tests.mutation import EXTREMES, changed_bytes, peak_mib, soon
from tests.unit.rest.services import service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FEW, MANY = 200, 100_000
UNCHANGED = 10  # every tenth input is a sample as it is
GROWTH_MIB = 256
LINE_CHARACTERS = 1_000  # of an error, so that a terminal shows all of it
MOST_BYTES = 200_000  # of a mutated input
CHECKPOINTS = CAPTURES.parent / "checkpoints"
PASSWORD = "changeit"
NAMES = ("", "\0", "\x1b[2J", "\r\n", "\u202e", "\ufeff", "é", "😀", "\u0661", "%s{0}", "'\"", "a" * 40_000, " ")
NUMBERS = ("-1", "9" * 20, "9" * 1_001, "9" * 5_000, "1e400", "-0", "NaN", "Infinity", "1.5", "1_0", "\u0664", "00", "")
VALUES: tuple[Any, ...] = (None, True, 0, -1, 2**63, 10**400, 1.5, "", "0", [], {}, [[]], {"": None}, *NAMES)
BITS_OF_TEXT = (b"=", b",", b'"', b"\n", b"\t", b":", b"/", b"\\", b"\\ud800", b"\xed\xa0\x80", b"#", b"[x]\n", b"'''")


@dataclass(frozen=True)
class Input:
    """An input: valid samples, and a reader, which returns or raises one of the errors ``refuses``.

    The message of an error names ``where``. ``share`` is the part of the draws, of a slow reader.
    """

    samples: Callable[[], list[bytes]]
    reader: Callable[[bytes, Path], object]
    refuses: tuple[type[OffsetsError], ...]
    where: str = ""
    share: float = 1.0
    is_text: bool = True


class TextMutator:
    """Makes inputs out of valid ones: bytes, parts, numbers, and values of JSON change."""

    def __init__(self, choose: random.Random, *, is_text: bool) -> None:
        self._choose = choose
        kinds = [self._bytes, self._cut, self._repeated, self._integer]
        self._kinds = [*kinds, self._number, self._inserted, self._json, self._json, self._lines] if is_text else kinds

    def changed(self, data: bytes) -> bytes:
        for _ in range(self._choose.choice((1, 1, 1, 2, 3))):
            data = self._choose.choice(self._kinds)(data)[:MOST_BYTES]
        return data

    def _bytes(self, data: bytes) -> bytes:
        return changed_bytes(data, self._choose)

    def _part(self, data: bytes) -> tuple[int, int]:
        return tuple(sorted(self._choose.randrange(len(data) + 1) for _ in range(2)))  # type: ignore[return-value]

    def _cut(self, data: bytes) -> bytes:
        return data[: self._part(data)[0]]

    def _repeated(self, data: bytes) -> bytes:
        start, end = self._part(data)
        times = min(self._choose.choice((1, 1, 2, 1_000)), MOST_BYTES // (end - start + 1))
        return data[:end] + data[start:end] * times + data[end:]

    def _integer(self, data: bytes) -> bytes:
        width = self._choose.choice((1, 2, 4, 8))
        at = self._choose.randrange(max(1, len(data) - width))
        return (
            data[:at] + (self._choose.choice(EXTREMES) % (1 << 8 * width)).to_bytes(width, "big") + data[at + width :]
        )

    def _number(self, data: bytes) -> bytes:
        found = list(re.finditer(rb"\d+", data))
        if not found:
            return self._inserted(data)
        number = self._choose.choice(found)
        return data[: number.start()] + self._choose.choice(NUMBERS).encode() + data[number.end() :]

    def _inserted(self, data: bytes) -> bytes:
        at = self._part(data)[0]
        return data[:at] + self._choose.choice((*BITS_OF_TEXT, *(name.encode() for name in NAMES))) + data[at:]

    def _lines(self, data: bytes) -> bytes:
        lines = data.splitlines(keepends=True) or [b""]
        self._choose.shuffle(lines)
        return b"".join(lines[: self._choose.randrange(len(lines)) + 1])

    def _json(self, data: bytes) -> bytes:
        """Change one value of the JSON document in the input, or nest it deeply."""
        starts = [at for at in (data.find(b"["), data.find(b"{")) if at >= 0]
        start, end = min(starts, default=0), max(data.rfind(b"]"), data.rfind(b"}")) + 1
        if not starts or end <= start:
            return self._number(data)
        try:
            document = json.loads(data[start:end])
        except (ValueError, RecursionError):
            return self._inserted(data)
        if self._choose.random() < 0.1:
            levels, pair = self._choose.choice((90, 200, 499, 2_000, 100_000)), self._choose.choice(("[]", '{"a":1}'))
            text = (pair[0] if pair == "[]" else '{"a":') * levels + json.dumps(document) + pair[-1] * levels
        else:
            text = json.dumps(self._swapped(document), ensure_ascii=self._choose.random() < 0.5)
        return data[:start] + text.encode("utf-8", "surrogatepass") + data[end:]

    def _swapped(self, value: Any) -> Any:  # noqa: ANN401 - any JSON value
        """The value with another one somewhere in it, or with another name, or without a member."""
        choose = self._choose
        if not isinstance(value, dict | list) or not value or choose.random() < 0.2:
            return choose.choice(VALUES)
        if isinstance(value, list):
            at = choose.randrange(len(value))
            return [*value[:at], *([self._swapped(value[at])] if choose.random() < 0.8 else []), *value[at + 1 :]]
        name = choose.choice(list(value))
        rest = {each: value[each] for each in value if each != name}
        match choose.randrange(4):
            case 0:
                return rest
            case 1:
                return {**rest, choose.choice(NAMES): value[name]}
            case _:
                return {**rest, name: self._swapped(value[name])}


def texts(*samples: str) -> Callable[[], list[bytes]]:
    return lambda: [sample.encode() for sample in samples]


def in_file(read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    """A reader of a file with the input."""

    def reader(data: bytes, folder: Path) -> object:
        path = folder / "input"
        path.write_bytes(data)
        return read(path)

    return reader


def as_text(read: Callable[[str], object]) -> Callable[[bytes, Path], object]:
    """A reader of a text. The program has read it as UTF-8."""
    return lambda data, _: read(data.decode("utf-8", "replace"))


# Records of Kafka


def records() -> list[bytes]:
    """Key and value of records that brokers wrote, each after its length."""
    found = {
        struct.pack(">i", len(row.key)) + row.key + row.value
        for rows in capture_rows("4.2.0-kip848").values()
        for row in rows
        if row.key is not None and row.value is not None and row.control_type is None
    }
    return sorted(found)


def read_record(data: bytes, _: Path) -> None:
    size = int.from_bytes(data[:4], "big") % 256
    key, value = data[4 : 4 + size], data[4 + size :]
    if key[:2] == b"\0\1":
        valid = CommitColumns(pa.array([key], pa.binary()), pa.array([value], pa.binary())).valid[0]
        try:
            decode_value(decode_key(key).record_type, value)
        except CorruptRecord:
            assert not valid
            raise
        assert valid
    else:
        decode_value(decode_key(key).record_type, value)


# Kafka Connect


def read_connect_key(data: bytes, _: Path) -> None:
    key = parse_connect_key(data, TopicKind.CONNECT)
    if key is not None and key.source_partition is not None:
        again = offset_key(key.connector, json.loads(key.source_partition))
        assert parse_connect_key(again, TopicKind.CONNECT) == key


def read_connect_value(data: bytes, _: Path) -> None:
    text = parse_connect_value(data)
    if text is not None:
        assert json.loads(state_value(text) or "") == json.loads(text)


def read_offsets(text: str) -> None:
    for pair in offsets_of(text, "the request"):
        offset_key("files", pair["partition"])
        offset_value(pair["offset"])


def read_sink_offsets(text: str) -> None:
    for pair in offsets_of(text, "the request"):
        (topic, partition), offset = _parsed(pair)
        assert topic is not None
        assert 0 <= partition < 2**31
        assert offset is None or 0 <= offset < 2**63


def read_connector(text: str) -> None:
    name, settings, _ = connector_of(text, "the request")
    validated_config(name, settings)


OFFSETS = '{"offsets": [{"partition": {"filename": "/a"}, "offset": {"position": 30}}, {"partition": {"é": 1}}]}'
SINK_OFFSETS = (
    '{"offsets": [{"partition": {"kafka_topic": "orders", "kafka_partition": "3"}, "offset": {"kafka_offset": 42}}]}'
)
CONFIG = '{"connector.class": "FileStreamSource", "tasks.max": "1", "file": "/a", "topic": "fa", "db.user": null}'
CONNECTOR = f'{{"name": "files", "config": {CONFIG}, "initial_state": "STOPPED"}}'.replace(', "db.user": null', "")
REQUESTS = (
    ("PATCH", "/connectors/files/offsets", OFFSETS),
    ("PUT", "/connectors/files/config", CONFIG.replace(', "db.user": null', "")),
    ("POST", "/connectors", CONNECTOR),
)


# Checkpoints, positions, plans, dumps, settings


def checkpoint_files() -> list[bytes]:
    """Files of checkpoints: first a byte that says which file, of the last completed batch."""
    found = []
    for number, name in enumerate(("offsets/3", "commits/3", "metadata")):
        found += [bytes([number]) + path.read_bytes() for path in CHECKPOINTS.glob(f"*/{name}")]
    return found


def read_checkpoint_file(data: bytes, folder: Path) -> None:
    for name in ("offsets", "commits"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "3").write_bytes((CHECKPOINTS / "spark-4.2-v1" / name / "3").read_bytes())
    (folder / "metadata").write_bytes(b'{"id":"a"}')
    names = ("offsets/3", "commits/3", "metadata")
    (folder / names[data[0] % 3 if data else 0]).write_bytes(data[1:])
    checkpoint = read_checkpoint(str(folder))
    for batch in checkpoint.batches:
        for commit in commits_of(batch, checkpoint.query_id):
            assert all(0 <= each.offset < 2**63 for each in commit.values())


def read_mark(text: str) -> None:
    mark = BatchMark.parse(text)
    if mark is None:
        raise InvalidReset("no mark")  # as of another origin: such a commit stays
    assert {mark: mark.batch_id}


def read_plan_of(group_ids: list[str], path: Path) -> None:
    for offsets in read_plan(path, group_ids).values():
        assert all(0 <= where.partition < 2**31 and 0 <= offset < 2**63 for where, offset in offsets.items())


def read_positions_of(path: Path) -> None:
    for each in read_positions(path).by_partition.values():
        assert 0 <= each.earliest <= each.latest < 2**63


def read_samples(path: Path) -> None:
    read_sample_file(str(path), 1_795_000_000_000).validate(full=True)


def read_nodes(path: Path) -> None:
    for group in read_dump(path):
        assert all(0 <= each.offset < 2**63 and metadata_of(each) for each in group.offsets.values())


PLAN = 'orders,0,42\norders,1,17\n"a,b",0,3\n'
PLAN_OF_GROUPS = 'billing,orders,0,42\n"bill""ing",orders,1,17\n'
POSITIONS = "topic,partition,earliest,latest,2026-03-01T12:00:00Z,1795000000000\norders,0,0,100,40,\norders,1,5,9,6,7\n"
SAMPLES = (
    "topic,partition,log_start_offset,log_end_offset,sampled_at\n"
    "orders,0,0,100,2026-03-01T12:00:00Z\norders,1,5,9,1795000000000\n"
)
DUMP = (
    "/consumers/a group/offsets/orders/0 42 1457000000000\n/kafka/consumers/b:c/offsets/t.x/12:44\n"
    '/consumers/g/ids/g_host-1 {"version":1}\n/consumers/g/owners/orders/0 g_host-1-0\n'
    "/consumers/g/offsets/t/0\n  mtime = Thu Mar 03 10:13:20 UTC 2016\n  dataLength = 2\n  data = NDI=\n"
)
SETTINGS = (
    '[log]\noffsets_partitions = 50\n[fold]\ntrigger_interval_ms = 100\n[kafka]\n"request.timeout.ms" = "1500"\n'
    '[kafka.ssl]\nkey.password = "env:HOME"\n[lag]\nsample_topics = "a.*"\n'
    "[coordinator]\noffsets.retention.minutes = 9\n"
)
LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"me\" password='s\\'t';"
PROPERTIES = (
    "# client\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config="
    f"{LOGIN}\nrequest.timeout.ms=1500\nclient.id=me\n"
)
ADDRESSES = "b-1.example.com:9092, SSL://[::1]:9093"


def properties() -> list[bytes]:
    """Properties with a login, and with certificates in the file itself, whose lines are one text."""
    identity = Authority("ca").issue("client")
    tls = (
        f"security.protocol=SSL\nssl.truststore.certificates={identity.certificate_pem!r}\n"
        "ssl.enabled.protocols=TLSv1.3\nssl.keystore.location=\nssl.key.password=x\n"
    )
    return [PROPERTIES.encode(), tls.replace("'", "").replace("\\n", " ").encode(), b"security.protocol=PLAINTEXT\n"]


def read_properties(path: Path) -> None:
    ClientSettings(KafkaOptions("b:9092", read_client_properties(path)))


def read_certificates(data: bytes, _: Path) -> None:
    certificates, key = data.decode("utf-8", "replace").rpartition("-----BEGIN PRIVATE")[::2]
    given = {
        "security.protocol": "SSL",
        "ssl.truststore.certificates": certificates,
        "ssl.keystore.certificate.chain": certificates,
        "ssl.keystore.key": f"-----BEGIN PRIVATE{key}",
    }
    ClientSettings(KafkaOptions("b:9092", given))


def certificates() -> list[bytes]:
    identity = Authority("ca").issue("client")
    return [f"{identity.certificate_pem}{identity.key_pem()}".encode()]


def jks_files() -> list[bytes]:
    """A key store in Java's own format, its last bytes left."""
    authority = Authority("ca")
    return [jks_file(authority.issue("client"), PASSWORD, authority.certificate)[:-20] + bytes(20)]


def stores() -> list[bytes]:
    """Key stores in Java's own format, as PKCS12, and as PEM."""
    identity = Authority("ca").issue("client")
    encrypted = serialization.BestAvailableEncryption(PASSWORD.encode())
    as_pkcs12 = pkcs12.serialize_key_and_certificates(b"own", identity.key, identity.certificate, None, encrypted)
    return [*jks_files(), as_pkcs12, f"{identity.key_pem()}{identity.certificate_pem}".encode()]


def read_store(prefix: str, data: bytes, folder: Path) -> None:
    """Read a key store; one in Java's own format gets the right checksum if its last bytes are left."""
    path = folder / "store.jks"
    if data[:4] == b"\xfe\xed\xfe\xed" and data[-20:] == bytes(20):
        data = data[:-20] + jks_digest(PASSWORD, data[:-20])
    path.write_bytes(data)
    given = {"security.protocol": "SSL", f"{prefix}.location": str(path), f"{prefix}.password": PASSWORD}
    ClientSettings(KafkaOptions("b:9092", given))


FILE = "input"
REQUEST = "the request"
CONNECT_ERRORS = (BadConnectRequest, CorruptRecord)
INPUTS: dict[str, Input] = {
    "records": Input(records, read_record, (CorruptRecord, UnknownRecordType), is_text=False),
    "keys of Connect": Input(
        texts('["files",{"filename":"/a","é":[1]}]', '["files",null]', "status-task-files-0", "task-a-0"),
        read_connect_key,
        (CorruptRecord,),
        "key",
    ),
    "values of Connect": Input(
        texts('{"position":30,"more":[1.5,{"a":null}]}', '{"state":"RUNNING","trace":null}'),
        read_connect_value,
        (CorruptRecord,),
        "value",
    ),
    "offsets of Connect": Input(texts(OFFSETS), as_text(read_offsets), CONNECT_ERRORS),
    "offsets of sinks": Input(texts(SINK_OFFSETS), as_text(read_sink_offsets), CONNECT_ERRORS),
    "settings of connectors": Input(
        texts(CONFIG), as_text(lambda text: settings_of(text, REQUEST)), (BadConnectRequest,), REQUEST
    ),
    "connectors": Input(texts(CONNECTOR), as_text(read_connector), (BadConnectRequest,)),
    "checkpoints": Input(checkpoint_files, read_checkpoint_file, (MalformedFile,), "cannot read", share=0.3),
    "marks of batches": Input(
        texts('{"query": "a", "source": "0", "batch": 3}', '{"query": null, "source": null, "batch": 0}'),
        as_text(read_mark),
        (InvalidReset,),
    ),
    "plans": Input(texts(PLAN), in_file(partial(read_plan_of, ["billing"])), (MalformedFile, InvalidReset), FILE),
    "plans of groups": Input(
        texts(PLAN_OF_GROUPS), in_file(partial(read_plan_of, [])), (MalformedFile, InvalidReset), FILE
    ),
    "positions": Input(texts(POSITIONS), in_file(read_positions_of), (MalformedFile,), FILE),
    "samples": Input(texts(SAMPLES, POSITIONS), in_file(read_samples), (MalformedFile,), FILE),
    "ZooKeeper's dumps": Input(texts(DUMP), in_file(read_nodes), (MalformedFile,), FILE),
    "settings": Input(texts(SETTINGS), in_file(load_settings), (ConfigError,), FILE, share=0.3),
    "client properties": Input(
        properties, in_file(read_properties), (MalformedFile, ConfigError, NoSuchPath, DependencyMissing)
    ),
    "addresses": Input(
        texts(ADDRESSES), as_text(lambda text: ClientSettings(KafkaOptions(text, {}))), (ConfigError,), "address"
    ),
    "certificates": Input(certificates, read_certificates, (ConfigError,), "Kafka option"),
    "trust stores": Input(
        jks_files,
        partial(read_store, "ssl.truststore"),
        (ConfigError,),
        "trust",
        share=0.3,
        is_text=False,
    ),
    "key stores": Input(
        stores, partial(read_store, "ssl.keystore"), (ConfigError,), "keystore", share=0.05, is_text=False
    ),
    "times": Input(
        texts("2026-03-01T12:00:00.123+01:00", "1795000000000"), as_text(parse_time_ms), (InvalidTime,), "time"
    ),
    "durations": Input(texts("P1DT12H30M5.5S", "PT90S"), as_text(duration_ms), (InvalidTime,), "duration"),
}


class Refused(OffsetsError):
    """The service's answer to a request that it refuses."""


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bytes, Path], object]]:
    """A reader of requests to a running service: the first byte chooses the request, the rest is its body."""
    location = tmp_path_factory.mktemp("rest") / "owned"
    ConnectLog.create(location, "lab", 3)
    with service(location) as client:
        assert client.send("POST", "/connectors", CONNECTOR.encode()).status == 201

        def read(data: bytes, _: Path) -> None:
            method, path = REQUESTS[data[0] % 3 if data else 0][:2]
            answer = client.send(method, path, data[1:])
            assert answer.status in {200, 201, 400, 409}, answer
            if answer.status >= 400:
                assert answer.body["error_code"] == answer.status
                raise Refused(answer.body["message"])

        yield read


def read_mutated(each: Input, count: int, seed: int, folder: Path, record: Callable[[str, object], None]) -> None:
    choose = random.Random(seed)
    mutator, samples = TextMutator(choose, is_text=each.is_text), each.samples()
    outcomes: Counter[str] = Counter()
    before, slowest, size, count = peak_mib(), 0.0, 0, max(FEW, round(count * each.share))
    for number in range(count):
        data = choose.choice(samples)
        if number % UNCHANGED:  # some are read, whatever keys and certificates the samples have
            data = mutator.changed(data)
        size += len(data)
        with soon(f"input {number} of seed {seed}, {data[:2_000]!r}") as took:
            try:
                each.reader(data, folder)
                outcomes["read"] += 1
            except each.refuses as error:
                outcomes[type(error).__name__] += 1
                line = error_line(error)
                assert each.where in line, line
                assert line.endswith("\n"), line
                assert line[:-1].isprintable(), line
                assert len(line) <= LINE_CHARACTERS, line
        slowest = max(slowest, *took)
    grown = peak_mib() - before
    record("inputs", f"{count}: {size} bytes, seed {seed}")
    record("outcomes", f"{dict(outcomes)}, slowest {slowest:.3f} s, memory grown by {grown} MiB")
    assert 0.01 < outcomes["read"] / count < 0.99, outcomes
    assert grown < GROWTH_MIB


@pytest.mark.parametrize("name", INPUTS)
def test_mutated_inputs_are_read_or_refused(
    name: str, run_seed: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    read_mutated(INPUTS[name], FEW, run_seed, tmp_path, record_property)


@pytest.mark.long
@pytest.mark.parametrize("name", INPUTS)
def test_very_many_mutated_inputs_are_read_or_refused(
    name: str, turn_seed: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    read_mutated(INPUTS[name], MANY, turn_seed, tmp_path, record_property)


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY // 10, marks=pytest.mark.long)])
def test_mutated_requests_are_answered_or_refused(
    rest: Callable[[bytes, Path], object],
    count: int,
    run_seed: int,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    samples = [bytes([number]) + body.encode() for number, (_, _, body) in enumerate(REQUESTS)]
    read_mutated(Input(lambda: samples, rest, (Refused,)), count, run_seed, tmp_path, record_property)
