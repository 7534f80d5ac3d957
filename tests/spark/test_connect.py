"""Topics of real Connect workers, ingested and folded on Spark, against what the workers answered (R30)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.common.config.sections import FoldSettings
from offsets_pipeline.connect.connect_log import ConnectLog
from offsets_pipeline.connect.offset_backing_store import OffsetBackingStore
from offsets_pipeline.connect.offset_management import OffsetManagement
from offsets_pipeline.errors import NoSuchConnector, WrongRecords
from offsets_pipeline.fold.maintenance import maintain_store
from offsets_pipeline.questions.query.connectors import describe_connector, list_connectors
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.connect_keys import offset_key
from offsets_pipeline.semantics.log_row import LogRow
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.log.clean import clean_log
from offsets_pipeline.store.store import Store
from tests.places import copied
from tests.record_batches import encode_batch
from tests.spark.both_engines import assert_as_spark, documented_queries
from tests.spark.segments import write_prefix
from tests.spark.stores import CLOCK, Workbench, appended, remove, rows_of, segments_of
from tests.unit.connect.connect_logs import TOPICS, WITH_ANSWERS, answers, in_order

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

ALTERED, EXACTLY_ONCE = "4.2.0-connect-altered", "4.2.0-connect-eos-altered"
OFFSETS = "connect-offsets"


@pytest.fixture(scope="module")
def mirrored(workbench: Workbench, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The store of a recorded worker's topic, folded; with those of its other topics beside it. Take a copy."""
    made: dict[tuple[str, str], Path] = {}

    def store(capture: str, topic: str = OFFSETS) -> Path:
        if (capture, topic) not in made:
            suffix = topic.removeprefix("connect-offsets").removeprefix("connect")
            folder = made[capture, OFFSETS].parent if suffix else tmp_path_factory.mktemp("connect")
            location = folder / f"worker{suffix}"
            workbench.ingest(location, segments_of(capture), topic=topic)
            workbench.reload(location)
            made[capture, topic] = location
        return made[capture, topic]

    return store


def described(location: Path, capture: str) -> dict[str, list[Any]]:
    """The offsets of the source connectors that the worker was asked for."""
    reader = StateReader(str(location))
    return {name: in_order(describe_connector(reader, name)["offsets"]) for name in answers(capture, "file-.+")}


def viewed(workbench: Workbench, location: Path, capture: str) -> dict[str, list[Any]]:
    """The same from the view."""
    found: dict[str, list[Any]] = {name: [] for name in answers(capture, "file-.+")}
    for row in workbench.sql(location, "SELECT * FROM connector_offsets"):
        offset = {"partition": json.loads(row.source_partition), "offset": json.loads(row.source_offset)}
        found[row.connector].append(offset)
        assert row.source_partition_map == {name: str(value) for name, value in offset["partition"].items()}
        assert row.source_offset_map == {name: str(value) for name, value in offset["offset"].items()}
        assert len(row.raw_keys) == 1
        assert json.loads(row.raw_keys[0]) == [row.connector, offset["partition"]]
    return {name: in_order(offsets) for name, offsets in found.items()}


@pytest.mark.parametrize("capture", WITH_ANSWERS)
def test_reloaded_offsets_are_what_the_worker_answered(
    workbench: Workbench, mirrored: Callable[..., Path], capture: str
) -> None:
    store = mirrored(capture)
    assert described(store, capture) == viewed(workbench, store, capture) == answers(capture, "file-.+")


