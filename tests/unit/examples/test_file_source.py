"""The reader of the file source, without Spark: offsets, limits, tasks, rows, and positions in the store."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from examples import file_lines
from examples.file_lines import SourceFileTruncated
from examples.file_source import FORMAT, SCHEMA, FileSource, FileStreamReader
from offsets_pipeline.connect.connect_log import ConnectLog
from offsets_pipeline.connect.offset_management import OffsetManagement
from offsets_pipeline.connect.target_states import PAUSED, RUNNING, STOPPED
from offsets_pipeline.errors import (
    ConfigError,
    ConnectorStopped,
    InvalidRequest,
    NoSuchOffset,
    StorageFailed,
)
from offsets_pipeline.store.delta.storage import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from examples.file_source import Offsets

ALL = ReadAllAvailable()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of three lines and the beginning of a fourth."""
    (tmp_path / "a.txt").write_bytes("one\né\r\nthree\nfo".encode())
    return tmp_path / "a.txt"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ConnectLog]:
    """The owned store, as an operator has it open."""
    ConnectLog.create(tmp_path / "owned", "lab", 3)
    with ConnectLog.open(tmp_path / "owned") as opened:
        yield opened


@pytest.fixture
def make(file: Path, log: ConnectLog) -> Iterator[Callable[..., FileStreamReader]]:
    """Make readers as Spark makes them; each option may be set."""
    made: list[FileStreamReader] = []

    def reader(**options: str) -> FileStreamReader:
        named = {name.replace("_", "."): value for name, value in options.items()}
        needed = {"name": "files", "offset.storage.topic": log.store.location, "file": str(file)}
        made.append(FileSource(needed | named).streamReader(None))
        return made[-1]

    yield reader
    for each in made:
        each.stop()


def rows(reader: FileStreamReader, start: Offsets, end: Offsets) -> list[tuple[Any, ...]]:
    """The rows of all tasks, each with a reader of its own, as Spark ships it."""
    found: list[tuple[Any, ...]] = []
    for task in reader.partitions(start, end):
        for batch in pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(task))):
            found += [tuple(row.values()) for row in batch.to_pylist()]
    return found


def positions(offsets: Offsets) -> list[int]:
    """The positions of the files in order."""
    return [each["position"] for each in offsets.values()]


def in_store(log: ConnectLog) -> list[dict[str, Any]]:
    """What `GET /connectors/files/offsets` answers."""
    return OffsetManagement(log).offsets("files")["offsets"]  # type: ignore[no-any-return]


def test_lines_come_with_file_and_position_and_the_store_follows(
    make: Callable[..., FileStreamReader], file: Path, log: ConnectLog
) -> None:
    assert (FileSource.name(), FileSource({}).schema()) == (FORMAT, SCHEMA)
    reader = make()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert (positions(start), positions(end)) == ([0], [13])
    assert rows(reader, start, end) == [(str(file), 4, "one"), (str(file), 7, "é"), (str(file), 13, "three")]
    assert reader.latestOffset(end, ALL) == end
    assert reader.partitions(end, end) == []
    reader.commit(end)
    assert in_store_names(log) == []  # queued until a flush
    reader.stop()
    assert in_store(log) == [{"partition": {"filename": str(file)}, "offset": {"position": 13}}]
    with file.open("ab") as more:
        more.write(b"ur\n")
    again = make()
    assert positions(again.initialOffset()) == [13]
    end = again.latestOffset(again.initialOffset(), ALL)
    assert rows(again, again.initialOffset(), end) == [(str(file), 18, "four")]


def in_store_names(log: ConnectLog) -> list[str]:
    """The connectors that the store knows."""
    return list(OffsetManagement(log).target_states())


def test_a_batch_has_at_most_batch_size_lines_and_a_flush_is_due_by_lines(
    make: Callable[..., FileStreamReader], log: ConnectLog
) -> None:
    reader = make(batch_size="2", offset_flush_records="3")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(2)
    assert make().getDefaultReadLimit() == ALL
    first = reader.latestOffset(reader.initialOffset(), limit)
    assert positions(first) == [7]
    reader.commit(first)
    assert in_store_names(log) == []
    second = reader.latestOffset(first, limit)
    assert positions(second) == [13]
    reader.commit(second)
    assert in_store(log)[0]["offset"] == {"position": 13}
    assert [list(marks) for marks in reader._marks.values()] == [[13]]  # those before it are needed no more


def test_files_are_source_partitions_and_share_a_limit(
    make: Callable[..., FileStreamReader], file: Path, tmp_path: Path, log: ConnectLog
) -> None:
    other = tmp_path / "b.txt"
    other.write_text("x\ny\n")
    reader = make(file=f'["{file}", "{other}"]')
    start = reader.initialOffset()
    assert positions(reader.latestOffset(start, ReadMaxRows(4))) == [13, 2]
    end = reader.latestOffset(start, ALL)
    assert [row[2] for row in rows(reader, start, end)] == ["one", "é", "three", "x", "y"]
    reader.commit(end)
    reader.stop()
    assert [each["partition"]["filename"] for each in in_store(log)] == [str(file), str(other)]
    with_new = make(file=f'["{other}", "{file}"]')
    assert with_new.latestOffset({str(file): {"position": 4}}, ALL) == {
        str(file): {"position": 13},
        str(other): {"position": 4},
    }


