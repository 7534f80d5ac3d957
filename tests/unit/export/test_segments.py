"""Segment files of an export, and leftovers of a failed one."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import crc32c
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from offsets_pipeline.cli import main
from offsets_pipeline.errors import InvalidPartitionCount, InvalidTopic, NoSegments, NoSuchPath, TargetNotWritable
from offsets_pipeline.ingest.segments.segment_files import find_log
from offsets_pipeline.kafka.record.compression import Codec
from offsets_pipeline.kafka.record.segment import read_segment
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.repair.export import segment_export
from offsets_pipeline.repair.export.segment_export import MANIFEST, PartitionWriter, export_segments
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from tests.log_tables import capture_log, capture_records, log_store, segment_records
from tests.logs import CAPTURE_NAMES, capture_partitions
from tests.unit.log.test_ordered_log import append

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offsets_pipeline.repair.export.segment_export import Export, ExportedPartition


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
    assert [each.log_partition for each in exported.log_partitions] == list(range(n))
    assert {each.log_partition: each.records for each in exported.log_partitions} == {
        at: records[at].num_rows if at in records else 0 for at in range(n)
    }


def test_every_log_partition_has_a_folder_and_a_file(tmp_path: Path) -> None:
    store = log_store(tmp_path / "store", 3, [append([(1, 7)])], {2: (40, 40)})
    exported = export_segments(StateReader(str(store)), tmp_path / "a" / "to")
    assert files(tmp_path / "a" / "to") == [
        *(f"__consumer_offsets-{at}/{start:020}.log" for at, start in enumerate((0, 0, 40))),
        MANIFEST,
    ]
    assert extents(exported) == [(0, 0, 0), (0, 8, 1), (40, 40, 0)]


def extents(exported: Export) -> list[tuple[int, int, int]]:
    """Start, end and number of records of each log partition."""
    return [(each.start_offset, each.end_offset, each.records) for each in exported.log_partitions]


def test_segments_are_named_by_their_first_record_offset_and_no_larger_than_they_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_export, "_WAITING_BYTES", 4000)  # so batches are small, as nothing waits for others
    store = log_store(tmp_path / "store", 1, [append([(0, 3 * at) for at in range(2000)])])
    monkeypatch.setattr("offsets_pipeline.store.log.ordered_log._BLOCK_ROWS", 100)
    (exported,) = export_segments(StateReader(str(store)), tmp_path / "to", segment_bytes=5000).log_partitions
    written = sorted(tmp_path.glob("to/*/*.log"))
    assert len(exported.files) == len(written) > 5
    for path in written:
        reader = read_segment(path.read_bytes(), source=path.name)
        list(reader.batches())
        assert reader.base_offset == int(path.stem)
        assert path.stat().st_size <= 5000
    assert_lists_what_is_there(tmp_path / "to")
    assert segment_records(tmp_path / "to")[0]["record_offset"].to_pylist() == [3 * at for at in range(2000)]


def test_record_offsets_of_a_segment_fit_into_its_index(tmp_path: Path) -> None:
    """A broker's index holds them as int32, relative to the first one."""
    last = 2**31 - 1
    store = log_store(tmp_path / "store", 2, [append([(0, 1), (0, last), (0, last + 1)])], {1: (0, last + 2)})
    of_records, of_end = export_segments(StateReader(str(store)), tmp_path / "to").log_partitions
    bounds = [[(each.start_offset, each.end_offset) for each in found.files] for found in (of_records, of_end)]
    assert bounds == [[(0, last + 1), (last + 1, last + 2)], [(last + 1, last + 2)]]


@pytest.mark.parametrize(("room", "starts"), [(0, [5]), (-1, [5, 8])])
def test_a_segment_is_full_if_the_next_batch_exceeds_it(tmp_path: Path, room: int, starts: list[int]) -> None:
    def written(folder: str, segment_bytes: int) -> ExportedPartition:
        writer = PartitionWriter(tmp_path / folder, 3, 5, Codec.NONE, segment_bytes)
        for places in ([(3, 6), (3, 7)], [(3, 8)]):
            rows = append(places)
            assert writer.add(rows) == rows.nbytes
            assert (writer.flush(), writer.flush()) == (-rows.nbytes, 0)
        return writer.close(9)

    (whole,) = written("whole", 2**20).files
    found = written("found", whole.size + room)
    assert (found.log_partition, found.folder, found.start_offset, found.end_offset) == (3, "found", 5, 9)
    assert [(each.start_offset, each.end_offset) for each in found.files] == [
        *zip(starts, [*starts[1:], 9], strict=True)
    ]
    assert (found.records, sum(each.size for each in found.files)) == (3, whole.size)