def test_offsets_folded_in_batches_are_what_the_worker_answered(  # R11, R15
    workbench: Workbench, mirrored: Callable[..., Path], place: Path, tmp_path: Path, chance: random.Random
) -> None:
    store, segments = place / "store", segments_of(EXACTLY_ONCE)
    for share in (0.3, 0.65):
        prefix = write_prefix(segments, tmp_path / str(share), share, chance, OFFSETS)
        workbench.ingest(store, prefix, topic=OFFSETS, partitions=5)
        workbench.fold(store)
    workbench.ingest(store, segments, topic=OFFSETS)
    in_tasks = replace(workbench.settings, fold=FoldSettings(driver_rows=0))
    Workbench(workbench.spark, in_tasks).fold(store)
    assert described(store, EXACTLY_ONCE) == answers(EXACTLY_ONCE, "file-.+")
    streamed, reloaded = (rows_of(each, "connect_records") for each in (store, mirrored(EXACTLY_ONCE)))
    assert sorted(streamed, key=str) == sorted(reloaded, key=str)
    for independent in (False, True):
        found = workbench.verify(store, independent=independent)
        assert (found.equal, found.records, found.offsets) == (True, 50, 5)
    maintain_store(workbench.open(store), CLOCK)
    assert described(store, EXACTLY_ONCE) == answers(EXACTLY_ONCE, "file-.+")
    cleaned = clean_log(workbench.open(store), workbench.settings, CLOCK)  # R23
    assert (cleaned.records_before, cleaned.removed > 20) == (50, True)
    assert workbench.verify(store, independent=True).equal
    workbench.reload(store)
    assert described(store, EXACTLY_ONCE) == answers(EXACTLY_ONCE, "file-.+")


def test_verify_finds_a_state_that_lost_a_record(
    workbench: Workbench, mirrored: Callable[..., Path], place: Path
) -> None:
    store = copied(mirrored(ALTERED), place / "store")
    remove(store, "connect_records", "connector = 'file-c' AND record_offset = 4")
    for independent in (False, True):
        found = workbench.verify(store, independent=independent)
        assert found.differences == {"connect_records": 1}
        assert 'raw_key \'["file-c",{"filename":"/srv/inbox/c.txt"}]\'' in found.examples[0]


@pytest.mark.parametrize("topic", ["connect-status", "connect-configs"])
def test_other_topics_of_a_worker_fold_as_the_specification_says(
    workbench: Workbench, mirrored: Callable[..., Path], topic: str
) -> None:
    mirrored(ALTERED)
    store = mirrored(ALTERED, topic)
    assert StateReader(str(store)).properties.topic_kind is TOPICS[topic]
    assert workbench.verify(store, independent=True).equal
    assert rows_of(store, "quarantine") == []


