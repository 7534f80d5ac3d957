"""The position of a stream over the log in Spark's checkpoint files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.errors import DamagedCheckpoint
from offsets_pipeline.log.stream_checkpoint import StreamCheckpoint

if TYPE_CHECKING:
    from pathlib import Path

COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


def offsets(version: int) -> str:
    """A file of offsets as Spark 4.2 writes it, for a query that reads this version of a Delta table next."""
    return (
        'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1795343108100,"conf":{"spark.sql.shuffle.partitions":"2"}}\n'
        f'{{"sourceVersion":1,"reservoirId":"0f911507-8d97-4bb3-9e7e-bedba5fbf243","reservoirVersion":{version},'
        '"index":-1,"isStartingVersion":false}'
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint: batch 0 has ended, and read the versions before 7; batch 1 is planned, up to version 9."""
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    (tmp_path / "offsets" / "0").write_text(offsets(7))
    (tmp_path / "offsets" / "1").write_text(offsets(9))
    (tmp_path / "offsets" / ".0.crc").write_text("no batch")
    (tmp_path / "commits" / "0").write_text(COMMIT)
    return tmp_path


def files(folder: Path) -> dict[str, str]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name.isdigit())
    return {str(path.relative_to(folder)): path.read_text() for path in found}


def test_the_first_unread_version_is_that_behind_the_last_batch_that_ended(folder: Path) -> None:
    assert StreamCheckpoint(str(folder)).unread_version() == 7
    (folder / "commits" / "1").write_text(COMMIT)
    assert StreamCheckpoint(folder.as_uri()).unread_version() == 9
    assert StreamCheckpoint(str(folder / "elsewhere")).unread_version() is None


def test_an_advanced_checkpoint_looks_as_if_batches_had_read_up_to_that_version(folder: Path) -> None:
    before = files(folder)
    assert StreamCheckpoint(str(folder)).advance(3050)
    new = {"commits/1": COMMIT, "offsets/2": offsets(3050), "commits/2": COMMIT}
    assert files(folder) == before | new
    assert StreamCheckpoint(str(folder)).unread_version() == 3050


def test_an_offset_within_a_version_or_a_first_snapshot_becomes_the_start_of_the_version(folder: Path) -> None:
    for at in (0, 1):
        of_snapshot = offsets(9).replace('"index":-1,"isStartingVersion":false', '"index":4,"isStartingVersion":true')
        (folder / "offsets" / str(at)).write_text(of_snapshot)
    assert StreamCheckpoint(str(folder)).advance(12)
    assert files(folder)["offsets/2"] == offsets(12)


@pytest.mark.parametrize("broken", ["not ended", "other format", "other source"])
def test_a_checkpoint_that_cannot_be_advanced_stays_as_it_is(folder: Path, broken: str) -> None:
    if broken == "not ended":
        (folder / "commits" / "0").unlink()
    else:
        other = offsets(7).replace("v1", "v2") if broken == "other format" else 'v1\n{}\n{"offset":1}'
        (folder / "offsets" / "0").write_text(other)
    before = files(folder)
    assert not StreamCheckpoint(str(folder)).advance(3050)
    assert files(folder) == before


def test_a_checkpoint_that_another_process_uses_is_left_to_it(folder: Path) -> None:
    checkpoint = StreamCheckpoint(str(folder))
    (folder / "commits" / "1").write_text(COMMIT)  # the other process ended the batch meanwhile
    before = files(folder)
    assert not checkpoint.advance(3050)
    assert files(folder) == before
    assert json.loads(before["offsets/1"].splitlines()[-1])["reservoirVersion"] == 9


@pytest.mark.parametrize("name", ["offsets/0", "offsets/1", "commits/0", "metadata"])
@pytest.mark.parametrize("kept", [0, -2])
def test_a_checkpoint_with_an_empty_file_is_named_with_the_way_back(folder: Path, name: str, kept: int) -> None:
    (folder / "metadata").write_text('{"id":"0f911507-8d97-4bb3-9e7e-bedba5fbf243"}')
    assert StreamCheckpoint(str(folder)).unread_version() == 7
    (folder / name).write_text((folder / name).read_text()[:kept])
    with pytest.raises(DamagedCheckpoint) as damaged:
        StreamCheckpoint(str(folder)).unread_version()
    assert str(damaged.value) == (
        f"the file {name} of the checkpoint {folder} is empty or cut off; if a fold wrote it, delete the folder of the "
        "checkpoint: the next fold reads the log once more, and nothing is lost"
    )
