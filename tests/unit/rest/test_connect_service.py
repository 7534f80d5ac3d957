"""The REST interface over an owned store: status codes, bodies, names, secrets, and many clients at once (R32)."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from offsets_pipeline.connect.connect_log import ConnectLog
from offsets_pipeline.connect.offset_backing_store import OffsetBackingStore, OffsetStorageWriter
from offsets_pipeline.connect.offset_management import OffsetManagement
from offsets_pipeline.errors import StorageFailed
from offsets_pipeline.service.rest.guard import wrong_path
from tests.rest_client import Answer, RestClient
from tests.unit.rest.services import service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONFIG = {"connector.class": "FileStreamSource", "tasks.max": "1", "file": "/a", "topic": "fa"}
A, B = {"filename": "/a"}, {"filename": "/é"}


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An owned store; each test has a connector of its own."""
    folder = tmp_path_factory.mktemp("rest") / "owned"
    ConnectLog.create(folder, "lab", 3)
    return folder


@pytest.fixture(scope="module")
def client(location: Path) -> Iterator[RestClient]:
    """A client of a service over the store."""
    with service(location) as started:
        yield started


def created(client: RestClient, name: str, *, stopped: bool = True) -> str:
    """The path of a new connector."""
    path = f"/connectors/{quote(name, safe='')}"
    assert client.send("PUT", f"{path}/config", CONFIG).status == 201
    if stopped:
        assert client.send("PUT", f"{path}/stop") == (204, "")
    return path


def altered(*pairs: tuple[Any, Any]) -> dict[str, Any]:
    """The body of an alteration."""
    return {"offsets": [{"partition": partition, "offset": offset} for partition, offset in pairs]}


def error(status: int, message: str) -> Answer:
    """An error in Connect's form."""
    return Answer(status, {"error_code": status, "message": message})


# --- offsets, states and configurations


def test_offsets_are_listed_altered_and_reset(client: RestClient) -> None:
    path = created(client, "files")
    for change in (((A, {"p": 1}), (B, {"p": 2})), ((A, {"p": 3}),)):
        assert client.send("PATCH", f"{path}/offsets", altered(*change)) == (
            200,
            {"message": "The offsets for this connector have been altered successfully"},
        )
    assert client.send("GET", f"{path}/offsets") == (200, altered((A, {"p": 3}), (B, {"p": 2})))
    client.send("PATCH", f"{path}/offsets", {"offsets": [{"partition": A}]})  # no offset is a null one, as in Connect
    assert client.send("GET", f"{path}/offsets") == (200, altered((B, {"p": 2})))
    for _ in range(2):
        assert client.send("DELETE", f"{path}/offsets") == (
            200,
            {"message": "The offsets for this connector have been reset successfully"},
        )
    assert client.send("GET", f"{path}/offsets") == (200, {"offsets": []})


def test_a_connector_is_stopped_paused_and_resumed(client: RestClient) -> None:
    path = created(client, "states", stopped=False)
    for change, status, state in (
        ("pause", 202, "PAUSED"),
        ("stop", 204, "STOPPED"),
        ("stop", 204, "STOPPED"),
        ("resume", 202, "RUNNING"),
    ):
        assert client.send("PUT", f"{path}/{change}") == (status, "")
        assert client.send("GET", f"{path}/status") == (
            200,
            {
                "name": "states",
                "connector": {"state": state, "worker_id": client.address},
                "tasks": [],
                "type": "source",
            },
        )


def test_a_connector_exists_by_its_first_flush(location: Path, client: RestClient) -> None:
    with OffsetBackingStore(location) as backing:
        writer = OffsetStorageWriter(backing, "flushed")
        writer.offset(A, {"p": 7})
        assert writer.begin_flush()
        writer.do_flush().result(10)
    assert client.send("GET", "/connectors/flushed/offsets") == (200, altered((A, {"p": 7})))
    assert "flushed" in client.send("GET", "/connectors").body
    assert client.send("GET", "/connectors/flushed/config") == (200, {"name": "flushed"})
    assert client.send("PUT", "/connectors/flushed/config", CONFIG).status == 201