def test_rows_wait_until_they_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [append([(0, at)]) for at in range(3)]
    size = rows[0].nbytes
    monkeypatch.setattr(segment_export, "_WAITING_BYTES", 2 * size)
    writer = PartitionWriter(tmp_path / "to", 0, 0, Codec.NONE, 1)
    assert [writer.add(each) for each in rows] == [size, size, -2 * size]
    assert [each.records for each in writer.close(0).files] == [3]


def test_a_file_has_its_final_name_after_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, to, done = log_store(tmp_path / "store", 2, [append([(0, 5)])]), tmp_path / "to", list[str]()
    monkeypatch.setattr(segment_export, "synchronise", lambda path: done.append(f"{path.relative_to(to)}"))
    rename = type(to).rename

    def renamed(path: Path, name: Path) -> Path:
        done.append(f"{path.name} -> {name.name}")
        return rename(path, name)

    monkeypatch.setattr(type(to), "rename", renamed)
    export_segments(StateReader(str(store)), to)
    names = [f"__consumer_offsets-{at}" for at in (0, 1)]
    of_files = [[f"{name}.unfinished/{0:020}.log", f"{name}.unfinished"] for name in names]
    assert done == [
        *(*of_files[0], *of_files[1]),
        *(f"{name}.unfinished -> {name}" for name in reversed(names)),
        *(f"{MANIFEST}.unfinished", ".", f"{MANIFEST}.unfinished -> {MANIFEST}", "."),
    ]


def test_log_end_after_the_last_record_is_kept(tmp_path: Path) -> None:  # R2
    store = log_store(tmp_path / "store", 2, [append([(0, 5)])], {0: (2, 9), 1: (3, 4)})
    exported = export_segments(StateReader(str(store)), tmp_path / "to")
    assert extents(exported) == [(2, 9, 1), (3, 4, 0)]
    ends = {}
    for path in tmp_path.glob("to/*/*.log"):
        reader = read_segment(path.read_bytes(), source=path.name)
        list(reader.batches())
        ends[path.parent.name[-1]] = reader.end_offset
    assert ends == {"0": 9, "1": 4}


def test_as_of_a_time_the_log_ends_after_the_last_exported_record(tmp_path: Path) -> None:
    store = log_store(tmp_path / "store", 2, [append([(0, 5), (0, 8), (1, 4)])], {0: (0, 20), 1: (0, 6)})
    exported = export_segments(StateReader(str(store)), tmp_path / "to", as_of_ms=6)
    assert extents(exported) == [(0, 6, 1), (0, 6, 1)]


def test_only_the_newest_log_incarnation_is_exported(tmp_path: Path) -> None:
    appends = [append([(0, 1), (1, 2)]), append([(0, 0)], log_incarnation=1)]
    store = log_store(tmp_path / "store", 2, appends, {0: (0, 50)})  # bounds of the old log incarnation
    before = export_segments(StateReader(str(store)), tmp_path / "before")
    assert extents(before) == [(0, 50, 1), (0, 3, 1)]  # the new one does not count yet
    bounds = StateReader(str(store)).table("log_partitions").rows()
    counts = [row | {"log_incarnation": 1, "end_offset": 0} for row in bounds.to_pylist()]
    write_deltalake(store / "log_partitions", pa.Table.from_pylist(counts, bounds.schema), mode="append")
    exported = export_segments(StateReader(str(store)), tmp_path / "to")
    assert extents(exported) == [(0, 1, 1), (0, 0, 0)]


def test_log_end_ignores_records_of_a_concurrent_ingest(tmp_path: Path) -> None:
    store = log_store(tmp_path / "store", 1, [append([(0, 5)])], {0: (0, 9)})
    reader = StateReader(str(store))  # which has opened the log
    write_deltalake(store / "log", append([(0, 7), (0, 8)]), mode="append")
    assert extents(export_segments(reader, tmp_path / "to")) == [(0, 9, 3)]


@pytest.mark.parametrize("there", [False, True])
def test_a_failed_export_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    store = log_store(tmp_path / "store", 2, [append([(0, 5), (1, 6)])])
    to = tmp_path / "to"
    if there:
        to.mkdir()

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(segment_export, "encode_log", fail)
    with pytest.raises(KeyboardInterrupt):
        export_segments(StateReader(str(store)), to)
    assert to.exists() == there
    assert not there or list(to.iterdir()) == []


