"""The REST service answers as a real Connect worker: the same requests to both, and each difference with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from examples.file_lines import chunks
from offsets_pipeline.cli import main
from offsets_pipeline.connect.connect_log import ConnectLog
from offsets_pipeline.connect.offset_backing_store import OffsetBackingStore, OffsetStorageWriter
from offsets_pipeline.coordinator.owned_store import OwnedStore
from tests.kafka.connect_worker import connect_worker
from tests.kafka.live import live_broker
from tests.kafka.live_clients import wait_until
from tests.rest_client import Answer
from tests.unit.lag.stores import folded_segments
from tests.unit.rest.services import service

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from offsets_pipeline.common.config import Settings
    from tests.kafka.brokers import KafkaJvm
    from tests.kafka.live import LiveBroker
    from tests.rest_client import RestClient

pytestmark = pytest.mark.slow  # starts a broker and a Connect worker, once for the module

FILE_SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"
LINES = "one\ntwo\n"
#: Last line of a worker's answer to wrong settings.
_VALIDATION = (
    "\nYou can also find the above list of errors at the endpoint `/connector-plugins/{connectorType}/config/validate`"
)


def comparable(answer: Answer) -> Answer:
    """An answer without its accepted differences.

    - Tasks, and the versions of plugins: the service runs no connector.
    - The worker's address, and the order of offsets and names.
    - The endpoint that validates settings: the service has none.
    """
    body = answer.body
    if isinstance(body, list):
        body = sorted(body, key=repr)
    elif isinstance(body, dict) and "offsets" in body:
        body = {"offsets": sorted(body["offsets"], key=repr)}
    elif isinstance(body, dict) and "message" in body:
        body = {**body, "message": body["message"].removesuffix(_VALIDATION)}
    elif isinstance(body, dict):
        body = _without_tasks(body)
    return Answer(answer.status, body)


def _without_tasks(body: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in body.items():
        if name == "tasks":
            continue
        if name == "connector" and isinstance(value, dict):
            assert ":" in value["worker_id"]
            found[name] = {"state": value["state"]}
        else:
            found[name] = _without_tasks(value) if isinstance(value, dict) else value
    return found


class Both:
    """A worker and a service, which get the same requests."""

    def __init__(self, broker: LiveBroker, worker: RestClient, ours: RestClient, store: Path, folder: Path) -> None:
        self.broker = broker
        self.clients = worker, ours
        self._store = store
        self._folder = folder

    def config(self, name: str) -> dict[str, str]:
        """Settings of a file source; its file has LINES."""
        file = self._folder / f"{name}.txt"
        file.write_text(LINES)
        return {"connector.class": FILE_SOURCE, "tasks.max": "1", "file": str(file), "topic": "lines"}

    def created(self, name: str, state: str = "RUNNING") -> dict[str, str]:
        """Create a file source, which flushes the position of its lines; returns its source partition.

        The worker's task flushes by itself, and the test flushes the same for the service.
        """
        config = self.config(name)
        assert self.agree("PUT", f"/connectors/{name}/config", config).status == 201
        partition = {"filename": config["file"]}
        self.flush(name, partition, {"position": len(LINES)})
        offsets = {"offsets": [{"partition": partition, "offset": {"position": len(LINES)}}]}
        assert self.agree_soon("GET", f"/connectors/{name}/offsets").body == offsets
        if state != "RUNNING":
            self.agree("PUT", f"/connectors/{name}/{'stop' if state == 'STOPPED' else 'pause'}")
            self.is_soon(name, state)
        return partition

    def flush(self, name: str, partition: dict[str, str], offset: dict[str, int]) -> None:
        """Flush an offset as a task of the service does."""
        with OffsetBackingStore(self._store) as backing:
            writer = OffsetStorageWriter(backing, name)
            writer.offset(partition, offset)
            assert writer.begin_flush()
            writer.do_flush().result(30)

    def tombstones(self, name: str) -> list[set[bytes]]:
        """The keys of a connector whose last record is a tombstone: in the worker's topic, and in the service's log."""
        theirs = {each.key: each.value for each in self.broker.log_records("connect-config")}
        with ConnectLog.open(self._store) as log:
            ours = {key.encode(): record.value for key, record in log.records(name)}
        of_name = name.encode()
        return [{key for key in keys if key and of_name in key and keys[key] is None} for keys in (theirs, ours)]

    def is_soon(self, name: str, state: str) -> None:
        """Wait until the connector has this state: a worker changes it after its answer."""
        status = self.agree_soon("GET", f"/connectors/{name}/status")
        assert status == (200, {"name": name, "connector": {"state": state}, "type": "source"})

    def answers(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> list[Answer]:
        """Send a request to both; returns the answers of the worker and of the service."""
        return [comparable(each.send(method, path, body, headers)) for each in self.clients]

    def agree(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Answer:
        """Send a request to both; the answers are equal. Returns the service's."""
        theirs, ours = self.answers(method, path, body, headers)
        assert ours == theirs, (method, path, body)
        return ours

    def agree_soon(self, method: str, path: str) -> Answer:
        """Send a request to both until the answers are equal; returns the service's."""
        found: list[Answer] = []

        def are_equal() -> bool:
            found[:] = self.answers(method, path)
            return found[0] == found[1]

        wait_until(are_equal, f"the answers to {method} {path} are equal", 30, lambda: repr(found))
        return found[1]