def test_available_now_reads_no_further_than_the_file_reached(
    make: Callable[..., FileStreamReader], file: Path
) -> None:
    reader = make()
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    with file.open("ab") as more:
        more.write(b"ur\nfive\n")
    end = reader.latestOffset(start, ReadMaxRows(2))
    assert positions(end) == [7]
    end = reader.latestOffset(end, ALL)
    assert positions(end) == [13]
    assert reader.latestOffset(end, ALL) == end


def test_a_long_file_is_read_by_several_tasks(
    make: Callable[..., FileStreamReader], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_lines, "_CHUNK_BYTES", 1_000)
    expected = [f"line {number} é" for number in range(5_000)]
    file.write_text("".join(f"{line}\n" for line in expected))
    reader = make()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert len(reader.partitions(start, end)) > 5
    assert [row[2] for row in rows(reader, start, end)] == expected
    assert [row[2] for row in rows(make(), start, end)] == expected  # a batch of an earlier run of the query


def test_a_file_that_is_absent_at_first_is_waited_for(
    make: Callable[..., FileStreamReader], file: Path, log: ConnectLog, caplog: pytest.LogCaptureFixture
) -> None:
    file.rename(file.with_name("hidden"))
    reader = make()
    start = reader.initialOffset()
    for _ in range(2):
        assert reader.latestOffset(start, ALL) == start
    assert caplog.text.count(f"there is no file {file} yet; waiting for it") == 1
    reader.commit(start)
    file.with_name("hidden").rename(file)
    assert positions(reader.latestOffset(start, ALL)) == [13]
    reader.stop()
    assert in_store_names(log) == []  # no lines, no offset


def test_a_truncated_file_says_so(make: Callable[..., FileStreamReader], file: Path) -> None:
    reader = make()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    (task,) = reader.partitions(start, end)
    file.write_bytes(b"one\n")
    said = rf"cannot read {file} on from position \d+: it was truncated to 4 bytes"
    with pytest.raises(SourceFileTruncated, match=said):
        reader.latestOffset(end, ALL)
    with pytest.raises(SourceFileTruncated, match=said):
        make().latestOffset(end, ALL)
    with pytest.raises(SourceFileTruncated, match=said):
        list(reader.read(task))
    file.unlink()
    with pytest.raises(SourceFileTruncated, match="truncated to 0 bytes"):
        reader.partitions(start, end)
    with pytest.raises(SourceFileTruncated):
        list(reader.read(task))


def test_offset_reset_decides_without_an_offset(make: Callable[..., FileStreamReader]) -> None:
    assert positions(make(offset_reset="earliest").initialOffset()) == [0]
    assert positions(make(offset_reset="latest").initialOffset()) == [13]
    assert positions(make(offset_reset='{"position": 4}').initialOffset()) == [4]
    with pytest.raises(NoSuchOffset, match=r"offset\.reset is none"):
        make(offset_reset="none").initialOffset()


def test_a_paused_connector_reads_nothing_and_a_stopped_one_ends_the_query(
    make: Callable[..., FileStreamReader], file: Path, log: ConnectLog
) -> None:
    reader, management = make(), OffsetManagement(log)
    start = reader.initialOffset()
    reader.commit(reader.latestOffset(start, ReadMaxRows(1)))
    reader.stop()
    start = reader.initialOffset()
    management.set_target_state("files", PAUSED)
    assert reader.latestOffset(start, ALL) == start
    management.set_target_state("files", STOPPED)
    with pytest.raises(ConnectorStopped, match="connector files is STOPPED; resume it"):
        reader.latestOffset(start, ALL)
    management.alter("files", [{"partition": {"filename": str(file)}, "offset": {"position": 7}}])
    management.set_target_state("files", RUNNING)
    assert positions(make().initialOffset()) == [7]


def test_while_the_store_is_away_nothing_is_read_and_no_position_is_lost(
    make: Callable[..., FileStreamReader], log: ConnectLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = make()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    with monkeypatch.context() as away:

        def failing(*_: object) -> bytes:
            raise OSError("storage is away")

        away.setattr(LocalStorage, "read", failing)
        for _ in range(2):
            assert reader.latestOffset(end, ReadMaxRows(1)) == end
        reader.prepareForTriggerAvailableNow()
        with pytest.raises(StorageFailed, match="storage is away"):
            reader.latestOffset(end, ALL)
    assert reader.latestOffset(end, ALL) == end
    assert in_store(log)[0]["offset"] == {"position": 13}


@pytest.mark.parametrize("offset", [{"position": "7"}, {"position": -1}, {"position": True}])
def test_an_offset_of_another_form_is_refused(
    make: Callable[..., FileStreamReader], file: Path, log: ConnectLog, offset: dict[str, Any]
) -> None:
    OffsetManagement(log).alter("files", [{"partition": {"filename": str(file)}, "offset": offset}], creates=True)
    with pytest.raises(InvalidRequest, match="which has no position; alter it"):
        make().initialOffset()


@pytest.mark.parametrize("file_option", ["[", "[]", "[1]", ""])
def test_a_wrong_list_of_files_is_refused(make: Callable[..., FileStreamReader], file_option: str) -> None:
    with pytest.raises(ConfigError, match=r"^file: "):
        make(file=file_option)
    with pytest.raises(ConfigError, match=r"^batch\.size: '0' is not allowed"):
        make(batch_size="0")