@pytest.mark.parametrize("there", [False, True])
def test_an_export_to_a_full_disk_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], there: bool
) -> None:
    store = log_store(tmp_path / "store", 2, [append([(0, 5), (1, 6)])])
    to = tmp_path / "to"
    if there:
        to.mkdir()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    export = ["export-segments", "--store", str(store), "--to", str(to)]
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", fail)
        assert main(export) == 1
    assert capsys.readouterr() == (
        "",
        (
            f"offsets: error: cannot export to {to}: [Errno 28] No space left on device; what was written is removed; "
            "check its free space and your permissions, then try again\n"
        ),
    )
    assert to.exists() == there
    assert not there or list(to.iterdir()) == []
    assert main(export) == 0
    assert (to / MANIFEST).exists()


def assert_lists_what_is_there(folder: Path) -> None:
    """Assert that the manifest matches each file."""
    listed = json.loads((folder / MANIFEST).read_text())["log_partitions"]
    assert {f"{each['folder']}/{file['name']}" for each in listed for file in each["files"]} == {
        str(path.relative_to(folder)) for path in folder.glob("*/*")
    }
    for each in listed:
        assert each["folder"] == f"__consumer_offsets-{each['log_partition']}"
        end = each["start_offset"]
        for file in each["files"]:
            data = (folder / each["folder"] / file["name"]).read_bytes()
            reader = read_segment(data, source=file["name"])
            records = sum(batch.num_rows for batch in reader.batches()) if data else 0
            assert file["start_offset"] == int(file["name"].partition(".")[0]) >= end
            end = max(reader.end_offset or 0, file["start_offset"])
            assert (file["size"], file["records"], file["end_offset"]) == (len(data), records, end)
            assert int(file["crc32c"], 16) == crc32c.crc32c(data)
        assert each["end_offset"] == end
        assert each["records"] == sum(file["records"] for file in each["files"])


def test_manifest_says_what_was_exported(tmp_path: Path) -> None:
    store = log_store(tmp_path / "store", 3, [append([(0, 5), (0, 8), (1, 4)])], {0: (2, 20), 1: (0, 6)})
    export_segments(StateReader(str(store)), tmp_path / "to", as_of_ms=6, codec=Codec.ZSTD)
    manifest = json.loads((tmp_path / "to" / MANIFEST).read_text())
    version = DeltaTable(store / "log").version()
    assert {name: value for name, value in manifest.items() if name != "log_partitions"} == {
        "store": str(store),
        "log_version": version,
        "log_incarnation": 0,
        "as_of_ms": 6,
        "codec": "zstd",
    }
    assert_lists_what_is_there(tmp_path / "to")
    assert find_log([str(tmp_path / "to")]).partitions() == {0, 1, 2}  # an ingest does not look at it
    with pytest.raises(TargetNotWritable, match="it has a complete export"):
        export_segments(StateReader(str(store)), tmp_path / "to")


class _KilledError(BaseException):
    """The process is no more."""


def export_killed_at(step: int, store: Path, to: Path) -> int:
    """Export until the process dies at this step; returns the number of steps."""
    steps = 0

    def counted(act: Callable[..., Any]) -> Callable[..., Any]:
        def next_step(path: Path, *arguments: object, **options: object) -> object:
            nonlocal steps
            if path.is_relative_to(to):
                steps += 1
                if steps == step:
                    raise _KilledError
            return act(path, *arguments, **options)

        return next_step

    with pytest.MonkeyPatch.context() as patch, suppress(_KilledError):
        for name in ("open", "touch", "mkdir", "rename"):
            patch.setattr(type(to), name, counted(getattr(type(to), name)))
        patch.setattr(segment_export, "_remove_all", lambda *_, **__: None)  # a dead process removes nothing
        export_segments(StateReader(str(store)), to)
    return steps