@pytest.fixture(scope="module")
def both(kafka: KafkaJvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """A worker and a service without connectors; each test has connectors of its own."""
    folder = tmp_path_factory.mktemp("connect")
    ConnectLog.create(folder / "owned", "lab", 5)
    with (
        live_broker(kafka, folder / "broker") as broker,
        connect_worker(kafka, broker) as worker,
        service(folder / "owned") as ours,
    ):
        yield Both(broker, worker, ours, folder / "owned", folder)


def altered(*pairs: tuple[Any, Any]) -> dict[str, Any]:
    """The body of an alteration."""
    return {"offsets": [{"partition": partition, "offset": offset} for partition, offset in pairs]}


# --- the same answers


def test_offsets_of_a_stopped_connector_are_altered_and_reset(both: Both) -> None:
    path = "/connectors/files/offsets"
    here, new = both.created("files", "STOPPED"), {"filename": "/é ☃.txt"}
    for change in (
        altered((here, {"position": 4}), (new, {"position": 2})),
        altered((new, {"position": 1}), (new, {"position": 3})),  # the last one counts
        altered((here, None)),
        altered(({"filename": "/never"}, None)),
        altered((here, {"position": 0})),
        {"offsets": [{"partition": new}]},  # no offset is a null one
        {"offsets": [{"offset": None}]},
    ):
        assert both.agree("PATCH", path, change).status == 200
        both.agree_soon("GET", path)  # for a moment the worker shows a null offset in place of none
    assert both.agree("GET", path).body == altered((here, {"position": 0}))
    nothing_given: list[dict[str, Any]] = [{"offsets": []}, {"offsets": None}, {}]
    for nothing in nothing_given:
        assert both.agree("PATCH", path, nothing).status == 400
    for _ in range(2):
        assert both.agree("DELETE", path).status == 200
        assert both.agree_soon("GET", path).body == {"offsets": []}
    assert both.agree("PATCH", path, altered((here, {"position": 4}))).status == 200
    both.agree("PUT", "/connectors/files/resume")
    both.is_soon("files", "RUNNING")


def test_offsets_are_changed_only_while_stopped(both: Both) -> None:
    here = both.created("states")
    expected = (
        "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for the "
        "specified connector by issuing a 'PUT' request to the '/connectors/states/stop' endpoint"
    )
    for change, status, state in (
        ("resume", 202, "RUNNING"),
        ("pause", 202, "PAUSED"),
        ("pause", 202, "PAUSED"),
        ("stop", 204, "STOPPED"),
        ("stop", 204, "STOPPED"),
        ("pause", 202, "PAUSED"),
        ("resume", 202, "RUNNING"),
    ):
        assert both.agree("PUT", f"/connectors/states/{change}") == (status, "")
        both.is_soon("states", state)
        both.agree("GET", "/connectors/states/offsets")
        if state != "STOPPED":
            for method, body in (("PATCH", altered((here, {"position": 1}))), ("DELETE", None)):
                refused = both.agree(method, "/connectors/states/offsets", body)
                assert refused == (400, {"error_code": 400, "message": expected})


def test_connectors_are_created_configured_and_listed(both: Both) -> None:
    for name in ("configured", "%C3%A9%20x"):
        config = both.config("configured")
        path = f"/connectors/{name}"
        assert both.agree("PUT", f"{path}/config", config).status == 201
        assert both.agree("PUT", f"{path}/config", config).status == 200
        assert both.agree("PUT", f"{path}/config", {**config, "batch.size": 5, "x": True, "y": 1.50}).status == 200
        for of_connector in ("", "/config"):
            assert both.agree("GET", f"{path}{of_connector}").status == 200
        both.agree_soon("GET", f"{path}/status")
    both.agree("GET", "/connectors")
    both.agree("GET", "/connectors/")
    for query in ("expand=status&expand=info", "expand=info", "expand=x", "expand="):
        both.agree_soon("GET", f"/connectors?{query}")


def test_connectors_are_created_in_a_state_deleted_and_created_again(both: Both) -> None:
    config = both.config("made")
    here = {"filename": config["file"]}
    new = {"name": " made ", "config": config, "initial_state": "stopped"}
    assert both.agree("POST", "/connectors", new).status == 201
    both.is_soon("made", "STOPPED")
    assert both.agree("PATCH", "/connectors/made/offsets", altered((here, {"position": 4}))).status == 200
    assert both.agree("POST", "/connectors", new).status == 409
    assert both.agree("POST", "/connectors", {**new, "config": {**config, "tasks.max": "0"}}).status == 400
    assert both.agree("DELETE", "/connectors/made") == (204, "")
    for path in ("", "/config", "/offsets", "/status"):
        assert both.agree_soon("GET", f"/connectors/made{path}").status == 404
    both.agree("GET", "/connectors")
    assert both.tombstones("made") == [{b"connector-made", b"target-state-made"}] * 2
    for method, path, body in (
        ("DELETE", "", None),
        ("PUT", "/stop", None),
        ("DELETE", "/offsets", None),
        ("PATCH", "/offsets", altered((here, {"position": 1}))),
    ):
        assert both.agree(method, f"/connectors/made{path}", body).status == 404
    assert (
        both.agree("POST", "/connectors", {"name": "made", "config": config, "initial_state": "PAUSED"}).status == 201
    )
    both.is_soon("made", "PAUSED")
    assert both.agree_soon("GET", "/connectors/made/offsets").body == altered((here, {"position": 4}))
    assert both.agree("DELETE", "/connectors/made").status == 204
    assert both.agree("PUT", "/connectors/made/config", config).status == 201
    both.is_soon("made", "RUNNING")  # the target state was deleted, too


def test_wrong_connectors_are_not_created(both: Both) -> None:
    config = both.config("wrong-new")
    for wrong in (
        {"config": config},
        {"name": " ", "config": config},
        {"name": "x", "config": {**config, "name": "y"}},
    ):
        assert both.agree("POST", "/connectors", wrong).status == 400
    theirs, ours = both.answers("GET", "/")
    assert ours.body["version"] == theirs.body["version"]
    assert ours.body.keys() == theirs.body.keys()


def test_wrong_settings_are_refused(both: Both) -> None:
    config = both.config("wrong")
    wrong_ones: list[dict[str, str | None]] = [{"name": "other"}, {"name": ""}, {"x": None, "tasks.max": "0"}]
    wrong_ones += [{"tasks.max": text} for text in ("0", "-1", "x", "", "99999999999", "2147483648", "1.5")]
    for wrong in wrong_ones:
        assert both.agree("PUT", "/connectors/wrong/config", {**config, **wrong}).status == 400
    for name in ("%20", "a%C2%85b"):
        assert both.agree("PUT", f"/connectors/{name}/config", config).status == 400
    assert both.agree("PUT", "/connectors/wrong/config", {**config, "tasks.max": " 2 ", "name": None}).status == 201


def test_unknown_connectors_paths_and_methods(both: Both) -> None:
    change = altered(({"filename": "x"}, {"position": 1}))
    for method, path, body in (
        *(("GET", f"/connectors/no%20such{each}", None) for each in ("", "/config", "/offsets", "/status")),
        *(("PUT", f"/connectors/no%20such/{each}", None) for each in ("stop", "pause", "resume")),
        ("DELETE", "/connectors/no%20such/offsets", None),
        ("PATCH", "/connectors/no%20such/offsets", change),
        ("GET", "/connectors/a+b%3Bc/offsets", None),
        ("GET", "/connectors/a/no/such/path", None),
        ("GET", "/nope", None),
        ("GET", "/CONNECTORS", None),
    ):
        assert both.agree(method, path, body).status == 404
    assert both.agree("PATCH", "/connectors/no%20such/offsets", altered()).status == 400
    for method, path in (("POST", "/connectors/x/stop"), ("PUT", "/connectors"), ("PATCH", "/connectors/x/status")):
        assert both.agree(method, path).status == 405
    text = {"Content-Type": "text/plain"}
    assert both.agree("PATCH", "/connectors/x/offsets", change, text).status == 415
    utf8 = {"Content-Type": "application/json; charset=utf-8"}
    assert both.agree("PATCH", "/connectors/no%20such/offsets", change, utf8).status == 404


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("terminators", b"one\ntwo\r\nthree\r\n\nfour\rfive\nsi"),
        ("beyond-ascii", "é\r\n漢字\n😀\r\nend\r".encode()),
        ("malformed", b"a\xff\xfeb\n\xe6\xbc\n\xf0\x9f\x98x\n\xc0\xaf\n\xef\xbb\xbfy\n"),
    ],
)
def test_positions_of_a_file_are_those_of_the_file_source(both: Both, name: str, text: bytes) -> None:
    config = both.config(name)
    Path(config["file"]).write_bytes(text)
    assert both.agree("PUT", f"/connectors/{name}/config", config).status == 201
    (chunk,) = chunks(config["file"])
    both.flush(name, {"filename": config["file"]}, {"position": chunk.end.position})
    both.agree_soon("GET", f"/connectors/{name}/offsets")


