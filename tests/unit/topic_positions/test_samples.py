"""Samples of positions: what is written, what is read, and what files give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable, write_deltalake

from offsets_pipeline.errors import MalformedFile, NoSuchPath, WriteConflict
from offsets_pipeline.ingest.topic_positions.position_samples import PositionSamples, Sample, rows_of
from offsets_pipeline.ingest.topic_positions.sample_table import (
    SampleWriter,
    last_sample_times,
    read_sample_file,
    read_samples,
    remove_old_samples,
)
from offsets_pipeline.store.delta.schemas import TOPIC_OFFSETS
from offsets_pipeline.store.delta.table_folder import TableFolder
from tests.unit.lag.test_time_lag import interpolated_lag

if TYPE_CHECKING:
    import random
    from pathlib import Path

    import pyarrow as pa

    from offsets_pipeline.ingest.topic_positions.position_samples import Series
    from offsets_pipeline.store.delta.data_file import DataFile

PLACE = ("t", 0)
GROWS = ("a", 0)
NOW_MS = 1_795_000_000_000
HEADER = "topic,partition,log_start_offset,log_end_offset,sampled_at"


@pytest.fixture
def table(tmp_path: Path) -> TableFolder:
    """A table that does not exist yet."""
    return TableFolder(f"{tmp_path}/topic_offsets", TOPIC_OFFSETS)


def points(series: Series) -> list[tuple[int, int, int]]:
    return list(zip(*(column.tolist() for column in series), strict=True))


def test_partition_that_rests_gets_no_rows_until_it_moves(table: TableFolder) -> None:
    writer = SampleWriter(table, "a test")
    written = [
        writer.write({GROWS: (0, at), PLACE: (0, end), ("u", 1): (0, 7)}, at)
        for at, end in enumerate([5, 5, 5, 9, 9, 12])
    ]
    assert written == [3, 1, 1, 3, 1, 3]
    found = read_samples(table)
    assert points(found.series(PLACE)) == [(0, 0, 5), (2, 0, 5), (3, 0, 9), (4, 0, 9), (5, 0, 12)]
    assert points(found.series(("u", 1))) == [(0, 0, 7)]
    writer.close()
    assert points(read_samples(table).series(("u", 1))) == [(0, 0, 7), (5, 0, 7)]


def test_every_partition_gets_a_row_once_an_hour(table: TableFolder) -> None:
    writer = SampleWriter(table, "a test")
    written = [writer.write({GROWS: (0, at), PLACE: (0, 5)}, at * 60_000) for at in (0, 30, 59, 60, 61)]
    assert written == [2, 1, 1, 3, 1]


def test_a_sample_of_partitions_that_all_rest_has_its_time_too(table: TableFolder) -> None:  # R37
    writer = SampleWriter(table, "a test")
    assert [writer.write({PLACE: (0, 5), ("u", 1): (0, 7)}, at) for at in range(4)] == [2, 1, 1, 1]
    found = read_samples(table)
    assert (points(found.series(PLACE))[-1], points(found.series(("u", 1)))) == ((3, 0, 5), [(0, 0, 7)])
    assert writer.write({}, 4) == 0


def test_interpolation_is_as_good_as_with_all_samples(table: TableFolder, chance: random.Random) -> None:
    writer = SampleWriter(table, "a test")
    end, all_samples = 0, []
    for number in range(60):
        end += chance.choice([0, 0, 0, 1, 50])
        all_samples.append((PLACE, Sample(0, end, number * 1000)))
        writer.write({GROWS: (0, number), PLACE: (0, end)}, number * 1000)
    writer.close()
    kept, full = read_samples(table).series(PLACE), PositionSamples(rows_of(all_samples, "")).series(PLACE)
    assert len(kept.sampled_ms) < len(full.sampled_ms)
    for offset in range(end + 1):
        assert interpolated_lag(kept, offset, 60_000) == interpolated_lag(full, offset, 60_000)


def test_sample_that_cannot_be_written_is_made_up_for(table: TableFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SampleWriter(table, "a test")
    writer.write({PLACE: (0, 5)}, 0)
    writer.write({PLACE: (0, 5)}, 1)
    with monkeypatch.context() as patch:
        patch.setattr(TableFolder, "commit", lambda *_, **__: (_ for _ in ()).throw(WriteConflict("other")))
        with pytest.raises(WriteConflict):
            writer.write({PLACE: (0, 9)}, 2)
    writer.write({PLACE: (0, 9)}, 3)
    assert points(read_samples(table).series(PLACE)) == [(0, 0, 5), (1, 0, 5), (3, 0, 9)]


def test_only_the_topics_asked_for_are_read(table: TableFolder) -> None:
    SampleWriter(table, "a test").write({("it's", 0): (0, 1), ("u", 0): (0, 2)}, 0)
    assert list(read_samples(table, ["it's"]).latest()) == [("it's", 0)]
    assert list(read_samples(table, []).latest()) == []
    assert list(read_samples(TableFolder(f"{table.folder}-none", TOPIC_OFFSETS)).latest()) == []


def test_last_two_samples_of_all_topics_are_found_in_few_files(
    table: TableFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert last_sample_times(table) == []
    writer = SampleWriter(table, "a test")
    for at_ms in (NOW_MS - 3, NOW_MS + 5_000, NOW_MS, NOW_MS - 7):
        writer.append(rows_of([(PLACE, Sample(0, 5, at_ms)), (GROWS, Sample(0, 5, at_ms - 1))], "a test"))
    assert last_sample_times(table) == [NOW_MS + 5_000, NOW_MS + 4_999]
    writer.append(rows_of([(GROWS, Sample(0, 5, NOW_MS + each)) for each in (-100, 6_000)], "a test"))
    read = list[str]()
    read_file = TableFolder.read_file

    def noted(self: TableFolder, file: DataFile, columns: list[str]) -> pa.Table:
        read.append(file.name)
        return read_file(self, file, columns)

    monkeypatch.setattr(TableFolder, "read_file", noted)
    assert last_sample_times(table) == [NOW_MS + 6_000, NOW_MS + 5_000]
    assert len(read) == 2


def test_csv_of_samples_is_read(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    path.write_text(
        "sampled_at,topic,partition,log_start_offset,log_end_offset\n1970-01-01T00:00:01Z,t,0,0,10\n2000,t,0,5,20\n",
        encoding="utf-8",
    )
    found = PositionSamples(read_sample_file(str(path), NOW_MS))
    assert points(found.series(PLACE)) == [(1000, 0, 10), (2000, 5, 20)]
    assert list(PositionSamples(read_sample_file(str(path), NOW_MS, ["u"])).latest()) == []


def test_csv_of_a_reset_has_the_present_and_samples(tmp_path: Path) -> None:
    path = tmp_path / "positions.csv"
    path.write_text("topic,partition,earliest,latest,1000,2000\nt,0,5,20,10,\n", encoding="utf-8")
    found = PositionSamples(read_sample_file(str(path), NOW_MS))
    assert points(found.series(PLACE)) == [(1000, 5, 10), (2000, 5, 20), (NOW_MS, 5, 20)]
    # the present counts from the data time on
    for data_ms, times in (
        (1500, [1000, 1500, NOW_MS]),
        (2000, [1000, 2000, NOW_MS]),
        (NOW_MS + 1, [1000, 2000, NOW_MS]),
    ):
        since = PositionSamples(read_sample_file(str(path), NOW_MS, data_ms=data_ms))
        assert since.series(PLACE).sampled_ms.tolist() == times


def test_delta_table_is_read(table: TableFolder, tmp_path: Path) -> None:
    SampleWriter(table, "a test").write({PLACE: (3, 4)}, 1000)
    found = PositionSamples(read_sample_file(table.folder, NOW_MS, ["t"]))
    assert points(found.series(PLACE)) == [(1000, 3, 4)]
    rows = DeltaTable(table.folder).to_pyarrow_table().drop_columns(["log_end_offset"])
    write_deltalake(tmp_path / "other", rows)
    with pytest.raises(MalformedFile, match=r"cannot read positions from .*other: it has no column log_end_offset$"):
        read_sample_file(str(tmp_path / "other"), NOW_MS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(MalformedFile, match=r"empty: name a CSV file or a Delta table$"):
        read_sample_file(str(tmp_path / "empty"), NOW_MS)
    with pytest.raises(NoSuchPath):
        read_sample_file(str(tmp_path / "none"), NOW_MS)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (f"{HEADER},x\n", 1, f"the header has to be {HEADER}"),
        (f"{HEADER}\nt,0,0,5\n", 2, "4 fields, the header has 5"),
        (f"{HEADER}\nt,0,0,5,noon\n", 2, "'noon' is not a time"),
        (f"{HEADER}\nt,0,6,5,1000\n", 2, "log_start_offset 6 is above log_end_offset 5"),
        (f"{HEADER}\nt,x,6,5,1000\n", 2, "partition 'x' is not a whole number"),
        (f"{HEADER}\n,0,0,5,1000\n", 2, "'' is not a topic name"),
    ],
)
def test_line_that_cannot_be_read_is_named(tmp_path: Path, text: str, line: int, said: str) -> None:
    path = tmp_path / "samples.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MalformedFile) as raised:
        read_sample_file(str(path), NOW_MS)
    assert str(raised.value).startswith(f"{path}, line {line}: {said}")


def test_old_samples_go_except_for_the_last_one_before(table: TableFolder) -> None:
    writer = SampleWriter(table, "a test")
    rested = ("rested", 0)
    writer.append(rows_of([(rested, Sample(0, 3, 1_000))], "a test"))
    for at_ms in range(0, 20_000, 1_000):  # in several files
        writer.append(rows_of([(PLACE, Sample(0, at_ms, at_ms))], "a test"))
    all_samples = read_samples(table)
    assert remove_old_samples(table, 10_500) == 10
    kept = read_samples(table)
    assert points(kept.series(PLACE))[0] == (10_000, 0, 10_000)
    assert points(kept.series(rested)) == [(1_000, 0, 3)]
    for offset in range(10_001, 19_000, 499):
        assert interpolated_lag(kept.series(PLACE), offset, 60_000) == interpolated_lag(
            all_samples.series(PLACE), offset, 60_000
        )
    assert remove_old_samples(table, 11_500) == 0  # too few to rewrite the table
    assert remove_old_samples(table, 10_500) == 0
    writer.append(rows_of([(rested, Sample(0, 3, 20_000 + number)) for number in range(9)], "a test"))
    assert remove_old_samples(table, 12_500) == 2  # a tenth of the rows that are left