def test_killed_anywhere_an_export_leaves_no_final_name_with_partial_content_and_the_next_one_replaces_it(
    tmp_path: Path,
) -> None:
    store, to = log_store(tmp_path / "store", 3, [append([(at, 5) for at in range(3)])]), tmp_path / "to"
    steps = export_killed_at(0, store, tmp_path / "undisturbed")
    whole = contents(tmp_path / "undisturbed")
    assert steps > len(whole)
    for step in range(1, steps + 1):
        assert export_killed_at(step, store, to) == step
        left = contents(to)
        assert all(whole[name] == data if name in whole else ".unfinished" in name for name, data in left.items())
        assert MANIFEST not in left
        if step < steps:  # at the last one all but the manifest has its name
            with pytest.raises((NoSegments, NoSuchPath, InvalidPartitionCount)):
                assert_is_whole_log(to, 3)
        export_segments(StateReader(str(store)), to)
        assert contents(to) == whole
        shutil.rmtree(to)


def assert_is_whole_log(folder: Path, partitions: int) -> None:
    """As an ingest sees it: all log partitions from 0 on."""
    if find_log([str(folder)]).partitions() != set(range(partitions)):
        raise InvalidPartitionCount


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


KILLED = """
import os, signal, sys
from pathlib import Path
from offsets_pipeline.repair.export.segment_export import export_segments
from offsets_pipeline.questions.query.state_reader import StateReader
rename, renames = Path.rename, []
def renamed(path, to):
    renames.append(to)
    if len(renames) == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(path, to)
type(Path()).rename = renamed
export_segments(StateReader(sys.argv[1]), Path(sys.argv[2]))
"""


def test_killed_export_is_replaced_and_a_running_one_is_left_alone(tmp_path: Path) -> None:
    store = log_store(tmp_path / "store", 2, [append([(0, 5), (1, 6)])])
    export_segments(StateReader(str(store)), tmp_path / "undisturbed")
    to = tmp_path / "to"
    done = subprocess.run([sys.executable, "-c", KILLED, store, to, "2"], check=False)
    assert done.returncode == -signal.SIGKILL
    assert sorted(child.name for child in to.iterdir()) == [
        "__consumer_offsets-0.unfinished",
        "__consumer_offsets-1",
        f"{MANIFEST}.unfinished",
    ]
    left = contents(to)
    with (
        segment_export.target_folder(tmp_path / "other", "__consumer_offsets"),
        pytest.raises(TargetNotWritable, match="another export writes to"),
    ):
        export_segments(StateReader(str(store)), tmp_path / "other")
    (to / "photo.jpg").write_bytes(b"")
    with pytest.raises(TargetNotWritable, match="is not empty"):
        export_segments(StateReader(str(store)), to)
    (to / "photo.jpg").unlink()
    assert contents(to) == left
    export_segments(StateReader(str(store)), to)
    assert contents(to) == contents(tmp_path / "undisturbed")


def test_a_place_that_is_taken_is_refused(tmp_path: Path) -> None:
    store = log_store(tmp_path / "store", 1, [append([(0, 5)])])
    (tmp_path / "a file").write_text("text")
    of_broker = tmp_path / "broker" / "__consumer_offsets-0"  # no remains of an export
    of_broker.mkdir(parents=True)
    for place, said in (
        (tmp_path, "is not empty"),
        (of_broker.parent, "is not empty"),
        (tmp_path / "a file", "is not a local folder"),
    ):
        with pytest.raises(TargetNotWritable, match=said):
            export_segments(StateReader(str(store)), place)
    assert sorted(child.name for child in tmp_path.iterdir()) == ["a file", "broker", "store"]
    assert [*of_broker.parent.iterdir()] == [of_broker]


@pytest.mark.parametrize("topic", ["../../../pwn", "..", ".", "a/b", "a" * 250, "\u00fc", "a\0"])
def test_a_topic_name_that_is_a_path_makes_no_store_and_is_not_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], topic: str
) -> None:
    with pytest.raises(InvalidTopic, match="is not a topic name"):
        StoreProperties(MIRRORED, 1, topic_name=topic, topic_kind=TopicKind.CONNECT_OFFSETS)
    with pytest.raises(InvalidTopic, match="is not a topic name"):
        find_log([str(tmp_path)], topic)
    store = log_store(tmp_path / "a" / "b" / "c" / "store", 1, [], topic_kind=TopicKind.CONNECT_OFFSETS)
    DeltaTable(store / "log").alter.set_table_properties({"offsets.topic.name": topic}, raise_if_not_exists=False)
    before = files(tmp_path)
    to = tmp_path / "a" / "b" / "c" / "to"
    assert main(["export-segments", "--store", str(store), "--to", str(to)]) == 1
    assert files(tmp_path) == before
    assert not to.exists()
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "is not a topic name" in err
    assert "correct the property offsets.topic.name of its table log" in err