def test_a_configuration_is_created_changed_and_shown(client: RestClient) -> None:
    path = "/connectors/configured"
    shown = {"name": "configured", "config": {**CONFIG, "name": "configured"}, "tasks": [], "type": "source"}
    assert client.send("PUT", f"{path}/config", CONFIG) == (201, shown)
    assert client.send("PUT", f"{path}/config", {**CONFIG, "name": "configured"}) == (200, shown)
    changed = {**CONFIG, "batch.size": 10, "flag": True}
    assert client.send("PUT", f"{path}/config", changed).status == 200
    expected = {**CONFIG, "batch.size": "10", "flag": "true", "name": "configured"}
    assert client.send("GET", f"{path}/config") == (200, expected)
    assert client.send("GET", path) == (200, {**shown, "config": expected})
    expanded = client.send("GET", "/connectors?expand=status&expand=info").body["configured"]
    assert (expanded["info"]["config"], expanded["status"]["connector"]["state"]) == (expected, "RUNNING")


def test_a_connector_is_created_in_a_state_deleted_and_created_again(client: RestClient) -> None:
    new = {"name": " made\t", "config": CONFIG, "initial_state": "stopped"}
    shown = {"name": "made", "config": {**CONFIG, "name": "made"}, "tasks": [], "type": "source"}
    assert client.send("POST", "/connectors", new) == (201, shown)
    assert client.send("PATCH", "/connectors/made/offsets", altered((A, {"p": 1}))).status == 200
    assert client.send("POST", "/connectors", new) == error(409, "Connector made already exists")
    assert client.send("DELETE", "/connectors/made") == (204, "")
    assert client.send("DELETE", "/connectors/made") == error(404, "Connector made not found")
    assert "made" not in client.send("GET", "/connectors").body
    assert "made" not in client.send("GET", "/connectors?expand=info").body
    assert client.send("POST", "/connectors", {"name": "made", "config": CONFIG}) == (201, shown)
    assert client.send("GET", "/connectors/made/status").body["connector"]["state"] == "RUNNING"
    assert client.send("GET", "/connectors/made/offsets") == (200, altered((A, {"p": 1})))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"config": CONFIG}, "Invalid value  for configuration name: String may not be empty"),
        ({"name": "x"}, "config of the request does not hold settings"),
        ({"name": "x", "config": {**CONFIG, "name": "y"}}, "Connector name configuration (y) doesn't match"),
        ({"name": "x", "config": CONFIG, "initial_state": "DESTROYED"}, "the request does not hold a connector"),
        ({"name": ["x"], "config": CONFIG}, "the request does not hold a connector"),
        ({"name": "x", "config": CONFIG, "more": 1}, "the request does not hold a connector"),
        ([], "config of the request does not hold settings"),
        ({"name": "x", "config": {**CONFIG, "db.password": "hunter2hunter2"}}, "it looks like a secret"),
    ],
)
def test_a_wrong_connector_is_not_created(client: RestClient, body: object, message: str) -> None:
    refused = client.send("POST", "/connectors", body)
    assert (refused.status, refused.body["error_code"]) == (400, 400)
    assert message in refused.body["message"]
    assert client.send("GET", "/connectors/x") == error(404, "Connector x not found")


def test_the_service_says_what_it_is_and_what_needs_a_worker(client: RestClient) -> None:
    about = {"version": "4.2.0", "commit": "unknown", "kafka_cluster_id": "lab"}
    assert client.send("GET", "/") == (200, about)
    assert client.send("POST", "/connectors/x/restart") == error(
        501, "POST /connectors/x/restart needs a worker of Kafka Connect; this service runs no connectors"
    )


