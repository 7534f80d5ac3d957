"""An error of S3 is one line: its cause, where, and what to do."""

from __future__ import annotations

import errno
import re
import socket
import time
import urllib.request
from typing import TYPE_CHECKING

import boto3  # type: ignore[import-untyped]
import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.errors import NoSuchCheckpoint, StorageFailed, StorageRefused
from offsets_pipeline.ingest.segments.segment_files import find_log
from offsets_pipeline.ingest.segments.segment_ingest import _look
from offsets_pipeline.spark_query.checkpoint_import import read_checkpoint
from offsets_pipeline.store.delta.reader import damage_of
from offsets_pipeline.store.delta.s3_errors import not_written
from offsets_pipeline.store.delta.schemas import LOG_PARTITIONS
from offsets_pipeline.store.delta.storage import storage_of
from offsets_pipeline.store.delta.table_folder import TableFolder
from tests.places import place_of
from tests.unit.delta.faulty_s3 import Fault, FaultyS3
from tests.unit.delta.test_table_folder import again, append

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

QUESTION = ("describe", "--all-groups")
COMMANDS = [QUESTION, ("create",), ("commit", "--group", "g", "t:0=1")]
each_command = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])


@pytest.fixture(scope="module")
def faulty() -> Iterator[tuple[FaultyS3, str]]:
    server = FaultyS3()
    with server.serving("causes", timeout_ms=20_000) as uri:  # no request is to time out
        yield server, uri


@pytest.fixture
def reader_key(moto: str, s3: str) -> Mapping[str, str]:
    """An access key that the server has given, to a user without permissions."""
    users = boto3.client("iam", "us-east-1", endpoint_url=moto)
    users.create_user(UserName="reader")
    key: Mapping[str, str] = users.create_access_key(UserName="reader")["AccessKey"]
    return key


@pytest.fixture
def keys_are_checked(moto: str) -> Iterator[None]:
    """The server accepts no key that it has not given."""

    def accept(requests: str) -> None:
        url, text = f"{moto}/moto-api/reset-auth", {"Content-Type": "text/plain"}
        urllib.request.urlopen(urllib.request.Request(url, requests.encode(), text)).close()

    accept("0")
    yield
    accept("inf")


@pytest.fixture
def no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/nonexistent")


