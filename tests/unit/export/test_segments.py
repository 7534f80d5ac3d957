"""The segment files of an export, and what is left where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from offsets_pipeline.errors import TargetNotEmpty
from offsets_pipeline.export import segments
from offsets_pipeline.export.segments import ExportedPartition, export_segments
from offsets_pipeline.ingest.segment_files import find_log
from offsets_pipeline.query.state import StateReader
from offsets_pipeline.record.compression import Codec
from offsets_pipeline.record.segment import read_segment
from tests.log_tables import capture_log, capture_records, log_store, segment_records
from tests.logs import CAPTURE_NAMES, capture_partitions
from tests.unit.export.test_ordered import append

if TYPE_CHECKING:
    from pathlib import Path


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("name", CAPTURE_NAMES)
def test_recorded_logs_come_back_from_a_store(tmp_path: Path, name: str, codec: Codec) -> None:
    n, records = capture_partitions(name), capture_records(name)
    store = log_store(tmp_path / "store", n, [capture_log(name)])
    exported = export_segments(StateReader(str(store)), tmp_path / "to", codec=codec)
    held = {at: each for at, each in segment_records(tmp_path / "to").items() if each.num_rows}
    assert held == {at: each for at, each in records.items() if each.num_rows}
    assert [each.log_partition for each in exported] == list(range(n))
    assert sum(each.records for each in exported) == sum(each.num_rows for each in records.values())
    assert sum(each.bytes for each in exported) == sum(path.stat().st_size for path in tmp_path.glob("to/*/*"))


def test_every_log_partition_has_a_folder_and_a_file(tmp_path: Path) -> None:
    store = log_store(tmp_path / "store", 3, [append([(1, 7)])], {2: (40, 40)})
    exported = export_segments(StateReader(str(store)), tmp_path / "a" / "to")
    assert files(tmp_path / "a" / "to") == [
        f"__consumer_offsets-{at}/{start:020}.log" for at, start in enumerate((0, 0, 40))
    ]
    assert [each[:4] for each in map(_cells, exported)] == [(0, 0, 0, 0), (1, 0, 8, 1), (2, 40, 40, 0)]


def _cells(each: ExportedPartition) -> tuple[int, ...]:
    return each.log_partition, each.start, each.end, each.records, each.segments, each.bytes


def test_segments_are_named_by_their_first_record_offset_and_no_larger_than_they_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "_WAITING_BYTES", 4000)  # so batches are small, as nothing waits for others
    store = log_store(tmp_path / "store", 1, [append([(0, 3 * at) for at in range(2000)])])
    monkeypatch.setattr("offsets_pipeline.export.ordered._BLOCK_ROWS", 100)
    (exported,) = export_segments(StateReader(str(store)), tmp_path / "to", segment_bytes=5000)
    written = sorted(tmp_path.glob("to/*/*.log"))
    assert exported.segments == len(written) > 5
    for path in written:
        reader = read_segment(path.read_bytes(), source=path.name)
        list(reader.batches())
        assert reader.base_offset == int(path.stem)
        assert path.stat().st_size <= 5000
    assert segment_records(tmp_path / "to")[0]["record_offset"].to_pylist() == [3 * at for at in range(2000)]


def test_an_end_behind_the_last_record_is_kept(tmp_path: Path) -> None:  # R2
    store = log_store(tmp_path / "store", 2, [append([(0, 5)])], {0: (2, 9), 1: (3, 4)})
    exported = export_segments(StateReader(str(store)), tmp_path / "to")
    assert [(each.start, each.end, each.records) for each in exported] == [(2, 9, 1), (3, 4, 0)]
    ends = {}
    for path in tmp_path.glob("to/*/*.log"):
        reader = read_segment(path.read_bytes(), source=path.name)
        list(reader.batches())
        ends[path.parent.name[-1]] = reader.end_offset
    assert ends == {"0": 9, "1": 4}


def test_as_of_a_time_the_end_is_behind_the_last_record_that_is_left(tmp_path: Path) -> None:
    store = log_store(tmp_path / "store", 2, [append([(0, 5), (0, 8), (1, 4)])], {0: (0, 20), 1: (0, 6)})
    exported = export_segments(StateReader(str(store)), tmp_path / "to", as_of_ms=6)
    assert [(each.end, each.records) for each in exported] == [(6, 1), (6, 1)]


def test_only_the_newest_epoch_is_exported(tmp_path: Path) -> None:
    appends = [append([(0, 1), (1, 2)]), append([(0, 0)], log_epoch=1)]
    store = log_store(tmp_path / "store", 2, appends, {0: (0, 50)})  # bounds of the old epoch
    before = export_segments(StateReader(str(store)), tmp_path / "before")
    assert [(each.end, each.records) for each in before] == [(50, 1), (3, 1)]  # the new one does not count yet
    bounds = StateReader(str(store)).select("SELECT * FROM log_partitions", "log_partitions")
    counts = [row | {"log_epoch": 1, "end_offset": 0} for row in bounds.to_pylist()]
    write_deltalake(store / "log_partitions", pa.Table.from_pylist(counts, bounds.schema), mode="append")
    exported = export_segments(StateReader(str(store)), tmp_path / "to")
    assert [(each.start, each.end, each.records) for each in exported] == [(0, 1, 1), (0, 0, 0)]


def test_no_end_lies_behind_records_that_an_ingest_appended_meanwhile(tmp_path: Path) -> None:
    store = log_store(tmp_path / "store", 1, [append([(0, 5)])], {0: (0, 9)})
    reader = StateReader(str(store))  # which has opened the log
    write_deltalake(store / "log", append([(0, 7), (0, 8)]), mode="append")
    (exported,) = export_segments(reader, tmp_path / "to")
    assert (exported.records, exported.end) == (3, 9)


@pytest.mark.parametrize("there", [False, True])
def test_a_failed_export_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    store = log_store(tmp_path / "store", 2, [append([(0, 5), (1, 6)])])
    to = tmp_path / "to"
    if there:
        to.mkdir()

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(segments, "encode_log", fail)
    with pytest.raises(KeyboardInterrupt):
        export_segments(StateReader(str(store)), to)
    assert to.exists() == there
    assert not there or list(to.iterdir()) == []


def test_what_a_killed_export_leaves_is_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever it dies: no folder has its own name before all are whole, and log partition 0 gets it last."""
    store = log_store(tmp_path / "store", 3, [append([(at, 5) for at in range(3)])])
    seen: list[list[str]] = []
    rename = type(tmp_path).rename

    def watched(path: Path, to: Path) -> Path:
        seen.append(sorted(child.name for child in to.parent.iterdir()))
        assert all(each.stat().st_size for each in to.parent.rglob("*.log"))
        return rename(path, to)

    monkeypatch.setattr(type(tmp_path), "rename", watched)
    export_segments(StateReader(str(store)), tmp_path / "to")
    unfinished = [f"__consumer_offsets-{at}.unfinished" for at in range(3)]
    assert seen[0] == unfinished
    assert seen[-1] == [unfinished[0], "__consumer_offsets-1", "__consumer_offsets-2"]
    for name in unfinished:
        (tmp_path / "left" / name).mkdir(parents=True)
        (tmp_path / "left" / name / f"{0:020}.log").touch()
    with pytest.raises(Exception, match="no segments of __consumer_offsets"):
        find_log([str(tmp_path / "left")])


def test_a_place_that_is_taken_is_refused(tmp_path: Path) -> None:
    store = log_store(tmp_path / "store", 1, [append([(0, 5)])])
    (tmp_path / "a file").write_text("text")
    for place, said in ((tmp_path, "is not empty"), (tmp_path / "a file", "is no local folder")):
        with pytest.raises(TargetNotEmpty, match=said):
            export_segments(StateReader(str(store)), place)
    assert sorted(child.name for child in tmp_path.iterdir()) == ["a file", "store"]