def test_changes_of_another_process_are_seen(location: Path, client: RestClient) -> None:
    path = created(client, "shared")
    with ConnectLog.open(location) as log:
        OffsetManagement(log).alter("shared", altered((A, {"p": 4}))["offsets"])
        assert client.send("GET", f"{path}/offsets") == (200, altered((A, {"p": 4})))
        client.send("PUT", f"{path}/resume")
        assert OffsetManagement(log).target_states()["shared"] == "RUNNING"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**CONFIG, "name": "y"}, "Connector name configuration (y) doesn't match connector name in the URL (x)"),
        ({"tasks.max": "1"}, "Connector config of x contains no connector type; name connector.class"),
        ({**CONFIG, "tasks.max": "0"}, "Invalid value 0 for configuration tasks.max: Value must be at least 1"),
        ({**CONFIG, "tasks.max": "many"}, "Invalid value many for configuration tasks.max: Not a number of type INT"),
        ({**CONFIG, "tasks.max": "9" * 10}, "configuration tasks.max: Not a number of type INT"),
        ({**CONFIG, "connector.class": "FileStreamSink"}, "a sink connector keeps its offsets in a consumer group"),
        ({**CONFIG, "x": {"y": 1}}, "the request does not hold settings"),
        ({**CONFIG, "x": None}, "Null value can not be supplied as the configuration value."),
        ([], "the request does not hold settings"),
        (b'{"x": "\\ud800"}', "the request is not JSON"),
        (b"\xff", "the request is not UTF-8 at position 0"),
        (b"", "the request is not JSON"),
    ],
)
def test_a_wrong_configuration_is_refused(client: RestClient, settings: object, message: str) -> None:
    refused = client.send("PUT", "/connectors/x/config", settings)
    assert (refused.status, refused.body["error_code"]) == (400, 400)
    assert message in refused.body["message"]
    assert client.send("GET", "/connectors/x") == error(404, "Connector x not found")


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"1", b'{"offsets": {}}', b'{"offsets": [1]}', b'{"offsets": []}', b"{}", b'{"other": []}'),
        *(b'{"offsets": [], "more": 1}', b'{"offsets": [{"partition": 1, "offset": {}}]}'),
        b'{"offsets": [{"partition": {}, "offset": 1}]}',
        b'{"offsets": [{"partition": {}, "offset": {}, "more": 1}]}',
        b'{"offsets": [{"partition": null, "offset": {}}]}',
        b'{"offsets": [{"partition": {"x": NaN}, "offset": {}}]}',
        b'{"offsets": [{"partition": {"x": "\\ud800"}, "offset": {}}]}',
        b'{"offsets": [{"partition": {"x": ' + b"9" * 5000 + b'}, "offset": {}}]}',
        b'{"offsets": [{"partition": {"x": ' + b"[" * 100 + b"]" * 100 + b'}, "offset": {}}]}',
        b'{"offsets": [{"partition": {"x": 1}, "offset": {"p": 1e400}}]}',
        b"[" * 100_000,
    ],
)
def test_a_wrong_alteration_is_refused_and_changes_nothing(client: RestClient, body: bytes) -> None:
    if client.send("GET", "/connectors/wrong").status == 404:
        created(client, "wrong")
        client.send("PATCH", "/connectors/wrong/offsets", altered((A, {"p": 1})))
    refused = client.send("PATCH", "/connectors/wrong/offsets", body)
    assert (refused.status, refused.body["error_code"]) == (400, 400)
    assert "key" not in refused.body["message"]  # of the log, which the client does not know
    assert client.send("GET", "/connectors/wrong/offsets") == (200, altered((A, {"p": 1})))


def test_a_body_with_a_byte_order_mark_is_taken(client: RestClient) -> None:
    path = created(client, "marked")
    body = json.dumps(altered((A, {"p": 1}))).encode("utf-8-sig")
    assert client.send("PATCH", f"{path}/offsets", body).status == 200
    assert client.send("GET", f"{path}/offsets") == (200, altered((A, {"p": 1})))
    settings = '{"connector.class": "x.FileStreamSource"}'.encode("utf-8-sig")
    assert client.send("PUT", f"{path}/config", settings).status == 200


def test_a_request_that_is_not_json_is_refused(client: RestClient) -> None:
    for content_type in ("text/plain", "", "application/jsonx"):
        answer = client.send("PATCH", "/connectors/x/offsets", b"{}", {"Content-Type": content_type})
        assert answer == error(415, "HTTP 415 Unsupported Media Type")


# --- secrets


