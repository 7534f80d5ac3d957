"""Every command refuses a store of another format, in one line that says what to do. None starts Spark for it."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

from offsets_pipeline.cli.program import main, offsets
from tests.logs import CAPTURES

STORES = Path(__file__).parents[2] / "data" / "stores" / "format-5"
CHECKPOINT = STORES.parents[1] / "checkpoints" / "spark-4.2-v1"
FILES = {
    "zookeeper.txt": "/consumers/g/offsets/t/0 1\n",
    "positions.csv": "topic,partition,log_start_offset,log_end_offset,sampled_at\n",
    "offsets.json": '{"offsets": []}',
}
PREVIOUS = "it has format 5, this program reads 6; copy it to the new format:"
TOO_OLD = (
    "it has format {}, which the last version 0.1.0 of the program can copy to format 5; "
    "run its `offsets upgrade` first, then that of this version"
)
BROKER = "--bootstrap-server 127.0.0.1:1"
#: Options of each command that takes a store; {folder} has the store and the files that they name.
COMMANDS = {
    "ingest-segments": "{segments}",
    "ingest-topic": f"{BROKER}",
    "follow": f"{BROKER}",
    "snapshot": f"{BROKER} --once",
    "import-zookeeper": "--dump {folder}/zookeeper.txt",
    "import-checkpoint": "{checkpoint} --group g",
    "sample-topic-offsets": "--positions {folder}/positions.csv",
    "fold": "--available-now",
    "reload": "",
    "verify": "",
    "describe": "--all-groups",
    "groups": "",
    "top": "",
    "lag": "",
    "share-partitions": "",
    "status": "",
    "check": "",
    "fetch": f"--group billing --topic orders {BROKER}",
    "log-info": "",
    "sql": "'SELECT 1'",
    "create-views": "--schema ops",
    "export-segments": "--to {folder}/to",
    "as-of": "--time 2026-11-23T12:00:00Z",
    "history": "--group billing",
    "why": "--group billing --topic orders --partition 0",
    "report": "--html {folder}/report.html",
    "serve": "--listen 127.0.0.1:0",
    "create": "",
    "commit": "--group billing orders:0=1",
    "reset-offsets": "--group billing --topic orders --to-offset 1",
    "restore": f"--as-of 2026-11-23T12:00:00Z {BROKER}",
    "delete-offsets": "--group billing orders",
    "delete-group": "--group billing",
    "expire-offsets": "",
    "connect list": "",
    "connect describe": "--connector files",
    "connect config": "--connector files",
    "connect stop": "--connector files",
    "connect pause": "--connector files",
    "connect resume": "--connector files",
    "connect alter": "--connector files --offsets {folder}/offsets.json",
    "connect reset": "--connector files",
    "connect delete": "--connector files",
    "connect serve": "--listen 127.0.0.1:0",
    "maintain": "",
    "clean-log": "",
    "name-cluster": "lab",
}


def kind_of(command: str) -> str:
    """The store of format 5 that a command would take if it had this program's format."""
    if command.startswith("connect "):
        return "connect"
    return "mirrored" if command in ("ingest-segments", "ingest-topic", "follow") else "owned"


def run(command: str, store: Path) -> int:
    """Run a command on a store of another format."""
    files = {"folder": store.parent, "checkpoint": CHECKPOINT, "segments": CAPTURES / "4.2.0-inject" / "segments"}
    options = [each.format(**files) for each in shlex.split(COMMANDS[command])]
    return main([*command.split(), "--store", str(store), *options])


def test_all_commands_on_a_store_are_tested() -> None:
    assert {*COMMANDS, "upgrade", "dump"} == set(offsets.leaves())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_store_of_format_5_is_refused_with_the_command_that_copies_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def start_spark(*_: object) -> NoReturn:
        raise AssertionError("Spark is started")

    monkeypatch.setattr("offsets_pipeline.store.session.build_session", start_spark)
    store = Path(shutil.copytree(STORES / kind_of(command), tmp_path / "store"))
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    said = f"cannot open store {store}: {PREVIOUS} offsets upgrade --store {store} --to NEW\n"
    if command == "check":  # for Nagios: a store that cannot be read is an error, not a warning
        assert (run(command, store), capsys.readouterr()) == (2, (f"ERR: {said}", ""))
    else:
        assert (run(command, store), capsys.readouterr()) == (1, ("", f"offsets: error: {said}"))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("version", "said"),
    [
        *((version, TOO_OLD.format(version)) for version in "1234"),
        ("7", "it has format 7, this program reads 6; use a newer version of the program"),
        ("x", "its table log is not a log of this program; name another folder"),
    ],
)
@pytest.mark.parametrize("command", ["log-info", "commit", "reload"])
def test_a_store_of_another_format_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, version: str, said: str
) -> None:
    store = Path(shutil.copytree(STORES / "owned", tmp_path / "store"))
    first = store / "log" / "_delta_log" / f"{0:020d}.json"
    first.write_text(re.sub(r'("offsets.format.version": )"5"', rf'\1"{version}"', first.read_text("utf-8")), "utf-8")
    assert run(command, store) == 1
    assert capsys.readouterr() == ("", f"offsets: error: cannot open store {store}: {said}\n")
