"""`offsets import-checkpoint`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.requests import OffsetAndMetadata
from offsets_pipeline.spark_query.kafka_source_offsets import BatchMark
from tests.unit.coordinator.stores import log_of, references_of
from tests.unit.spark_query.checkpoints import QUERY_ID, WrittenCheckpoint, kafka, time_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def offsets_of(store: Path, group: str = "g") -> dict[tuple[str, int], int]:
    """Committed offsets, by a replay of the log with the specification."""
    return {
        (identity[1], identity[2]): each.committed_offset
        for state in references_of(store, 1).values()
        for identity, each in state.current.items()
        if identity[0] == group
    }


def commit_times(store: Path) -> list[tuple[str, int, int, int]]:
    """Topic, partition, offset and commit timestamp of every commit in the log, in order."""
    from offsets_pipeline.kafka.record.decode import decode_key, decode_value  # noqa: PLC0415

    found = []
    for rows in log_of(store).values():
        for row in rows:
            assert row.key is not None
            assert row.value is not None
            key = decode_key(row.key)
            value = decode_value(key.record_type, row.value)
            found.append(
                (key.fields["topic"], key.fields["partition"], value.fields["offset"], value.fields["commit_timestamp"])
            )
    return found


@pytest.fixture
def checkpoint(place: Path) -> WrittenCheckpoint:
    """A checkpoint without batches."""
    return WrittenCheckpoint(place / "checkpoint")


@pytest.fixture
def run(store: Path, checkpoint: WrittenCheckpoint) -> Callable[..., int]:
    """Runs the command for group g."""

    def run(*more: str) -> int:
        return main(["import-checkpoint", str(checkpoint.folder), "--group", "g", "--store", str(store), *more])

    return run


def test_completed_batches_are_committed_in_order_with_their_times(
    run: Callable[..., int], checkpoint: WrittenCheckpoint, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint.complete(0, [kafka(orders=[5, 7])])
    checkpoint.complete(10, [kafka(orders=[9, 7])])
    checkpoint.complete(9, [kafka(orders=[6, 7])])  # 9 before 10, not as text
    checkpoint.plan(11, [kafka(orders=[12, 20])])  # not complete
    assert run() == 0
    assert commit_times(store) == [
        ("orders", partition, offset, time_of(batch))
        for batch, offsets in ((0, (5, 7)), (9, (6, 7)), (10, (9, 7)))
        for partition, offset in enumerate(offsets)
    ]
    assert capsys.readouterr().out == (f"3 batches (0 to 10) of {checkpoint.folder} committed for group g in {store}\n")


def test_running_it_again_adds_only_newer_batches(
    run: Callable[..., int], checkpoint: WrittenCheckpoint, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint.complete(0, [kafka(orders=[5])])
    checkpoint.complete(1, [kafka(orders=[6])])
    assert (run(), run()) == (0, 0)
    assert len(commit_times(store)) == 2
    checkpoint.complete(2, [kafka(orders=[8, 1])])
    assert run() == 0
    assert commit_times(store)[2:] == [("orders", 0, 8, time_of(2)), ("orders", 1, 1, time_of(2))]
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"0 batches of {checkpoint.folder} committed for group g in {store}; 2 were there",
        f"1 batches (2 to 2) of {checkpoint.folder} committed for group g in {store}; 2 were there",
    ]


def test_offsets_with_notes_of_others_are_no_imported_batches(
    run: Callable[..., int], checkpoint: WrittenCheckpoint, store: Path
) -> None:
    with Coordinator.open(store, housekeeping=False) as coordinator:
        coordinator.commit_offsets("g", {("orders", 0): OffsetAndMetadata(3, metadata="a note")})
    checkpoint.complete(0, [kafka(orders=[5])])
    assert run() == 0
    assert offsets_of(store) == {("orders", 0): 5}


def test_rest_of_a_batch_that_was_imported_in_part_is_added(
    run: Callable[..., int], checkpoint: WrittenCheckpoint, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offsets_pipeline.spark_query.kafka_source_offsets._PARTITIONS_OF_COMMIT", 1)
    checkpoint.complete(0, [kafka(orders=[1, 1, 1])])
    assert run() == 0
    checkpoint.complete(1, [kafka(orders=[2, 2, 2])])
    commit, commits = Coordinator.commit_offsets, [1]

    def commit_one(*arguments: object) -> None:  # then the process dies
        if not commits:
            raise KeyboardInterrupt
        commits.pop()
        commit(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as killed:
        killed.setattr(Coordinator, "commit_offsets", commit_one)
        assert run() == 130
    assert sorted(offsets_of(store).values()) == [1, 1, 2]
    assert run() == 0
    assert offsets_of(store) == {("orders", 0): 2, ("orders", 1): 2, ("orders", 2): 2}
    assert len(commit_times(store)) == 6


def test_batches_that_marks_of_the_query_show_are_skipped_by_partition_or_else_by_source(
    run: Callable[..., int], checkpoint: WrittenCheckpoint, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marks = {
        ("orders", 0): BatchMark(QUERY_ID, "0", 2),
        ("orders", 1): BatchMark(QUERY_ID, "0", 1),  # the rest of batch 2 is missing
        ("payments", 0): BatchMark("another", "1", 9),
        ("clicks", 0): BatchMark(QUERY_ID, None, 1),  # of a listener, which does not know names of sources
    }
    with Coordinator.open(store, housekeeping=False) as coordinator:
        coordinator.commit_offsets(
            "g", {where: OffsetAndMetadata(1, metadata=mark.as_metadata()) for where, mark in marks.items()}
        )
    for batch in range(4):
        checkpoint.complete(
            batch, [kafka(orders=[10 + batch] * 3), kafka(payments=[20 + batch]), kafka(clicks=[30 + batch] * 2)]
        )
    assert run() == 0
    rest = {
        2: [("clicks", 0, 32), ("clicks", 1, 32), ("orders", 1, 12), ("payments", 0, 22)],
        3: [*(("clicks", at, 33) for at in range(2)), *(("orders", at, 13) for at in range(3)), ("payments", 0, 23)],
    }
    assert commit_times(store)[len(marks) :] == [(*each, time_of(batch)) for batch in rest for each in rest[batch]]
    assert "2 batches (2 to 3) of " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("metadata", "time_ms"),
    [("", None), ('{"batchTimestampMs":0}', None), ('{"batchTimestampMs":253402300799999}', 253_402_300_799_999)],
)
def test_batch_without_a_time_has_that_of_its_file(
    run: Callable[..., int], checkpoint: WrittenCheckpoint, store: Path, metadata: str, time_ms: int | None
) -> None:
    checkpoint.complete(0, [kafka(orders=[5])])
    file = checkpoint.folder / "offsets" / "0"
    file.write_text(f"v1\n{metadata}\n{kafka(orders=[5])}")  # without metadata as continuous processing
    assert run() == 0
    assert commit_times(store) == [("orders", 0, 5, time_ms or file.stat().st_mtime_ns // 1_000_000)]


def test_sources_of_version_2_have_names(run: Callable[..., int], checkpoint: WrittenCheckpoint, store: Path) -> None:
    checkpoint.complete(
        0, {"in": kafka(orders=[5]), "files": '{"logOffset":3}', "none": "-", "1": kafka(payments=[7]), "rate": "42"}
    )
    assert run() == 0
    assert offsets_of(store) == {("orders", 0): 5, ("payments", 0): 7}


def test_sources_of_one_topic_are_told_apart_by_name_or_refused(
    run: Callable[..., int], checkpoint: WrittenCheckpoint, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for batch in (0, 1):
        checkpoint.complete(batch, {"early": kafka(orders=[5 + batch]), "late": kafka(orders=[3 + batch])})
    assert run() == 1
    assert capsys.readouterr().err == (
        f"offsets: error: the query of checkpoint {checkpoint.folder} has two Kafka sources with topic orders, early "
        "and late, but a group has one offset for each partition; import each source into a group of its own with "
        "--source\n"
    )
    assert commit_times(store) == []
    assert run("--source", "late") == 0
    assert offsets_of(store) == {("orders", 0): 4}
    assert run("--source", "early", "--group", "h") == 0
    assert offsets_of(store, "h") == {("orders", 0): 6}
    assert run("--source", "0") == 1
    assert "has no Kafka source 0; its Kafka sources are early, late" in capsys.readouterr().err


def test_sources_of_version_1_have_numbers(run: Callable[..., int], checkpoint: WrittenCheckpoint, store: Path) -> None:
    checkpoint.complete(0, ['{"sourceVersion":1,"reservoirVersion":2}', kafka(orders=[5]), kafka(orders=[3])])
    assert run() == 1
    assert run("--source", "2") == 0
    assert offsets_of(store) == {("orders", 0): 3}


def test_sources_of_one_query_are_imported_one_after_the_other(
    run: Callable[..., int], checkpoint: WrittenCheckpoint, store: Path
) -> None:
    checkpoint.complete(0, [kafka(orders=[5]), kafka(payments=[3])])
    assert run("--source", "0") == 0
    assert run("--source", "1") == 0
    assert offsets_of(store) == {("orders", 0): 5, ("payments", 0): 3}


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("offsets/1", "", "offsets/1: it is empty"),
        ("offsets/1", 'v1\n{"batchTimestampMs":1}', "offsets/1: it ends before the offsets of the sources"),
        ("offsets/1", 'v1\n{"batchTim', "offsets/1: it ends before the offsets of the sources"),
        ("offsets/1", 'v1\n{"batchTim\n{"orders":{"0":5}}', "offsets/1: its metadata is not JSON"),
        ("offsets/1", 'v1\n{}\n{"orders":{"0":5', "offsets/1: source 0: "),
        ("offsets/1", 'v1\n{}\n{"orders":{"0":5}}\n', "offsets/1: its line 4 has no offset"),
        ("offsets/1", 'v1\n{}\n{"orders":{"0":-5}}\n-', "offsets/1: source 0: -5 is not an offset of orders-0"),
        ("offsets/1", 'v1\n{}\n{"orders":{"0":5}}', "offsets/1: it has 1 sources, other batches have 2"),
        ("offsets/1", 'v2\n{}\n{"orders":{"0":5}}', 'offsets/1: source {"orders"'),
        ("offsets/1", "v2\n{}\nname", "offsets/1: its line 3 is not NAME:OFFSET"),
        ("offsets/1", "v7\n{}\n-", "offsets/1: it has version 7, and this program reads versions 1 and 2"),
        ("offsets/1", "\0\0\0\0", "offsets/1: its first line '\\x00\\x00\\x00\\x00' is not a version"),
        ("offsets/1", 'v1\n{"batchTimestampMs":"x"}\n-\n-', "offsets/1: its batchTimestampMs 'x' is not a time"),
        ("offsets/1", 'v1\n{"batchTimestampMs":-1}\n-\n-', "offsets/1: its batchTimestampMs -1 is not a time"),
        ("offsets/1", 'v1\n{"batchTimestampMs":253402300800000}\n-\n-', "offsets/1: its batchTimestampMs 2534023008"),
        ("offsets/1", "v1\n[]\n-\n-", "offsets/1: its metadata is not a JSON object"),
        ("offsets/1", b"v1\n\xff\n-", "offsets/1: it is not text"),
        ("offsets/1", None, "offsets/1: it is missing, though the batch is complete"),
        ("commits/1", "", "commits/1: it is empty"),
        ("commits/1", 'v1\n{"nextBatch', "commits/1: its metadata is not JSON"),
        ("metadata", "{", "metadata: it has no id of the query"),
    ],
)
def test_torn_file_is_one_line_and_nothing_is_committed(
    run: Callable[..., int],
    checkpoint: WrittenCheckpoint,
    store: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    text: str | bytes | None,
    said: str,
) -> None:
    for batch in (0, 1):
        checkpoint.complete(batch, [kafka(orders=[5 + batch]), "-"])
    path = checkpoint.folder / file
    if text is None:
        path.unlink()
    else:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert run() == 1
    error = capsys.readouterr().err
    assert error.startswith(f"offsets: error: cannot read {checkpoint.folder}/{said}")
    assert error.count("\n") == 1
    assert commit_times(store) == []


def test_torn_file_of_a_batch_that_is_not_complete_is_not_read(
    run: Callable[..., int], checkpoint: WrittenCheckpoint, store: Path
) -> None:
    checkpoint.complete(0, [kafka(orders=[5])])
    (checkpoint.folder / "offsets" / "1").write_text('v1\n{"batch')
    (checkpoint.folder / "offsets" / ".2.tmp").write_text("")
    (checkpoint.folder / "offsets" / ".0.crc").write_bytes(b"\xff")
    assert run() == 0
    assert offsets_of(store) == {("orders", 0): 5}


@pytest.mark.local_only("a bucket has no empty folders")
def test_folder_without_a_checkpoint_or_kafka_is_one_line(
    run: Callable[..., int],
    checkpoint: WrittenCheckpoint,
    store: Path,
    place: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    at = ["--group", "g", "--store", str(store)]
    for path, said in (
        (str(place / "missing"), f"no checkpoint of a Structured Streaming query in {place / 'missing'}: it has"),
        ("nosuch://x/y", "cannot read checkpoint nosuch://x/y: "),
    ):
        assert main(["import-checkpoint", path, *at]) == 1
        assert capsys.readouterr().err.startswith(f"offsets: error: {said}")
    assert run() == 0
    assert capsys.readouterr().out.startswith("0 batches of ")
    checkpoint.complete(0, ["42"])
    assert run() == 1
    assert "has no Kafka source" in capsys.readouterr().err


@pytest.mark.local_only("of a folder that is named as a URI")
def test_query_without_an_id_is_imported_once(store: Path, place: Path) -> None:
    checkpoint = WrittenCheckpoint(place / "copy", query_id=None)  # of the two folders only
    checkpoint.complete(3, [kafka(orders=[5])])
    for _ in range(2):
        assert main(["import-checkpoint", f"file://{checkpoint.folder}", "--group", "g", "--store", str(store)]) == 0
    assert commit_times(store) == [("orders", 0, 5, time_of(3))]


def test_checkpoint_of_another_query_is_imported_from_its_first_batch(
    run: Callable[..., int], checkpoint: WrittenCheckpoint, store: Path, place: Path
) -> None:
    checkpoint.complete(7, [kafka(orders=[70])])
    assert run() == 0
    anew = WrittenCheckpoint(place / "anew", "another id")
    anew.complete(0, [kafka(orders=[80])])
    assert main(["import-checkpoint", str(anew.folder), "--group", "g", "--store", str(store)]) == 0
    assert offsets_of(store) == {("orders", 0): 80}


@pytest.mark.parametrize(
    ("name", "more", "offsets"),
    [
        ("3.5-v1", (), {0: 20, 1: 20}),
        ("3.5-continuous", (), {0: 0, 1: 0}),
        ("4.2-v1", (), {0: 20, 1: 20}),
        ("4.2-v2", ("--source", "late"), {0: 20, 1: 20}),
        ("4.2-v2", ("--source", "early"), {0: 20, 1: 20}),
    ],
)
def test_checkpoint_that_spark_wrote_is_imported(
    root: Path, store: Path, name: str, more: tuple[str, ...], offsets: dict[int, int]
) -> None:
    path = str(root / "tests" / "data" / "checkpoints" / f"spark-{name}")
    assert main(["import-checkpoint", path, "--group", "g", "--store", str(store), *more]) == 0
    assert offsets_of(store) == {("orders", at): offset for at, offset in offsets.items()}
    assert len(commit_times(store)) == 8