SECRETS = [
    ("database.password", "hunter2hunter2"),
    ("db_pwd", "hunter2hunter2"),
    ("aws.secret.access.key", "hunter2hunter2"),
    ("apiKey", "hunter2hunter2"),
    ("auth.token", "hunter2hunter2"),
    ("basic.auth.user.info", "me:hunter2hunter2"),
    ("database.password", "${file:/run/db:password}hunter2hunter2"),
    ("database.password", "${hunter2hunter2}"),
    ("connection.url", "jdbc:postgresql://me:hunter2hunter2@db/x"),
    ("connection.url", "jdbc:postgresql://db/x?user=me&password=hunter2hunter2"),
    ("azure.connection", "AccountName=a;AccountKey=hunter2hunter2"),
    ("sasl.jaas.config", 'x.PlainLoginModule required username="me" password="hunter2hunter2";'),
    ("settings", '{"password": "hunter2hunter2"}'),
    ("header", "Authorization: Bearer hunter2hunter2"),
    ("ssl.keystore.key", "hunter2hunter2"),
    *((name, "hunter2hunter2") for name in ("db.pass", "db.pwd", "dbPass", "DB_PASS", "dbpass", "db.pw", "master.key")),
    *((name, "hunter2hunter2") for name in ("azure.storage.key", "licenseKey", "key", "aws.access.key.id")),
    *((name, "hunter2hunter2") for name in ("confluent.license", "ssl.truststore.certificates", "vault.credential")),
    ("pem", "-----BEGIN RSA PRIVATE KEY-----\nhunter2hunter2"),
    ("id", "AKIAHUNTER2HUNTER2XX"),
]
NO_SECRETS = {
    "database.password": "${file:/run/secrets/db:password}",
    "sasl.jaas.config": 'x.PlainLoginModule required username="me" password="${env:PW}";',
    "connection.url": "jdbc:postgresql://me:${env:PW}@db/x?ssl=true",
    "s3.credentials.provider.class": "com.example.Provider",
    "sasl.oauthbearer.token.endpoint.url": "https://login/token",
    "ssl.truststore.location": "/run/trust.jks",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "key.converter.schemas.enable": "no",
    "key.ignore": "yes",
    "message.key.columns": "a:b",
    "primary.key.fields": "id",
    "partition.key": "id",
    "rabbitmq.routingKey": "orders",
    "sort_keys": "id",
    "tokens.max": "5",
    "error.bypass": "all",
    "passive.mode": "on",
    "keyspace": "orders",
    "basic.auth.credentials.source": "USER_INFO",
    "tokenizer": "words",
    "password": "",
    "é": "a name without words",
    "secrets.enabled": "true",
}


@pytest.mark.parametrize(("name", "value"), SECRETS)
def test_a_secret_in_clear_is_refused_and_shown_nowhere(client: RestClient, name: str, value: str) -> None:
    refused = client.send("PUT", "/connectors/secretive/config", {**CONFIG, name: value})
    assert (refused.status, "hunter2" in str(refused.body).lower()) == (400, False)
    assert f"Invalid value [hidden] for configuration {name}: it looks like a secret" in refused.body["message"]


def test_references_to_secrets_are_stored(client: RestClient) -> None:
    assert client.send("PUT", "/connectors/referring/config", {**CONFIG, **NO_SECRETS}).status == 201
    assert client.send("GET", "/connectors/referring/config").body == {**CONFIG, **NO_SECRETS, "name": "referring"}


def test_no_file_of_the_store_has_a_secret(location: Path, client: RestClient) -> None:
    for number in range(6):  # so that there is something to search, whichever tests ran before
        assert client.send("PUT", f"/connectors/open-{number}/config", CONFIG).status == 201
    for number, (name, value) in enumerate(SECRETS):
        assert client.send("PUT", f"/connectors/secret-{number}/config", {**CONFIG, name: value}).status == 400
    with ConnectLog.open(location) as log:
        values = [record.value for state in log._states for record in state.records.values()]
    assert len(values) > 5
    assert not any("hunter2" in (value or "").lower() for value in values)


# --- names and paths


@pytest.mark.parametrize(
    "name", ["é ☃ x", "a:b", "a+b", "a;b", "a?b", "a#b", "[x]", '"quoted"', "a.b", "...", "target-state-x"]
)
def test_a_name_may_have_characters_that_paths_encode(client: RestClient, name: str) -> None:
    path = created(client, name)
    client.send("PATCH", f"{path}/offsets", altered((A, {"p": 1})))
    assert client.send("GET", f"{path}/offsets") == (200, altered((A, {"p": 1})))
    assert client.send("GET", path).body["config"]["name"] == name
    assert name in client.send("GET", "/connectors").body


@pytest.mark.parametrize(
    "name",
    [
        *("a%2Fb", "a%2fb", "%2E%2E", "..", ".", "%2e", "a%5Cb", "a\\b", "", "a;b=c", "%ff", "%C3", "%00", "a%0Ab"),
        *("a%7F", "a%252Fb", "a%zz", "a%2", "%", "%ED%A0%80"),
    ],
)
def test_a_path_that_programs_read_differently_is_refused(client: RestClient, name: str) -> None:
    before = client.send("GET", "/connectors").body
    for method, of_connector in (("GET", "offsets"), ("DELETE", "offsets"), ("PUT", "stop"), ("PUT", "config")):
        body = CONFIG if of_connector == "config" else None
        answer = client.send(method, f"/connectors/{name}/{of_connector}", body)
        assert (answer.status, answer.body["error_code"]) == (400, 400)
    assert client.send("GET", "/connectors").body == before


