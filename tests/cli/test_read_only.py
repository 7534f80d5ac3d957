"""A store that may only be read answers every command that reads, and every plan."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.cli.program import main
from offsets_pipeline.coordinator.owned_store import OwnedStore
from tests.programs import in_process
from tests.unit.coordinator.stores import opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.spark.stores import Workbench

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {"os.mkdir", "os.remove", "os.rename", "os.link", "os.symlink", "os.rmdir", "os.truncate", "os.chmod"}
_forbidden: list[Path] = []


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    """Refuse writes as a read-only folder does; tests may run as root, which may write anywhere."""
    if not _forbidden or (event != "open" and event not in _CHANGES):
        return
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & _WRITING):
        return
    paths = [each for each in arguments[:2] if isinstance(each, str | os.PathLike)]
    if any(folder in Path(path).parents for folder in _forbidden for path in paths):
        raise PermissionError(13, "Permission denied", str(paths[0]))


sys.addaudithook(_refuse)


@pytest.fixture
def committed(tmp_path: Path) -> Path:
    """An owned store with a group."""
    OwnedStore.create(tmp_path / "store", 3)
    with opened(tmp_path / "store") as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 1})
    return tmp_path / "store"


@pytest.fixture
def read_only(committed: Path) -> Iterator[Path]:
    """An owned store with a group, which cannot be written to."""
    with _protected(committed):
        yield committed


@contextmanager
def _protected(store: Path) -> Iterator[None]:
    """Refuse writes to the store; also fail if Spark, whose JVM is not refused anything, has written to it."""
    before = _files(store)
    _forbidden.append(store)
    try:
        yield
    finally:
        _forbidden.clear()
    assert _files(store) == before


def _files(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "command",
    [
        "describe --store STORE --all-groups",
        "log-info --store STORE",
        "status --store STORE",
        "expire-offsets --store STORE --dry-run",
        "reset-offsets --store STORE --group g --topic t:0 --shift-by 1",
        "reset-offsets --store STORE --group g --topic t:0 --to-current",
        "export-segments --store STORE --to TARGET",
    ],
)
def test_a_command_that_only_reads_answers(
    read_only: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [{"STORE": str(read_only), "TARGET": str(tmp_path / "out")}.get(word, word) for word in command.split()]
    status = main(words)
    assert (status, capsys.readouterr().err.count("error:")) == (0, 0)


def test_sql_and_verify_answer(workbench: Workbench, committed: Path, tmp_path: Path) -> None:
    workbench.reload(committed)
    with _protected(committed):
        query = "SELECT group_id, committed_offset FROM current_offsets"
        answer = in_process(tmp_path, "sql", "--store", committed, "--format", "csv", query)
        assert (answer.returncode, answer.stdout.splitlines()[1:], answer.stderr) == (0, ["g,1"], "")
        for options in ([], ["--independent"]):
            answer = in_process(tmp_path, "verify", "--store", committed, *options)
            assert (answer.returncode, answer.stdout[:6], answer.stderr) == (0, "equal:", "")


def test_a_command_that_writes_says_that_it_cannot(
    read_only: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pyarrow.parquet.ParquetWriter.write_table", refuse)  # Arrow opens files without Python
    assert main(["commit", "--store", str(read_only), "--group", "g", "t:0=5"]) == 1
    said = capsys.readouterr().err
    assert "Permission denied" in said
    assert "Traceback" not in said