def line_of(capsys: pytest.CaptureFixture[str], command: Sequence[str], store: str) -> str:
    """The line of a command that fails."""
    assert main([command[0], "--store", store, *command[1:]]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line.removeprefix("offsets: error: ")


@each_command
@pytest.mark.usefixtures("s3")
def test_a_bucket_that_does_not_exist(moto: str, capsys: pytest.CaptureFixture[str], command: Sequence[str]) -> None:
    assert re.fullmatch(
        r"cannot read the table s3://nothing/store/\w+: "
        rf"the bucket nothing does not exist at {moto}; check its name, or create the bucket",
        line_of(capsys, command, "s3://nothing/store"),
    )


@each_command
@pytest.mark.usefixtures("no_profile")
def test_no_credentials(
    s3: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: Sequence[str]
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert line_of(capsys, command, f"{s3}/store") == (
        "there are no credentials for S3; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile or a "
        "role (docs/storage.md)"
    )


@pytest.mark.usefixtures("no_profile")
def test_no_credentials_on_an_instance_without_a_role(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")  # in place of the instance's
    with pytest.raises(StorageFailed, match=r"/log_partitions: there are no credentials for S3; set AWS_.*md\)$"):
        TableFolder(f"{s3}/store/log_partitions", LOG_PARTITIONS).snapshot()


@each_command
@pytest.mark.usefixtures("keys_are_checked")
def test_an_unknown_access_key(moto: str, s3: str, capsys: pytest.CaptureFixture[str], command: Sequence[str]) -> None:
    assert re.fullmatch(
        rf"cannot (read the table {s3}/store/\w+|list {s3}/store): {moto} does not know the access key; "
        "check AWS_ACCESS_KEY_ID or the profile",
        line_of(capsys, command, f"{s3}/store"),
    )


@pytest.mark.usefixtures("reader_key", "keys_are_checked")  # in this order
def test_a_wrong_secret_and_a_key_without_permissions(
    moto: str,
    s3: str,
    reader_key: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", reader_key["AccessKeyId"])
    assert re.fullmatch(
        rf"cannot read the table {s3}/store/\w+: the secret of the access key is wrong; "
        "check AWS_SECRET_ACCESS_KEY or the profile",
        line_of(capsys, QUESTION, f"{s3}/store"),
    )
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", reader_key["SecretAccessKey"])
    assert re.fullmatch(
        rf"cannot read the table {s3}/store/\w+: {moto} refused access to the bucket bucket-moto; "
        "check the credentials and their permissions",
        line_of(capsys, QUESTION, f"{s3}/store"),
    )


@pytest.mark.parametrize(
    ("fault", "variables", "said"),
    [
        (
            Fault.OTHER_REGION,
            {"AWS_REGION": "eu-north-1"},
            "the bucket causes is not in the region eu-north-1 but in eu-west-3; set AWS_REGION to .* the bucket",
        ),
        (
            Fault.OTHER_REGION,
            {},
            "the bucket causes is not in the region us-east-1, the default but in eu-west-3; set AWS_REGION to .*",
        ),
        (Fault.REDIRECTED, {}, "the bucket causes is not in the region us-east-1, the default; set AWS_REGION .*"),
        (Fault.EXPIRED, {}, "the session token is wrong or has expired; get new credentials, and set AWS_SESS.*"),
        (Fault.REFUSED, {}, r"http://127\.0\.0\.1:\d+ refused access to the bucket causes; check the credentials .*"),
        (Fault.SKEWED, {}, r"the clock of this machine differs too much from that of http://[\d.:]+; set the clock"),
        (Fault.UNKNOWN, {}, r"http://[\d.:]+ does not know a kind of request, such as a conditional put .*; use a .*"),
    ],
)
@pytest.mark.usefixtures("no_profile")
def test_answers_of_other_servers(
    faulty: tuple[FaultyS3, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fault: Fault,
    variables: Mapping[str, str],
    said: str,
) -> None:
    server, uri = faulty
    monkeypatch.delenv("AWS_REGION")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    server.fault = lambda *_: fault
    try:
        assert re.fullmatch(
            rf"cannot read the table {uri}/store/\w+: {said}", line_of(capsys, QUESTION, f"{uri}/store")
        )
        server.fault = lambda method, _: fault if method == "PUT" else None
        assert re.fullmatch(rf"cannot write to {uri}/store/\w+: {said}", line_of(capsys, ("create",), f"{uri}/store"))
    finally:
        server.settle()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault.ERROR_503, "gets too many requests, or is not available now; try again later, or with fewer processes"),
        (Fault.ERROR_500, "has an error of its own; try again later"),
        (Fault.BROKEN_OFF, "broke off an answer; check the network, then try again"),
    ],
)
def test_a_file_that_the_server_does_not_give_now_is_not_damaged(
    faulty: tuple[FaultyS3, str], capsys: pytest.CaptureFixture[str], fault: Fault, said: str
) -> None:
    """The advice for a damaged file is to restore it, or to ingest the log again."""
    server, uri = faulty
    store = f"{uri}/{fault.name}"
    assert main(["create", "--store", store, "--offsets-partitions", "1"]) == 0
    assert main(["commit", "--store", store, "--group", "g", "t:0=1"]) == 0
    capsys.readouterr()
    server.fault = lambda method, path: fault if method == "GET" and path.endswith(".parquet") else None
    try:
        line = line_of(capsys, ("describe", "--group", "g"), store)
    finally:
        server.settle()
    assert re.fullmatch(rf"cannot read the table {store}/log: http://[\d.:]+ {said}", line)
    assert main(["describe", "--store", store, "--group", "g"]) == 0


def test_damage_is_what_a_file_has_and_not_that_it_cannot_be_read(faulty: tuple[FaultyS3, str]) -> None:
    server, uri = faulty
    table = TableFolder(f"{uri}/unread", LOG_PARTITIONS)
    table.create()
    append(table, 1)
    table.checkpoint(1)
    files = table.snapshot().files()
    server.fault = lambda method, path: Fault.REFUSED if method == "GET" and path.endswith(".parquet") else None
    try:
        assert damage_of(table.folder, files) is None
    finally:
        server.settle()
    assert damage_of(table.folder, files) is None
    with place_of(table.folder, files[0].name).open("wb") as file:
        file.write(b"x" * files[0].size)
    assert re.search(r"the data file .* is corrupt \(", str(damage_of(table.folder, files)))


def test_a_list_that_breaks_off_is_asked_for_again(faulty: tuple[FaultyS3, str]) -> None:
    server, uri = faulty
    table = TableFolder(f"{uri}/listed", LOG_PARTITIONS)
    table.create()
    left = [Fault.BROKEN_OFF, Fault.BROKEN_OFF]
    server.fault = lambda method, path: left.pop() if left and method == "GET" and path == "/causes" else None
    try:
        assert again(table).snapshot().version == 0
    finally:
        server.settle()
    assert left == []


def test_segments_and_checkpoints_that_cannot_be_read(faulty: tuple[FaultyS3, str]) -> None:
    server, uri = faulty
    segment = f"{uri}/read/__consumer_offsets-0/00000000000000000000.log"
    with place_of(segment).open("wb") as file:
        file.write(b"of a broker")
    found = find_log([segment])
    server.fault = lambda *_: Fault.REFUSED
    said = r": http://.* refused access to the bucket causes; check the credentials and their permissions$"
    try:
        with pytest.raises(StorageFailed, match=rf"^cannot read {uri}/segments{said}"):
            find_log([f"{uri}/segments"])
        with pytest.raises(StorageFailed, match=rf"^cannot read {segment}{said}"):
            _look(found)
        with pytest.raises(NoSuchCheckpoint, match=rf"^cannot read checkpoint {uri}/checkpoint{said}"):
            read_checkpoint(f"{uri}/checkpoint")
    finally:
        server.settle()


def test_a_server_that_ignores_conditions_is_refused(
    faulty: tuple[FaultyS3, str], capsys: pytest.CaptureFixture[str]
) -> None:
    server, uri = faulty
    server.fault = lambda *_: Fault.UNCONDITIONAL
    try:
        line = line_of(capsys, ("create",), f"{uri}/unsafe")
    finally:
        server.settle()
    assert re.fullmatch(
        rf"cannot use the storage of {uri}/unsafe/\w+: it ignores conditional puts \(If-None-Match\), and commits "
        r"could get lost; use a store that honours them \(docs/storage.md\)",
        line,
    )


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "http://no-such-host.invalid:9000"])
def test_an_endpoint_that_does_not_answer(
    s3: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], endpoint: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    said = f"{endpoint} does not answer; check AWS_ENDPOINT_URL and the network"
    line = line_of(capsys, QUESTION, f"{s3}/store")
    assert re.fullmatch(rf"cannot read the table {s3}/store/\w+: {re.escape(said)}", line)
    assert line_of(capsys, ("create",), f"{s3}/store") == f"cannot list {s3}/store: {said}"