# --- sink connectors, whose offsets are in a consumer group


def test_sink_offsets_are_changed_in_an_owned_store_and_in_a_cluster_as_by_a_worker(
    both: Both, settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker, path = both.broker, "/connectors/sink/offsets"
    worker, _ = both.clients
    broker.create_topic("sunk", 3)
    for partition in range(3):
        broker.produce("sunk", partition, 10)
    sink = "org.apache.kafka.connect.file.FileStreamSinkConnector"
    config = {"connector.class": sink, "topics": "sunk", "file": str(tmp_path / "sunk.txt")}
    assert worker.send("PUT", "/connectors/sink/config", config).status == 201
    OwnedStore.create(tmp_path / "owned", 5)
    change = {"offsets": [in_sunk(0, 3), in_sunk("1", "4"), in_sunk(2, None)]}
    (tmp_path / "change.json").write_text(json.dumps(change))

    def worker_offsets() -> list[object]:
        return sorted(worker.send("GET", path).body["offsets"], key=repr)

    def run(command: str, store: str, *more: str) -> tuple[int, str, str]:
        status = main(["connect", command, "--store", str(tmp_path / store), "--connector", "sink", *more])
        return status, *capsys.readouterr()

    def owned() -> list[object]:
        found: list[object] = json.loads(run("describe", "owned", "--format", "json")[1])["offsets"]
        return found

    wait_until(lambda: worker_offsets() == [in_sunk(at, 10) for at in range(3)], "the sink has committed", 60)
    folded_segments(broker.folder, tmp_path / "store", 5, settings)
    live, file = ("--bootstrap-server", broker.address), ("--offsets", str(tmp_path / "change.json"))
    for command, more in (("alter", file), ("reset", ())):
        status, _, err = run(command, "store", *live, *more)
        assert (status, "its group connect-sink has members; stop the connector" in err) == (1, True)
    assert worker.send("PUT", "/connectors/sink/stop").status == 204
    wait_until(
        lambda: "Empty" in broker.tool("--describe", "--state", "--group", "connect-sink"), "the tasks have ended", 60
    )

    first = {"offsets": [in_sunk(at, 10) for at in range(3)]}  # as the sink has committed
    (tmp_path / "first.json").write_text(json.dumps(first))
    assert run("alter", "owned", "--offsets", str(tmp_path / "first.json"))[0] == 0
    changed = [in_sunk(0, 3), in_sunk(1, 4)]
    status, out, err = run("alter", "store", *live, *file)
    assert (status, "offsets restore" in err) == (0, True)
    assert worker_offsets() == changed
    assert worker.send("PATCH", path, first).status == 200
    by_worker = worker.send("PATCH", path, change)
    assert worker_offsets() == changed
    assert run("alter", "owned", *file)[:2] == (0, out)
    assert (by_worker, owned()) == ((200, {"message": out.strip()}), changed)

    status, out, err = run("reset", "store", *live)
    assert (status, "offsets restore" in err, worker_offsets()) == (0, True, [])
    assert run("reset", "store", *live) == (0, out, "")  # there is nothing to undo
    assert run("reset", "owned")[:2] == run("reset", "owned")[:2] == (0, out)
    assert (worker.send("DELETE", path), owned()) == ((200, {"message": out.strip()}), [])


def in_sunk(partition: int | str, offset: int | str | None) -> dict[str, Any]:
    """An offset of a sink connector; None deletes it."""
    at = {"kafka_partition": partition, "kafka_topic": "sunk"}
    return {"partition": at, "offset": None if offset is None else {"kafka_offset": offset}}


# --- the differences; docs/connect.md has them all


class Difference(NamedTuple):
    """A request with different answers: their statuses, a part of the service's message, and the reason."""

    theirs: int
    ours: int
    message: str
    reason: str


_BODIES: list[object] = [[], {"offsets": {}}, {"offsets": [1]}, {"offsets": [], "more": 1}, altered(("p", {}))]
_JSON = "the service refuses a wrong body as the client's fault; a worker shows the error of its JSON library"
_PATH = "the service answers errors of paths in JSON, a worker in HTML"
_NO_PLUGIN = "the service knows no plugins"
DIFFERENT_ALTERATIONS: list[tuple[object, Difference]] = [
    *((body, Difference(500, 400, "the request is not JSON", _JSON)) for body in (b"", b"{", b'{"offsets": NaN}')),
    (b"\xff", Difference(500, 400, "the request is not UTF-8", _JSON)),
    *((body, Difference(500, 400, "the request does not hold offsets", _JSON)) for body in _BODIES),
    (
        b'{"offsets": [{"partition": {"filename": "\\ud800"}, "offset": {"position": 1}}]}',
        Difference(
            200, 400, "the request is not JSON", "a worker stores a question mark in place of a single surrogate"
        ),
    ),
    (
        altered((None, {"position": 1})),
        Difference(500, 400, "the request does not hold offsets", "a null partition is the client's fault"),
    ),
    *(
        (altered((partition, offset)), Difference(500, 200, "altered successfully", reason))
        for partition, offset, reason in (
            ({"filename": "x"}, {"position": -1}, f"{_NO_PLUGIN}: a file source wants positions from 0 on"),
            ({"filename": "x"}, {"position": "z"}, f"{_NO_PLUGIN}: a file source wants numbers"),
            ({"other": "x"}, {"position": 1}, f"{_NO_PLUGIN}: a file source wants a filename"),
            ({"filename": "x"}, {"position": 1, "more": [1]}, "offsets may have nested values, as in Python tasks"),
            ({"filename": "x"}, {"position": 1, "more": 1 << 70}, "numbers have any size"),
        )
    ),
]
DIFFERENT_CONFIGS: list[tuple[object, Difference]] = [
    ({"topic": None, "connector.class": "no.such.Class"}, Difference(400, 201, "", _NO_PLUGIN)),
    ({"topic": None}, Difference(400, 201, "", f"{_NO_PLUGIN}: a file source wants a topic")),
    ({"connector.class": None}, Difference(400, 400, "contains no connector type", "a worker shows all settings")),
    ({"connector.class": ""}, Difference(400, 400, "contains no connector type", f"{_NO_PLUGIN}; a worker lists them")),
    (
        {"connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector", "topics": "x", "topic": None},
        Difference(201, 400, "a sink connector keeps its offsets in a consumer group", "the store has source offsets"),
    ),
    (
        {"db.password": "hunter2hunter2"},
        Difference(201, 400, "Invalid value [hidden] for configuration db.password", "no secret is stored in clear"),
    ),
    ({"x": {"y": 1}}, Difference(500, 400, "the request does not hold settings", _JSON)),
]
_CONNECTORS: list[object] = [[], {"name": "x"}, {"name": "x", "config": None}, {"more": 1}, {"initial_state": "GONE"}]
DIFFERENT_CONNECTORS = [(each, Difference(500, 400, "does not hold", _JSON)) for each in _CONNECTORS]
DIFFERENT_PATHS: list[tuple[str, str, Difference]] = [
    *(
        ("GET", f"/connectors/{name}/offsets", Difference(400, 400, "the path", _PATH))
        for name in ("a%2Fb", "%2e%2e", "", "%ff", "%00", "a%0Ab", "a%7Fb", "a%25b", "a%zz", "a%5Cb", "a\\b")
    ),
    *(
        ("GET", path, Difference(404, 400, "dots", "a worker resolves dots; the service refuses them"))
        for path in ("/connectors/../connectors", "/connectors/./x/offsets")
    ),
    (
        "GET",
        "/connectors/different;x=y/offsets",
        Difference(
            200, 400, "a semicolon", "a worker ignores path parameters, which others take for a part of the name"
        ),
    ),
    (
        "GET",
        "http://elsewhere/connectors",
        Difference(200, 400, "names another host", "without authentication the service answers to localhost only"),
    ),
    *(
        (
            method,
            path,
            Difference(status, ours, message, "the service runs no connectors"),
        )
        for method, path, status, ours, message in (
            ("GET", "/health", 200, 501, "needs a worker"),
            ("GET", "/connector-plugins", 200, 501, "needs a worker"),
            ("GET", f"/connector-plugins/{FILE_SOURCE}/config", 200, 501, "needs a worker"),
            ("GET", "/connectors/different/tasks", 200, 501, "needs a worker"),
            ("GET", "/connectors/different/topics", 200, 501, "needs a worker"),
            ("PUT", "/connectors/different/topics/reset", 202, 501, "needs a worker"),
            ("POST", "/connectors/different/restart", 204, 501, "needs a worker"),
            ("GET", "/admin/loggers", 200, 501, "needs a worker"),
            ("OPTIONS", "/connectors", 200, 405, "HTTP 405"),
            ("PATCH", "/connectors/different/config", 500, 405, "HTTP 405"),
        )
    ),
]


def test_each_difference_is_one_still(both: Both) -> None:
    both.created("different", "STOPPED")
    for change, expected in DIFFERENT_ALTERATIONS:
        assert_different(both, "PATCH", "/connectors/different/offsets", change, expected)
    config = both.config("different")
    for number, (settings, expected) in enumerate(DIFFERENT_CONFIGS):
        assert isinstance(settings, dict)
        wanted = {name: value for name, value in {**config, **settings}.items() if value is not None}
        assert_different(both, "PUT", f"/connectors/different-{number}/config", wanted, expected)
    for connector, expected in DIFFERENT_CONNECTORS:
        assert_different(both, "POST", "/connectors", connector, expected)
    for accept in ("text/html", "application/xml"):
        theirs, ours = both.answers("GET", "/connectors/different/offsets", headers={"Accept": accept})
        assert (theirs.status, ours.status) == (406, 200), "the service answers in JSON, whatever a client accepts"
    for method, path, expected in DIFFERENT_PATHS:
        assert_different(both, method, path, None, expected)


def assert_different(both: Both, method: str, path: str, body: object, expected: Difference) -> None:
    theirs, ours = both.answers(method, path, body)
    found = theirs.status, ours.status
    assert found == expected[:2], (method, path, body, expected.reason, theirs, ours)
    assert theirs != ours, f"no difference any more: {method} {path}"
    assert expected.message in str(ours.body), (method, path, body)