def test_connectors_are_those_of_the_worker_with_state_type_and_group(
    workbench: Workbench, mirrored: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    store = mirrored(ALTERED)
    mirrored(ALTERED, "connect-status"), mirrored(ALTERED, "connect-configs")
    expected = {  # file-e was deleted; its offsets are still in the topic
        "file-a": ("source", "RUNNING", None),
        "file-b": ("source", "RUNNING", None),
        "file-c": ("source", "STOPPED", None),
        "file-d": ("source", "STOPPED", None),
        "sink-1": ("sink", "RUNNING", "connect-sink-1"),
        "sink-2": ("sink", "STOPPED", "connect-sink-2"),
        "sink-3": ("sink", "STOPPED", "connect-sink-3"),
    }
    rows = workbench.sql(store, "SELECT * FROM connectors")
    assert {row.name: (row.type, row.state, row.group_id) for row in rows} == expected
    capsys.readouterr()
    assert main(["connect", "list", "--store", str(store), "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)["connectors"]
    assert {each["name"]: (each["type"], each["state"], each["group_id"]) for each in listed} == expected
    assert {each["name"]: each["offsets"] for each in listed if each["offsets"]} == {
        "file-a": 1,
        "file-b": 1,
        "file-c": 2,
    }
    assert [each["name"] for each in listed] == sorted(row.name for row in rows)
    stopped = {name for name, (_, state, _) in expected.items() if state == "STOPPED"}
    assert {row.name for row in rows if row.target_state == "STOPPED"} == stopped
    assert {each["name"] for each in listed if each["target_state"] == "STOPPED"} == stopped
    assert {row.name: row.task_count for row in rows} == {each["name"]: each["tasks"] for each in listed}


def test_no_file_of_a_store_has_a_secret_of_the_configurations(mirrored: Callable[..., Path]) -> None:
    mirrored(ALTERED)
    raw = segments_of(ALTERED) / "connect-configs-0" / f"{0:020}.log"
    assert b"/srv/inbox/a.txt" in raw.read_bytes()  # a setting that might be secret
    store = mirrored(ALTERED, "connect-configs")
    values = b"".join(row["value"] or b"" for row in rows_of(store, "log"))
    assert b"FileStreamSourceConnector" in values
    assert b"/srv/inbox" not in values
    assert b"HmacSHA256" not in values
    for path in store.rglob("*"):
        assert path.is_dir() or b"/srv/inbox" not in path.read_bytes()


@pytest.mark.parametrize("capture", WITH_ANSWERS)
def test_sink_offsets_are_those_of_the_group(folded: Callable[[str], Path], capture: str) -> None:  # R32
    reader = StateReader(str(folded(capture)))
    expected = answers(capture, "sink-.+")
    assert len(expected) == 3
    assert {name: in_order(describe_connector(reader, name)["offsets"]) for name in expected} == expected


def test_describe_prints_the_answer_of_the_worker(
    mirrored: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["connect", "describe", "--store", str(mirrored(ALTERED)), "--connector"]
    assert main([*command, "file-d", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"offsets": []}
    assert main([*command, "file-c"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "PARTITION                        OFFSET",
        '{"filename":"/no/such é.txt"}    {"position": 3}',
        '{"filename":"/srv/inbox/c.txt"}  {"position": 17}',
    ]
    assert main([*command, "file-x"]) == 1
    assert capsys.readouterr().err.startswith("offsets: error: Connector file-x not found: ")


def test_a_store_refuses_a_topic_of_another_kind(
    workbench: Workbench, mirrored: Callable[..., Path], empty: Callable[..., Path], place: Path
) -> None:
    store, before = mirrored(ALTERED), rows_of(mirrored(ALTERED), "log")
    for topic in ("__consumer_offsets", "connect-status"):
        with pytest.raises(WrongRecords, match="does not have offsets of Kafka Connect"):
            workbench.ingest(store, segments_of(ALTERED), topic=topic)
    of_groups = copied(empty(5), place / "groups")
    with pytest.raises(WrongRecords, match="does not have records of a group coordinator"):
        workbench.ingest(of_groups, segments_of(ALTERED), topic=OFFSETS)
    assert rows_of(store, "log") == before
    assert rows_of(of_groups, "log") == []


@pytest.mark.parametrize(
    "command",
    [
        ["describe", "--all-groups"],
        ["expire-offsets", "--dry-run"],
        ["reset-offsets", "--all-groups", "--all-topics", "--to-current"],
    ],
    ids=lambda each: str(each[0]),
)
def test_commands_for_groups_refuse_a_store_of_connect(
    mirrored: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]
) -> None:
    arguments = [each.format(tmp=tmp_path) for each in command]
    assert main([arguments[0], "--store", str(mirrored(ALTERED)), *arguments[1:]]) == 1
    assert (
        "holds a topic of the kind connect-offsets, but this command needs consumer-offsets" in capsys.readouterr().err
    )


def written_topic(folder: Path, topic: str, *partitions: list[tuple[bytes | None, bytes | None, int]]) -> Path:
    """A folder with segment files of a topic: of each record the key, the value and the timestamp in ms."""
    for log_partition, records in enumerate(partitions):
        path = folder / f"{topic}-{log_partition}" / f"{0:020}.log"
        path.parent.mkdir(parents=True)
        keys, values, timestamps = zip(*records, strict=True)
        columns = [pa.array(each, pa.binary()) for each in (keys, values)]
        path.write_bytes(encode_batch(*columns, base_offset=0, timestamps=np.array(timestamps)))
    return folder


@pytest.fixture(scope="module")
def odd(workbench: Workbench, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of offsets with keys and values in odd forms, in two log partitions; beside it one of configurations."""
    folder = tmp_path_factory.mktemp("odd")
    offsets = [
        [
            (b'["c",{"f":1}]', b'{"p":1}', 1),
            (b'["c",{"f":1}', b'{"p":2}', 2),  # malformed
            (b'["c",{"f":2}]', b'{"p":3,"p":4}', 3),
            (b'["c",{"f":1}]', b"not JSON", 4),  # malformed
            (None, b'{"p":4}', 5),  # malformed
            (b'["c",{"inf":1}]', b'{"p":1e400}', 6),  # malformed
            (b'["c",{"one":1}]', b'{"p":"\\ud800"}', 7),  # malformed
            (b' [ "c" , {"b":{"y":2.50,"x":[1,null]}, "a":1e2} ] ', b'{"p":{"q":[1E2, true]},"t":null}', 8),
            (b'["c",{"newer":0}]', b'{"p":"newer"}', 30),
            (b'["c",{"tie":0}]', b'{"p":"lower"}', 9),
            (b'["c",{"gone":0}]', b'{"p":0}', 9),
            (b'["/%\'\\"\xc3\xa9\\n",{}]', b"{}", 9),
            (b'["",null]', b'{"p":0}', 9),
            (b'["sink",{"f":1}]', b'{"p":1}', 9),  # of a source of this name that was deleted
        ],
        [
            *((b'["d",{"f":1}]', b'{"p":%d}' % number, number) for number in range(20)),
            (b'["c",{"newer" : 0}]', b'{"p":"older"}', 29),
            (b'["c",{"tie" : 0}]', b'{"p":"higher"}', 9),
            (b'["c",{"gone" : 0}]', b"null", 10),
        ],
    ]
    settings = [
        {"name": "c", "connector.class": "x.FileStreamSource", "db.password": "of-the-database"},
        {"name": "never-ran", "connector.class": "x.FileStreamSource"},
        {"name": "sink", "connector.class": "x.S3", "topics": "t", "consumer.override.group.id": "connect-sink-1"},
        {"name": "ref", "connector.class": "x.S3", "topics": "t", "consumer.override.group.id": "of-${env:NAME}"},
    ]
    configs = [
        (f"connector-{each['name']}".encode(), json.dumps({"properties": each}).encode(), 1) for each in settings
    ]
    for topic, partitions in (("odd", offsets), ("odd-configs", [configs])):
        workbench.ingest(folder / topic, written_topic(folder / "segments", topic, *partitions), topic=topic)
        if topic == "odd":  # a record of message format 0 has no timestamp
            untimed = LogRow(1, 100, b'["c",{"tie":  0}]', b'{"p":"untimed"}', None, None)
            appended(folder / topic, [untimed], record_timestamp=None)
        workbench.fold(folder / topic)
    return folder / "odd"


def test_malformed_records_go_to_quarantine_and_change_nothing(odd: Path) -> None:  # R6
    assert [row["record_offset"] for row in rows_of(odd, "quarantine")] == [1, 3, 4, 5, 6]
    offsets = describe_connector(StateReader(str(odd)), "c")["offsets"]
    assert offsets == [
        {"partition": {"a": 100.0, "b": {"x": [1, None], "y": 2.5}}, "offset": {"p": {"q": [100.0, True]}, "t": None}},
        {"partition": {"f": 1}, "offset": {"p": 1}},
        {"partition": {"f": 2}, "offset": {"p": 4}},
        {"partition": {"newer": 0}, "offset": {"p": "newer"}},
        {"partition": {"tie": 0}, "offset": {"p": "higher"}},
    ]
    with pytest.raises(NoSuchConnector):
        describe_connector(StateReader(str(odd)), "e")


def test_both_engines_have_the_same_connectors_and_offsets(  # R30
    workbench: Workbench, mirrored: Callable[..., Path], odd: Path, root: Path
) -> None:
    mirrored(ALTERED)
    beside = [str(mirrored(ALTERED, topic)) for topic in ("connect-status", "connect-configs")]
    (documented,) = (query for query in documented_queries(root) if "connector" in query)
    queries = ["SELECT * FROM connector_offsets", "SELECT * FROM connectors", documented]
    session = workbench.spark.newSession()
    assert (
        assert_as_spark(session, [str(mirrored(ALTERED))], queries, *beside) == 5 + 7 + 5
    )  # file-e was deleted; its offset is still in the topic
    assert assert_as_spark(session, [str(odd)], queries, f"{odd}-configs") == 9 + 4 + 9
    assert session.sql("SELECT name FROM connectors WHERE type = 'sink' AND group_id IS NULL").first() == ("ref",)
    rows = session.sql(
        "SELECT source_partition, source_offset, raw_keys FROM connector_offsets WHERE size(raw_keys) > 1 ORDER BY ALL"
    )
    assert [tuple(row) for row in rows.collect()] == [
        ('{"newer":0}', '{"p":"newer"}', ['["c",{"newer" : 0}]', '["c",{"newer":0}]']),
        ('{"tie":0}', '{"p":"higher"}', ['["c",{"tie" : 0}]', '["c",{"tie":  0}]', '["c",{"tie":0}]']),
    ]


def test_a_connector_that_its_worker_deleted_is_unknown_to_its_configurations(
    mirrored: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The worker of the recording was asked to delete file-e, and its topic still has the connector's offset."""
    altered, configs = mirrored(ALTERED), mirrored(ALTERED, "connect-configs")
    alone = copied(altered, tmp_path / "alone")
    command = ["connect", "describe", "--connector", "file-e", "--format", "json", "--store"]
    assert main([*command, str(alone)]) == 0
    assert len(json.loads(capsys.readouterr().out)["offsets"]) == 1
    for more in ([str(altered)], [str(alone), "--configs", str(configs)]):
        assert main([*command, *more]) == 1
        assert f"Connector file-e not found: {configs} has no configuration of it" in capsys.readouterr().err


def test_configurations_tell_connectors_without_offsets_and_groups_of_sinks(  # R32
    odd: Path, folded: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(connector: str, *more: str) -> str:
        assert main(["connect", "reset", "--store", "none", "--connector", connector, *more]) == 1
        return capsys.readouterr().err

    def described(store: Path, connector: str, *more: str) -> str:
        command = ["connect", "describe", "--store", str(store), "--connector", connector, "--format", "json"]
        status, output = main([*command, *more]), capsys.readouterr()
        assert status == (0 if output.out else 1)
        return output.out or output.err

    groups, configs = folded(ALTERED), ("--configs", f"{odd}-configs")
    assert described(odd, "never-ran") == '{"offsets": []}\n'
    assert "is a sink connector: its offsets are those of the group connect-sink-1; name" in described(odd, "sink")
    assert json.loads(described(groups, "sink", *configs)) == json.loads(described(groups, "sink-1"))
    assert json.loads(described(groups, "sink-1"))["offsets"] == answers(ALTERED, "sink-1")["sink-1"]
    assert "never-ran is a source connector" in described(groups, "never-ran", *configs)
    assert "Connector sink-1 not found" in described(groups, "sink-1", *configs)
    assert "Connectors must be in the STOPPED state" in refused("sink", *configs)
    assert "never-ran is a source connector" in refused("never-ran", *configs)
    assert "Connector sink-1 not found" in refused("sink-1", *configs)
    assert "group.id of ref is a reference, which only its worker resolves" in refused("ref", *configs)
    assert "needs connect-configs" in described(groups, "sink", "--configs", str(odd))


def test_a_store_of_connect_has_its_own_tables(workbench: Workbench, tmp_path: Path) -> None:
    for topic, kind in TOPICS.items():
        location = tmp_path / topic
        made = Store.create(workbench.spark, str(location), StoreProperties(MIRRORED, 1, topic_kind=kind))
        assert workbench.open(location).properties == made.properties
        assert made.table("log").snapshot().properties["offsets.format.version"] == "6"
        assert sorted(path.name for path in location.iterdir()) == sorted(table.name for table in made.tables)


def test_an_owned_store_folds_to_what_its_tasks_flushed(workbench: Workbench, place: Path) -> None:
    location = place / "owned"
    ConnectLog.create(location, "lab", 2)
    with OffsetBackingStore(location, FixedClock(2**42)) as ahead:  # in 2109: clocks do not matter (R30)
        ahead.set({b'["files", {"f":"b"}]': b'{"p":1}'}).result(10)
    with OffsetBackingStore(location) as store:
        for position in (1, 2):
            store.set({offset_key("files", {"f": name}): b'{"p":%d}' % position for name in "ab"}).result(10)
        management = OffsetManagement(store.log)
        for name in ("files", "new"):  # the second one has no offsets
            management.put_config(name, {"connector.class": "x.FileStreamSource", "db.password": "${file:/run/db:pw}"})
        management.set_target_state("files", "STOPPED")
        management.alter("files", [{"partition": {"f": "a"}, "offset": None}])
        store.set({offset_key("deleted", {"f": "a"}): b'{"p":1}'}).result(10)
        management.delete("deleted")
        expected = OffsetManagement(store.log).offsets("files")
    ConnectLog.create(place / "owned-configs", "lab", 1)
    with OffsetBackingStore(place / "owned-configs") as neighbour:  # another owned store, by chance with this name
        OffsetManagement(neighbour.log).put_config("other", {"connector.class": "x.FileStreamSource"})
    workbench.fold(location)
    assert describe_connector(StateReader(str(location)), "files") == expected
    assert describe_connector(StateReader(str(location)), "new") == {"offsets": []}
    with pytest.raises(NoSuchConnector):
        describe_connector(StateReader(str(location)), "deleted")
    assert expected == {"offsets": [{"partition": {"f": "b"}, "offset": {"p": 2}}]}
    assert workbench.verify(location, independent=True).equal
    assert [
        row.source_offset
        for row in workbench.sql(location, "SELECT * FROM connector_offsets WHERE connector = 'files'")
    ] == ['{"p":2}']
    rows = workbench.sql(location, "SELECT * FROM connectors ORDER BY name")
    assert [(row.name, row.type, row.target_state, row.connector_class) for row in rows] == [
        ("files", "source", "STOPPED", "x.FileStreamSource"),
        ("new", "source", "STARTED", "x.FileStreamSource"),
    ]
    listed = list_connectors([StateReader(str(location))])
    assert [(each.name, each.state) for each in listed] == [(row.name, row.state) for row in rows]
    assert [(row.name, row.state) for row in rows] == [("files", "STOPPED"), ("new", "RUNNING")]
    with OffsetBackingStore(location) as beside:
        before = OffsetManagement(beside.log).offsets("files")
        assert clean_log(workbench.open(location), workbench.settings, CLOCK).removed > 1
        assert OffsetManagement(beside.log).offsets("files") == before
        assert "deleted" not in OffsetManagement(beside.log).target_states()
        OffsetManagement(beside.log).set_target_state("files", "RUNNING")
        beside.set({offset_key("files", {"f": "a"}): b'{"p":3}'}).result(10)
        expected = OffsetManagement(beside.log).offsets("files")
    with OffsetBackingStore(location) as again:
        assert OffsetManagement(again.log).offsets("files") == expected
    workbench.fold(location)
    assert describe_connector(StateReader(str(location)), "files") == expected
    assert describe_connector(StateReader(str(location)), "new") == {"offsets": []}
    assert workbench.verify(location, independent=True).equal
