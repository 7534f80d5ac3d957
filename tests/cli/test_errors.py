"""Bad input ends with status 1 and one line, and changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.store.delta.properties import OWNED, StoreProperties
from offsets_pipeline.store.store import Store
from tests.places import copied
from tests.spark.segments import write_segment
from tests.spark.stores import segments_of, versions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.spark.stores import Workbench

CAPTURE = "4.2.0-kip848"
POSITIONS = """topic,partition,log_start_offset,log_end_offset,sampled_at
t,0,0,9,2026-03-01T12:00:00Z
"""


class Place(NamedTuple):
    """Files and stores that the command lines below name."""

    folder: Path
    names: Mapping[str, str]


@pytest.fixture(scope="module")
def owned(workbench: Workbench, tmp_path_factory: pytest.TempPathFactory) -> Path:
    location = tmp_path_factory.mktemp("owned") / "store"
    Store.create(workbench.spark, str(location), StoreProperties(OWNED, 5))
    return location


@pytest.fixture
def place(workbench: Workbench, folded: Callable[[str], Path], owned: Path, tmp_path: Path) -> Place:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").write_bytes(b"jpg")
    (tmp_path / "a file").write_text("text")
    for name, text in {
        "no.toml": "[log\n",
        "setting.toml": "[log]\noffset_partitions = 5\n",
        "value.toml": "[fold]\ndriver_rows = true\n",
        "section.toml": "[folds]\ndriver_rows = 1\n",
        "positions.csv": POSITIONS,
        "hours.toml": "[log]\nhistory_hours = -1\n",
    }.items():
        (tmp_path / name).write_text(text)
    names = {
        "new": tmp_path / "new store",
        "nothing": tmp_path / "nothing",
        "photos": tmp_path / "photos",
        "file": tmp_path / "a file",
        "positions": tmp_path / "positions.csv",
        "folder": tmp_path,
        "segments": segments_of(CAPTURE),
        "bad_segment": write_segment(tmp_path / "bad", 0, b"no log segment; " * 50),
        "store": copied(folded(CAPTURE), tmp_path / "store"),
        "owned": copied(owned, tmp_path / "owned"),
    }
    return Place(tmp_path, {name: str(path) for name, path in names.items()})


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


STORES = {
    "no store at {nothing}; ingest a log, run offsets create for an owned store, or check the path": "{nothing}",
    "cannot open store {photos}: it has no table named log; name the folder of a store": "{photos}",
    "cannot open store {file}: it has no table named log; name the folder of a store": "{file}",
    "no store at schema:no_such_schema": "schema:no_such_schema",
    "'no name' is not a schema name: use letters, digits, _ and dots": "schema:no name",
}
COMMANDS: dict[str, tuple[str, ...]] = {
    "fold": ("fold", "--available-now"),
    "reload": ("reload",),
    "verify": ("verify",),
    "export-segments": ("export-segments", "--to", "{new}"),
    "describe": ("describe", "--all-groups"),
    "log-info": ("log-info",),
    "clean-log": ("clean-log", "--dry-run"),
    "expire-offsets": ("expire-offsets",),
    "expire-offsets --dry-run": ("expire-offsets", "--dry-run"),
    "sql": ("sql", "SELECT 1"),
    "sql --spark": ("sql", "--spark", "SELECT 1"),
    "create-views": ("create-views", "--schema", "ops"),
    "maintain": ("maintain",),
    "sample-topic-offsets": ("sample-topic-offsets", "--positions", "{positions}"),
}
ON_STORES = [
    pytest.param((*command, "--store", store), said, id=f"{name} of {store}")
    for name, command in COMMANDS.items()
    for said, store in STORES.items()
]
OTHERS = [
    pytest.param(tuple(line.split("|")), said, id=line)
    for line, said in {
        "ingest-segments|--store|{new}|{nothing}": "no such file or folder: {nothing}",
        "ingest-segments|--store|{new}|{segments}|{nothing}": "no such file or folder: {nothing}",
        "ingest-segments|--store|{new}|{photos}": "no segments of __consumer_offsets in {photos}; name segment files",
        "ingest-segments|--store|{new}|{file}": "{file} is not a segment file: name a file <20 digits>.log",
        "ingest-segments|--store|{new}|{bad_segment}": "",
        "ingest-segments|--store|{photos}|{segments}": "cannot open store {photos}: it has no table named log",
        "ingest-segments|--store|{file}|{segments}": "cannot open store {file}: it has no table named log",
        "ingest-segments|--store|{owned}|{segments}": "{owned} is an owned store, but this command needs a",
        "ingest-segments|--store|{store}|{segments}|--offsets-partitions|6": (
            "the log in {store} has 5 partitions, not 6, and the number cannot change"
        ),
        "ingest-segments|--store|{new}|{segments}|--offsets-partitions|4": (
            "found log partition 4, but a log of 4 partitions has 0 to 3"
        ),
        "ingest-segments|--store|{new}|{segments}|--offsets-partitions|50": "",
        "follow|--store|{new}|--bootstrap-server|127.0.0.1:1|--option|group.id=x": "cannot set the Kafka option group",
        "follow|--store|{new}|--bootstrap-server|127.0.0.1:1|--option|ssl.key.password=env:NO_SUCH_": (
            "cannot read the Kafka option ssl.key.password: the environment variable NO_SUCH_ is not set"
        ),
        "follow|--store|{new}|--bootstrap-server|127.0.0.1:1|--metrics-file|{nothing}/m": (
            "cannot write metrics to {nothing}/m: No such file or directory"
        ),
        "follow|--store|{new}|--bootstrap-server|127.0.0.1:1|--option|default.api.timeout.ms=1500|--option|"
        "request.timeout.ms=1000": "no broker answers at 127.0.0.1:1",
        "snapshot|--store|{new}|--bootstrap-server|127.0.0.1:1|--option|default.api.timeout.ms=1500|--option|"
        "request.timeout.ms=1000": "no broker answers at 127.0.0.1:1",
        "sample-topic-offsets|--store|{store}|--positions|{positions}|--topics|nope": (
            "{positions} has no topic that matches 'nope'; check --topics"
        ),
        "reload|--store|{owned}|--coordinator-semantics|classic": "cannot replay {owned} as classic: it is an owned",
        "reload|--store|{store}|--partition|5": "no log partition 5 in {store}: its log has 5, 0 to 4",
        "clean-log|--store|{store}|--config|{folder}/hours.toml": (
            "{folder}/hours.toml: [log] history_hours: -1 is not allowed; it takes a whole number from 0 to 8784000"
        ),
        "export-segments|--store|{store}|--to|{photos}": "cannot export to {photos}: it is not empty; name a new",
        "export-segments|--store|{store}|--to|{file}": "cannot export to {file}: it is not a local folder; name a",
        "export-segments|--store|{store}|--to|s3://bucket/log": "cannot export to s3://bucket/log: it is not a local",
        "describe|--store|{store}|--group|nobody": "no group 'nobody' in {store} (GROUP_ID_NOT_FOUND)",
        "verify|--store|{store}|--config|{nothing}": "cannot read the settings file {nothing}: No such file",
        "verify|--store|{store}|--config|{folder}/no.toml": "cannot read the settings file {folder}/no.toml: it is not",
        "verify|--store|{store}|--config|{folder}/setting.toml": (
            "{folder}/setting.toml: [log] offset_partitions is not a setting; did you mean offsets_partitions? "
        ),
        "verify|--store|{store}|--config|{folder}/value.toml": (
            "{folder}/value.toml: [fold] driver_rows: true is not allowed; it takes a whole number from 0 to 2147483647"
        ),
        "verify|--store|{store}|--config|{folder}/section.toml": "{folder}/section.toml: [folds] is not a section; ",
        "commit|--store|{nothing}|--group|g|t:0=1": "no store at {nothing}",
        "commit|--store|{photos}|--group|g|t:0=1": "cannot open store {photos}: it has no table named log",
        "commit|--store|schema:any|--group|g|t:0=1": "no store at schema:any; ingest a log, run offsets create",
        "commit|--store|{store}|--group|g|t:0=1": "cannot write to {store}: in a mirrored store only the broker",
        "delete-group|--store|{store}|--group|k-stable": "cannot write to {store}: in a mirrored store",
        "delete-group|--store|{nothing}|--group|g": "no store at {nothing}",
        "delete-offsets|--store|{store}|--group|g|t": "cannot write to {store}: in a mirrored store",
        "expire-offsets|--store|{store}": (
            "cannot expire offsets of {store}: in a mirrored store only the broker expires offsets (R4); --dry-run"
        ),
        "expire-offsets|--store|{store}|--every": "cannot expire offsets of {store}: in a mirrored store",
        "reset-offsets|--store|{store}|--group|k-reset|--all-topics|--to-offset|1|--execute": (
            "cannot reset offsets in {store}: in a mirrored store only the broker writes (R4); name the"
        ),
        "reset-offsets|--store|{store}|--group|k-stable|--all-topics|--to-offset|1|--dry-run": (
            "cannot reset groups with members: 'k-stable' is Stable"
        ),
        "reset-offsets|--store|{store}|--group|nobody|--all-topics|--to-offset|1": "no group 'nobody'; check the name",
        "reset-offsets|--store|{store}|--group|k-reset|--topic|t1|--to-latest|--positions|{file}": (
            "{file}, line 1: the header has to begin with topic,partition,earliest,latest"
        ),
        "reset-offsets|--store|{store}|--group|k-reset|--from-file|{nothing}": "no such file: {nothing}",
        "reset-offsets|--store|{store}|--group|k-reset|--from-file|{file}": "{file}, line 1: 1 fields: it takes topic,",
        "reset-offsets|--store|{nothing}|--group|g|--topic|t|--to-offset|1": "no store at {nothing}",
        "reset-offsets|--store|schema:any|--group|g|--topic|t|--to-offset|1": "no store at schema:any; ",
        "create|--store|schema:any": "cannot create store schema:any: this session's catalog ends with the session",
        "sql|--store|{store}|SELEKT 1": "the query is not DuckDB's SQL: ",
        "sql|--store|{store}|SELECT nothing FROM current_offsets": "no column nothing in current_offsets: ",
        "sql|--store|{store}|SELECT * FROM nowhere": "no view or table nowhere: there are consumer_groups, ",
        "sql|--store|{store}|SELECT raise_error('a reason')": "the query failed: ",
    }.items()
]


@pytest.mark.parametrize(("arguments", "said"), ON_STORES + OTHERS)
def test_bad_input_is_answered_in_one_line_and_leaves_nothing(
    place: Place,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    def start_spark(*_: object) -> NoReturn:
        raise AssertionError("Spark is started")

    if not any(each.startswith("schema:") for each in arguments):  # only Spark's catalog knows a schema
        monkeypatch.setattr("offsets_pipeline.store.session.build_session", start_spark)
    before, at = everything(place.folder), versions(Path(place.names["store"]))
    capsys.readouterr()
    status = main([argument.format(**place.names) for argument in arguments])
    out, err = capsys.readouterr()
    assert (status, out) == (1, "")
    assert err.startswith("offsets: error: " + said.format(**place.names))
    assert len(err.splitlines()) == 1
    assert err.endswith("\n")
    assert "Traceback" not in err
    assert "Spark is started" not in err
    assert "Exception" not in err
    assert everything(place.folder) == before
    assert versions(Path(place.names["store"])) == at


def test_unexpected_error_is_one_line(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr("offsets_pipeline.cli.group_commands.describe_matching", fail)
    arguments = ["describe", "--all-groups", "--store", place.names["store"]]
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("offsets: error: RuntimeError: first line")
    assert len(err.splitlines()) == 1
    monkeypatch.setenv("OFFSETS_DEBUG", "1")
    with pytest.raises(RuntimeError, match="second line"):
        main(arguments)
