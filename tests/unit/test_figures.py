"""Metrics stay up to date, also after errors."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from offsets_pipeline.delta import TableFolder
from offsets_pipeline.delta.schemas import LOG
from offsets_pipeline.errors import MetricsUnavailable
from offsets_pipeline.observability import collectors as figures
from offsets_pipeline.observability.collectors import LogExtent, Watched
from offsets_pipeline.observability.metrics import Metrics

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    import pyarrow.parquet as pq

    from offsets_pipeline.delta import Snapshot, StoredFile

PATIENCE_SECONDS = 30


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "_WRITE_SECONDS", 0.01)
    monkeypatch.setattr(figures, "_COUNT_SECONDS", 0.0)


@pytest.mark.usefixtures("_hasty")
def test_failed_metrics_are_warned_of_once_and_retried(tmp_path: Path) -> None:
    metrics, file, counted = Metrics(), tmp_path / "m.prom", threading.Event()
    warnings: list[str] = []
    fails = ["no such column\nand a stack", "no such column", "another", None, "another"]

    def count() -> None:
        why = fails.pop(0) if fails else None
        if not fails:
            metrics.set("offsets_groups", 5)
            counted.set()
        if why is not None:
            raise RuntimeError(why)

    with Watched(metrics, file, None, warnings.append) as watched:
        watched.start(count)
        assert counted.wait(PATIENCE_SECONDS)
    assert "offsets_groups 5\n" in file.read_text()
    cannot = "cannot count the state tables: "
    assert warnings == [cannot + "no such column", cannot + "another", cannot + "another"]


@pytest.mark.usefixtures("_hasty")
def test_a_file_that_cannot_be_written_to_for_a_while_is_written_to_later(tmp_path: Path) -> None:
    folder, warned = tmp_path / "folder", threading.Event()
    warnings: list[str] = []
    folder.mkdir()
    metrics, file = Metrics(), folder / "m.prom"

    def warn(text: str) -> None:
        warnings.append(text)
        warned.set()

    with Watched(metrics, file, None, warn) as watched:
        file.unlink()
        folder.rmdir()
        watched.start(lambda: None)
        assert warned.wait(PATIENCE_SECONDS)
        metrics.set("offsets_groups", 7)
        folder.mkdir()
    assert "offsets_groups 7\n" in file.read_text()
    expected = f"metrics are not up to date: cannot write metrics to {file}: No such file or directory"
    assert warnings == [expected]


def test_unwritable_metrics_file_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(MetricsUnavailable, match="cannot write metrics to"):
        Watched(Metrics(), tmp_path / "none" / "m.prom", None, lambda _: None)


def append(folder: Path, rows: list[tuple[int, int, int]]) -> Snapshot:
    """Append rows of log incarnation, log partition, record offset."""
    names = ("log_incarnation", "log_partition", "record_offset")
    columns = zip(*rows, strict=True)
    write_deltalake(
        folder, pa.table({name: list(each) for name, each in zip(names, columns, strict=True)}), mode="append"
    )
    return TableFolder(str(folder), LOG).snapshot()


def test_extent_of_the_log_is_per_log_incarnation_and_reads_only_new_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extent = LogExtent()
    opened: list[str] = []

    open_file = TableFolder.open_file

    def noted(folder: TableFolder, file: StoredFile) -> AbstractContextManager[pq.ParquetFile]:
        opened.append(file.name)
        return open_file(folder, file)

    monkeypatch.setattr(TableFolder, "open_file", noted)
    log = tmp_path / "a log"
    assert extent.look(append(log, [(0, 0, 5), (0, 1, 2), (0, 0, 9)]), 0) == {0: (5, 9), 1: (2, 2)}
    assert extent.look(append(log, [(1, 1, 0), (0, 1, 3)]), 0) == {0: (5, 9), 1: (2, 3)}
    assert extent.look(TableFolder(str(log), LOG).snapshot(), 1) == {1: (0, 0)}
    assert len(opened) == len(set(opened)) == 2