@pytest.mark.parametrize(("command", "doing"), [(QUESTION, r"read the table {}/\w+"), (("create",), "list {}")])
def test_an_endpoint_that_takes_connections_and_never_answers(
    s3: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: Sequence[str], doing: str
) -> None:
    """The question meets `deltalake`, and the command that makes a store Arrow."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("AWS_TIMEOUT", "200ms")
        began = time.monotonic()
        line = line_of(capsys, command, f"{s3}/store")
        assert time.monotonic() - began < 60  # three minutes by the libraries' defaults
    where = doing.format(re.escape(f"{s3}/store"))
    assert re.fullmatch(rf"cannot {where}: {endpoint} does not answer; check AWS_ENDPOINT_URL and the network", line)


@pytest.mark.parametrize(
    ("location", "error", "kind"),
    [
        ("s3://b/t", OSError("AWS Error SLOW_DOWN during PutObject"), StorageFailed),
        ("s3://b/t", OSError("curlCode: 28, Timeout was reached"), StorageFailed),
        ("s3://b/t", OSError("AWS Error ACCESS_DENIED during PutObject"), StorageRefused),
        ("s3://b/t", OSError("AWS Error NO_SUCH_BUCKET during PutObject"), StorageRefused),
        ("/t", OSError(errno.ENOSPC, "No space left on device"), StorageFailed),
        ("/t", PermissionError(errno.EACCES, "Permission denied"), StorageRefused),
        ("/t", OSError("AWS Error ACCESS_DENIED, of another file"), StorageFailed),
    ],
)
def test_only_an_error_that_a_person_has_to_mend_is_not_retriable(
    location: str, error: OSError, kind: type[StorageFailed]
) -> None:
    assert type(not_written(location, error)) is kind
    assert kind.retriable is (kind is StorageFailed)


def test_an_error_of_an_unknown_kind_says_the_words_of_the_library(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = TableFolder(f"{s3}/store/log_partitions", LOG_PARTITIONS)

    def fail(*_: object, **__: object) -> bool:
        raise OSError("the disk is on fire")

    monkeypatch.setattr(type(storage_of(table.folder)), "create", fail)
    with pytest.raises(StorageFailed, match="the disk is on fire; nothing was committed; check its free space and"):
        table.create()
