"""Files of the state tables as tasks write them, without Spark: what is in them, and what is said of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offsets_pipeline.fold import state_files
from offsets_pipeline.fold.state_files import state_file, write_state_files
from offsets_pipeline.semantics.columnar_replay import INPUT_SCHEMA, Replay
from offsets_pipeline.semantics.effects import EFFECT_SCHEMA
from tests.logs import LogPartition

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.delta.data_file import WrittenFile

TABLES = ("committed_offsets", "group_records", "groups")


def replay_of(*logs: LogPartition) -> Replay:
    replay = Replay(offsets_partitions=2)
    rows = [row._asdict() | {"backfill": False, "records": 1} for log in logs for row in log.rows]
    replay.add(pa.Table.from_pylist(rows, schema=INPUT_SCHEMA))
    return replay


def written(replay: Replay, folder: Path) -> tuple[dict[str, list[WrittenFile]], list[pa.RecordBatch]]:
    folders = {name: str(folder / name) for name in TABLES}
    files: dict[str, list[WrittenFile]] = {name: [] for name in TABLES}
    others = []
    for batch in write_state_files(replay.effects(), folders, 2, log_epoch=3):
        assert batch.schema == EFFECT_SCHEMA
        if batch["kind"][0].as_py() == "state_file":
            for table, file in map(state_file, batch["state_file"].to_pylist()):
                files[table].append(file)
        else:
            others.append(batch)
    return files, others


def two_log_partitions() -> tuple[LogPartition, LogPartition]:
    first, second = LogPartition(0), LogPartition(1)
    for log in (second, first):
        for group in ("ü", "b", "a"):
            for partition in (10, 9):
                log.commit((group, "t", partition), 7 * partition)
            log.delete((group, "t", 10))
    second.group(2, "a", protocol="range")
    second.group_tombstone(2, "b")
    second.commit(("open", "t", 0), 1, producer_id=3)
    return first, second


@pytest.mark.parametrize("file_rows", [1_000_000, 5])
def test_rows_lie_in_order_and_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_rows: int) -> None:
    monkeypatch.setattr(state_files, "_FILE_ROWS", file_rows)
    files, others = written(replay_of(*two_log_partitions()), tmp_path)
    assert {batch["kind"][0].as_py() for batch in others} == {"pending", "progress"}
    assert len(files["committed_offsets"]) == (1 if file_rows > 12 else 3)
    found = []
    for file in files["committed_offsets"]:
        assert file.partition == {"settled": "true"}
        path = tmp_path / "committed_offsets" / file.name
        assert file.size == path.stat().st_size
        rows = pq.read_table(path, partitioning=None).to_pylist()
        assert file.rows == len(rows)
        for name in ("log_partition", "group_id", "record_offset"):
            values = [row[name] for row in rows]
            assert (file.lowest[name], file.highest[name]) == (min(values), max(values))
        found += rows
    places = [(row["log_partition"], row["group_id"], row["topic"], row["partition"]) for row in found]
    assert places == [
        (at, group, "t", partition) for at in (0, 1) for group in ("a", "b", "ü") for partition in (9, 10)
    ]
    assert [row["committed_offset"] for row in found] == [63, None] * 6
    assert {row["log_epoch"] for row in found} == {3}


def test_groups_are_described_where_their_records_are(tmp_path: Path) -> None:
    files, _ = written(replay_of(*two_log_partitions()), tmp_path)
    (file,) = files["groups"]
    groups = pq.read_table(tmp_path / "groups" / file.name, partitioning=None).to_pylist()
    assert [(row["log_partition"], row["group_id"], row["state"]) for row in groups] == [
        (0, "a", "Empty"),
        (0, "b", "Empty"),
        (0, "ü", "Empty"),
        (1, "a", "Empty"),
        (1, "b", "Dead"),  # R14: removed after its commits
        (1, "open", "Empty"),
        (1, "ü", "Empty"),
    ]
    (file,) = files["group_records"]
    records = pq.read_table(tmp_path / "group_records" / file.name, partitioning=None)
    keys = records.select(["log_partition", "group_id", "record_type", "record_key"]).to_pylist()
    assert [tuple(key.values()) for key in keys if key["record_type"] == 2] == [(1, "a", 2, ""), (1, "b", 2, "")]
    assert records.num_rows == 7 + 2


def test_log_without_state_writes_no_file(tmp_path: Path) -> None:
    log = LogPartition()
    log.record(None, b"corrupt")
    files, others = written(replay_of(log), tmp_path)
    assert files == {name: [] for name in TABLES}
    assert {batch["kind"][0].as_py() for batch in others} == {"quarantine", "progress"}
    assert not list(tmp_path.iterdir())
