"""Whatever a user gets wrong is answered with status 1 and one line, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.store import OWNED, Store, StoreProperties
from tests.spark.segments import write_segment
from tests.spark.stores import copied, segments_of, versions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.spark.stores import Workbench

CAPTURE = "4.2.0-kip848"


class Place(NamedTuple):
    """What there is to point at: names that the command lines below mention."""

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
        "value.toml": "[fold]\nmax_retries = true\n",
        "section.toml": "[folds]\nmax_retries = 1\n",
        "hours.toml": "[log]\nhistory_hours = -1\n",
    }.items():
        (tmp_path / name).write_text(text)
    names = {
        "new": tmp_path / "new store",
        "nothing": tmp_path / "nothing",
        "photos": tmp_path / "photos",
        "file": tmp_path / "a file",
        "folder": tmp_path,
        "segments": segments_of(CAPTURE),
        "bad_segment": write_segment(tmp_path / "bad", 0, b"no log segment; " * 50),
        "store": copied(folded(CAPTURE), tmp_path / "store"),
        "owned": copied(owned, tmp_path / "owned"),
    }
    return Place(tmp_path, {name: str(path) for name, path in names.items()})


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def run(arguments: Sequence[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as ended:  # as argparse ends
        return ended.code if isinstance(ended.code, int) else -1


STORES = {
    "no store at {nothing}: ingest a log into it first, or check the path": "{nothing}",
    "{photos} is not a store: it has no table named log; name the folder of a store": "{photos}",
    "{file} is not a store: it has no table named log; name the folder of a store": "{file}",
    "no store at schema:no_such_schema": "schema:no_such_schema",
    "'no name' is no name of a schema: letters, digits, _ and dots": "schema:no name",
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
        "ingest-segments|--store|{new}|{photos}": "no segments of __consumer_offsets in {photos}: name segment files",
        "ingest-segments|--store|{new}|{file}": "{file} is no segment file: these are named <20 digits>.log",
        "ingest-segments|--store|{new}|{bad_segment}": "",
        "ingest-segments|--store|{photos}|{segments}": "{photos} is not a store",
        "ingest-segments|--store|{file}|{segments}": "{file} is not a store",
        "ingest-segments|--store|{owned}|{segments}": "{owned} is an owned store, and this needs a mirrored one",
        "ingest-segments|--store|{store}|{segments}|--offsets-partitions|6": (
            "the log in {store} has 5 partitions, not 6: that is fixed with the store"
        ),
        "ingest-segments|--store|{new}|{segments}|--offsets-partitions|4": (
            "log partition 4 is there, but a log of 4 partitions has 0 to 3"
        ),
        "ingest-segments|--store|{new}|{segments}|--offsets-partitions|50": "",
        "ingest-segments|--store|{new}|{segments}|--offsets-partitions|0": "a log has at least 1 partition, not 0",
        "ingest-segments|--store|{new}|{segments}|--offsets-partitions|x": "argument --offsets-partitions: invalid",
        "ingest-segments|--store|{new}": "the following arguments are required: PATH",
        "ingest-topic|--store|{new}": "the following arguments are required: --bootstrap-server",
        "follow|--store|{new}|--bootstrap-server|127.0.0.1:1|--option|open-sesame": "an --option is written NAME=VALUE",
        "follow|--store|{new}|--bootstrap-server|127.0.0.1:1|--option|group.id=x": "the Kafka option group.id is not",
        "follow|--store|{new}|--bootstrap-server|127.0.0.1:1|--option|ssl.key.password=env:NO_SUCH_": (
            "the Kafka option ssl.key.password names the environment variable NO_SUCH_: it is not set"
        ),
        "follow|--store|{new}|--bootstrap-server|127.0.0.1:1|--metrics-port|x": "argument --metrics-port: 'x' is no",
        "follow|--store|{new}|--bootstrap-server|127.0.0.1:1|--metrics-file|{nothing}/m": (
            "metrics cannot be written to {nothing}/m: No such file or directory"
        ),
        "follow|--store|{new}|--bootstrap-server|127.0.0.1:1|--option|default.api.timeout.ms=1500|--option|"
        "request.timeout.ms=1000": "no broker answers at 127.0.0.1:1",
        "reload|--store|{store}|--partition|5": "there is no log partition 5 in {store}: its log has 5, 0 to 4",
        "reload|--store|{store}|--partition|-1": "there is no log partition -1 in {store}",
        "clean-log|--store|{store}|--older-than|-1": "argument --older-than: '-1' is not allowed; it takes a",
        "clean-log|--store|{store}|--older-than|1.5": "argument --older-than: '1.5' is not allowed; it takes a whole",
        "clean-log|--store|{store}|--config|{folder}/hours.toml": (
            "{folder}/hours.toml: [log] history_hours: -1 is not allowed; it takes a whole number from 0 to 8784000"
        ),
        "clean-log|--store|{store}|--every|0": "argument --every: '0' is not allowed; it takes seconds, or a duration",
        "clean-log|--store|{store}|--dry-run|--every|5": "argument --every: not allowed with argument --dry-run",
        "maintain|--store|{store}|--every": "argument --every: expected one argument",
        "maintain|--store|{store}|--every|PT1H|--checkpoint|{nothing}": "{nothing} is no checkpoint of a stream",
        "export-segments|--store|{store}|--to|{photos}": "{photos} is not empty: name a new or empty folder",
        "export-segments|--store|{store}|--to|{file}": "{file} is no local folder: name a new or empty one",
        "export-segments|--store|{store}|--to|s3://bucket/log": "s3://bucket/log is no local folder",
        "export-segments|--store|{store}|--to|{new}|--as-of|yesterday": "'yesterday' is no time: write it as 2026-03-",
        "export-segments|--store|{store}|--to|{new}|--as-of|2026-02-30": "'2026-02-30' is no time",
        "export-segments|--store|{store}|--to|{new}|--codec|gzip": "argument --codec: invalid choice: 'gzip'",
        "export-segments|--store|{store}": "the following arguments are required: --to",
        "describe|--store|{store}|--group|nobody": "no group 'nobody' in {store} (GROUP_ID_NOT_FOUND)",
        "describe|--store|{store}": "one of the arguments --group --all-groups is required",
        "describe|--store|{store}|--group|a|--all-groups": "argument --all-groups: not allowed with argument --group",
        "describe|--store|{store}|--all-groups|--format|xml": "argument --format: invalid choice: 'xml'",
        "describe|--all-groups": "the following arguments are required: --store",
        "descrbe|--store|{store}": "argument COMMAND: invalid choice: 'descrbe'",
        "fold|--store|{store}|--avialable-now": "unrecognized arguments: --avialable-now",
        "verify|--store|{store}|--config|{nothing}": "cannot read the settings file {nothing}: No such file",
        "verify|--store|{store}|--config|{folder}/no.toml": "{folder}/no.toml: not a TOML file: ",
        "verify|--store|{store}|--config|{folder}/setting.toml": (
            "{folder}/setting.toml: [log] offset_partitions is no setting; did you mean offsets_partitions? "
        ),
        "verify|--store|{store}|--config|{folder}/value.toml": (
            "{folder}/value.toml: [fold] max_retries: true is not allowed; it takes a whole number from 0 to 100"
        ),
        "verify|--store|{store}|--config|{folder}/section.toml": "{folder}/section.toml: [folds] is no section; ",
        "commit|--store|{nothing}|--group|g|t:0=1": "no store at {nothing}",
        "commit|--store|{photos}|--group|g|t:0=1": "{photos} is not a store",
        "commit|--store|schema:any|--group|g|t:0=1": "schema:any: only Spark's catalog knows where that lies",
        "commit|--store|{store}|--group|g|t:0=1": "{store} is a mirrored store: a broker is its coordinator",
        "commit|--store|{owned}|--group|g|t=1": "argument TOPIC:PARTITION=OFFSET: 't=1' is not TOPIC:PARTITION=OFFSET",
        "commit|--store|{owned}|--group|g": "the following arguments are required: TOPIC:PARTITION=OFFSET",
        "delete-group|--store|{store}|--group|k-stable": "{store} is a mirrored store",
        "delete-group|--store|{nothing}|--group|g": "no store at {nothing}",
        "delete-offsets|--store|{store}|--group|g|t": "{store} is a mirrored store",
        "delete-offsets|--store|{owned}|--group|g|a:b": "argument TOPIC[:PARTITION]: 'a:b' is not TOPIC",
        "expire-offsets|--store|{store}": (
            "{store} is a mirrored store: its broker expires offsets, and only it may (R4); --dry-run says what it will"
        ),
        "expire-offsets|--store|{store}|--every": "{store} is a mirrored store: its broker expires offsets, and only",
        "expire-offsets|--store|{store}|--at|0": "--at is for a forecast: say --dry-run too",
        "expire-offsets|--store|{store}|--dry-run|--within|1.5": "argument --within: '1.5' is not allowed; it takes a",
        "expire-offsets|--store|{store}|--dry-run|--at|never": "'never' is no time: write it as 2026-03-",
        "reset-offsets|--store|{store}|--group|k-reset|--all-topics|--to-offset|1|--execute": (
            "{store} is a mirrored store: only its broker may write (R4); what --export prints is for kafka-consumer-"
        ),
        "reset-offsets|--store|{store}|--group|k-stable|--all-topics|--to-offset|1|--dry-run": (
            "only inactive groups are reset: 'k-stable' is Stable"
        ),
        "reset-offsets|--store|{store}|--group|nobody|--all-topics|--to-offset|1": "no group 'nobody': name topics to",
        "reset-offsets|--store|{store}|--group|k-reset|--topic|t1|--to-latest|--positions|{file}": (
            "{file}, line 1: the header has to begin with topic,partition,earliest,latest"
        ),
        "reset-offsets|--store|{store}|--group|k-reset|--from-file|{nothing}": "no such file: {nothing}",
        "reset-offsets|--store|{store}|--group|k-reset|--from-file|{file}": "{file}, line 1: 1 fields: it takes topic,",
        "reset-offsets|--store|{nothing}|--group|g|--topic|t|--to-offset|1": "no store at {nothing}",
        "reset-offsets|--store|schema:any|--group|g|--topic|t|--to-offset|1": "schema:any: only Spark's catalog knows",
        "sql|--store|{store}|SELEKT 1": "the query failed: [PARSE_SYNTAX_ERROR]",
        "sql|--store|{store}|SELECT nothing FROM current_offsets": "the query failed: [UNRESOLVED_COLUMN",
        "sql|--store|{store}|SELECT * FROM nowhere": "the query failed: [TABLE_OR_VIEW_NOT_FOUND]",
        "sql|--store|{store}|SELECT raise_error('a reason')": "the query failed: ",
    }.items()
]


@pytest.mark.parametrize(("arguments", "said"), ON_STORES + OTHERS)
def test_bad_input_is_answered_in_one_line_and_leaves_nothing(
    place: Place, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    before, at = everything(place.folder), versions(Path(place.names["store"]))
    capsys.readouterr()
    status = run([argument.format(**place.names) for argument in arguments])
    out, err = capsys.readouterr()
    assert (status, out) == (1, "")
    assert err.startswith("offsets: error: " + said.format(**place.names))
    assert len(err.splitlines()) == 1
    assert err.endswith("\n")
    assert "Traceback" not in err
    assert "Exception" not in err
    assert everything(place.folder) == before
    assert versions(Path(place.names["store"])) == at


def test_no_command_at_all_is_answered_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 1
    assert capsys.readouterr() == (
        "",
        "offsets: error: the following arguments are required: COMMAND; see `offsets --help`\n",
    )


def test_error_that_nobody_foresaw_is_answered_in_one_line(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr("offsets_pipeline.cli.answers.describe_groups", fail)
    arguments = ["describe", "--all-groups", "--store", place.names["store"]]
    assert run(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("offsets: error: RuntimeError: first line")
    assert len(err.splitlines()) == 1
    monkeypatch.setenv("OFFSETS_DEBUG", "1")
    with pytest.raises(RuntimeError, match="second line"):
        run(arguments)