@pytest.mark.parametrize("path", ["http://elsewhere/connectors", "*", "/connectors/é", ""])
def test_only_absolute_paths_in_ascii_are_routed(path: str) -> None:
    assert wrong_path(path.encode()) is not None


def test_names_of_blanks_and_with_control_characters_are_refused(client: RestClient) -> None:
    for name, reason in (
        ("%20", "Invalid value  for configuration name: String may not be empty"),
        ("a%C2%85", "String may not contain control sequences but had the following ASCII chars: 133"),
    ):
        refused = client.send("PUT", f"/connectors/{name}/config", CONFIG)
        assert (refused.status, reason in refused.body["message"]) == (400, True)


def test_other_paths_and_methods_have_connects_errors(client: RestClient) -> None:
    for path in ("/nope", "/connectors/x/nope", "/connectors/x/offsets/y"):
        assert client.send("GET", path) == error(404, "HTTP 404 Not Found")
    assert client.send("GET", "/connectors/") == client.send("GET", "/connectors")
    for method, path in (("POST", "/connectors/x/stop"), ("DELETE", "/connectors/x/config"), ("PUT", "/connectors")):
        assert client.send(method, path) == error(405, "HTTP 405 Method Not Allowed")


def test_an_unknown_connector_is_not_found(client: RestClient) -> None:
    for method, of_connector, message in (
        ("GET", "/offsets", "Connector no such not found"),
        ("DELETE", "/offsets", "Connector no such not found"),
        ("GET", "", "Connector no such not found"),
        ("GET", "/config", "Connector no such not found"),
        ("GET", "/status", "No status found for connector no such"),
        ("PUT", "/stop", "Unknown connector no such"),
        ("PUT", "/pause", "Unknown connector no such"),
        ("PUT", "/resume", "Unknown connector no such"),
    ):
        assert client.send(method, f"/connectors/no%20such{of_connector}") == error(404, message)


# --- failures, and many clients


def test_a_storage_that_fails_is_an_error_of_the_server(
    location: Path, client: RestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: object) -> None:
        raise StorageFailed("cannot read the log: no route")

    monkeypatch.setattr(ConnectLog, "_catch_up", fails)
    assert client.send("GET", "/connectors") == error(500, "cannot read the log: no route")
    monkeypatch.setattr(ConnectLog, "_catch_up", lambda _: 1 / 0)
    answer = client.send("GET", "/connectors")
    assert (answer.status, "division" in answer.body["message"]) == (500, False)
    assert "ZeroDivisionError" in caplog.text


def test_of_many_clients_one_creates_a_connector(client: RestClient) -> None:
    start = threading.Barrier(20)

    def put(number: int) -> int:
        start.wait(30)
        return client.send("PUT", "/connectors/raced/config", {**CONFIG, "number": number}).status

    with ThreadPoolExecutor(20) as threads:
        statuses = sorted(threads.map(put, range(20)))
    assert statuses == [*[200] * 19, 201]


def test_of_100_clients_no_request_loses_or_tears_an_offset(location: Path, client: RestClient) -> None:
    clients, rounds, connectors = 100, 3, 10
    paths = [created(client, f"many-{number}") for number in range(connectors)]
    start = threading.Barrier(clients)

    def half(number: int, name: str) -> dict[str, Any]:
        return {"client": number, "half": name}

    def run(number: int) -> None:
        path = paths[number % connectors]
        start.wait(30)
        for position in range(1, rounds + 1):
            change = altered(*((half(number, name), {"p": position}) for name in "ab"))
            assert client.send("PATCH", f"{path}/offsets", change).status == 200
            listed = client.send("GET", f"{path}/offsets").body["offsets"]
            by_client: dict[int, list[int]] = {}
            for each in listed:
                by_client.setdefault(each["partition"]["client"], []).append(each["offset"]["p"])
            assert by_client[number] == [position, position]
            assert all(len(pair) == 2 and pair[0] == pair[1] for pair in by_client.values())

    with ThreadPoolExecutor(clients) as threads:
        for done in [threads.submit(run, number) for number in range(clients)]:
            done.result(120)
    expected = {
        f"many-{number}": [
            (half(each, name), {"p": rounds}) for each in range(number, clients, connectors) for name in "ab"
        ]
        for number in range(connectors)
    }
    with ConnectLog.open(location) as log:
        for name, offsets in expected.items():
            assert OffsetManagement(log).offsets(name) == altered(
                *sorted(offsets, key=lambda pair: (str(pair[0]["client"]) + ",", pair[0]["half"]))
            )
