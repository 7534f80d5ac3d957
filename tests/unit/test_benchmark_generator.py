"""The benchmarks' log is readable by the project's reader, and replays to the generator's expected state."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import log_bytes
from benchmarks.generate import GeneratedLog, generate
from benchmarks.log_content import UPGRADED_AFTER, Shape
from offsets_pipeline.ingest.segments.segment_files import find_log
from offsets_pipeline.kafka.record.compression import Codec
from offsets_pipeline.kafka.record.decode import decode_value
from offsets_pipeline.kafka.record.segment import read_segment
from offsets_pipeline.semantics.log_row import ABORT, COMMIT, LogRow
from offsets_pipeline.semantics.partitioning import partition_for
from tests.replays import replay

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHAPE = Shape(
    commits=3_001,
    groups=40,
    topics_per_group=2,
    partitions_per_topic=3,
    offsets_partitions=5,
    tombstones=0.05,
    transactional=0.2,
    seed=7,
)
SHAPES = [replace(SHAPE, records_per_batch=records) for records in (1, 3, 6)] + [
    replace(SHAPE, codec=Codec.ZSTD),
    replace(SHAPE, tombstones=0.0, transactional=0.0),
    replace(SHAPE, commits=1, groups=1, records_per_batch=1),
]


def rows_of(log: GeneratedLog) -> Iterator[tuple[int, list[LogRow]]]:
    """The rows of each log partition, as the reader finds them."""
    for folder in find_log([str(log.folder)]).folders:
        rows = []
        for path in folder.files:
            with open(path, "rb") as file:  # noqa: PTH123
                reader = read_segment(file.read(), source=path)
            rows += [
                LogRow(
                    folder.log_partition,
                    row["record_offset"],
                    row["key"],
                    row["value"],
                    row["producer_id"] if row["is_transactional"] else None,
                    row["control_type"],
                )
                for batch in reader.batches()
                for row in batch.to_pylist()
            ]
            assert not reader.damage
            assert reader.torn_tail is None
        yield folder.log_partition, rows


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_replay_of_the_log_gives_what_the_generator_says(shape: Shape, tmp_path: Path) -> None:
    log = generate(shape, tmp_path)
    replayed: list[dict[str, Any]] = []
    records = commits = 0
    for log_partition, rows in rows_of(log):
        assert [row.record_offset for row in rows] == list(range(len(rows)))
        records += len(rows)
        commits += sum(row.control_type is None for row in rows)
        state = replay(rows, log_partition, shape.offsets_partitions)
        assert not state.quarantined
        assert not state.unknown_records
        assert not any(state.pending.values())
        replayed += [
            {
                "log_partition": partition_for(group, shape.offsets_partitions),
                "group_id": group,
                "topic": topic,
                "partition": partition,
                "committed_offset": offset.committed_offset,
                "leader_epoch": offset.leader_epoch,
                "metadata": offset.metadata,
                "commit_timestamp_ms": offset.commit_timestamp_ms,
                "topic_id": offset.topic_id,
                "record_offset": offset.record_offset,
            }
            for (group, topic, partition), offset in state.current.items()
        ]
    assert commits == shape.commits
    assert records == log.records
    assert log.segment_bytes == sum(path.stat().st_size for path in tmp_path.glob("*/*.log"))

    def by_identity(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(rows, key=lambda row: (str(row["group_id"]), str(row["topic"]), str(row["partition"])))

    assert by_identity(log.state.to_pylist()) == by_identity(replayed)


def test_the_log_holds_what_its_shape_says(tmp_path: Path) -> None:
    log = generate(SHAPE, tmp_path)
    rows = [row for _, rows in rows_of(log) for row in rows]
    controls = Counter(row.control_type for row in rows)
    transactional = sum(row.producer_id is not None and row.control_type is None for row in rows)
    tombstones = sum(row.value is None for row in rows)
    versions = Counter(int.from_bytes(row.value[:2], "big") for row in rows if row.value and not row.control_type)
    metadata = {decode_value(1, row.value).fields["metadata"] for row in rows if row.value and not row.control_type}
    assert transactional == pytest.approx(0.2 * SHAPE.commits, rel=0.2)
    assert tombstones == pytest.approx(0.05 * SHAPE.commits, rel=0.3)
    assert controls[COMMIT] > controls[ABORT] > 0
    assert versions[3] == pytest.approx(UPGRADED_AFTER * sum(versions.values()), rel=0.1)
    assert set(versions) == {3, 4}
    assert "" in metadata
    assert len(metadata) > 1


def test_records_of_a_transaction_come_before_its_marker(tmp_path: Path) -> None:
    ended = set()
    for _, rows in rows_of(generate(SHAPE, tmp_path)):
        for row in rows:
            assert row.producer_id not in ended
            if row.control_type is not None:
                ended.add(row.producer_id)
    assert ended


def test_timestamps_increase(tmp_path: Path) -> None:
    generate(SHAPE, tmp_path)
    for path in tmp_path.glob("*/*.log"):
        for batch in read_segment(path.read_bytes(), source=str(path)).batches():
            timestamps = batch["record_timestamp"].to_pylist()
            assert timestamps == sorted(timestamps)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_the_same_seed_gives_the_same_bytes(codec: Codec, tmp_path: Path) -> None:
    shape = replace(SHAPE, codec=codec)
    logs = [
        generate(each, tmp_path / name) for name, each in (("a", shape), ("b", shape), ("c", replace(shape, seed=8)))
    ]
    written = [{path.relative_to(log.folder): path.read_bytes() for path in log.folder.glob("*/*.log")} for log in logs]
    assert written[0] == written[1]
    assert logs[0].state == logs[1].state
    assert written[0] != written[2]


def test_a_full_segment_is_followed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = generate(SHAPE, tmp_path / "whole")
    monkeypatch.setattr(log_bytes, "_SEGMENT_BYTES", 10_000)
    rolled = generate(SHAPE, tmp_path / "rolled")
    sizes = [path.stat().st_size for path in rolled.folder.glob("*/*.log")]
    assert len(sizes) > len(list(whole.folder.glob("*/*.log")))
    assert max(sizes) <= 10_000
    assert list(rows_of(rolled)) == list(rows_of(whole))


def test_a_batch_larger_than_a_segment_has_one_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_bytes, "_SEGMENT_BYTES", 10)
    log = generate(replace(SHAPE, commits=20), tmp_path)
    assert sum(len(rows) for _, rows in rows_of(log)) == log.records


@pytest.mark.parametrize("records", [0, 7, 65])
def test_a_batch_holds_commits_of_one_group(records: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 6 commits of one group, not {records}"):
        replace(SHAPE, records_per_batch=records)
