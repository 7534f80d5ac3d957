"""Segment files below the paths that a user names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.errors import InvalidPartitionCount, NoSegments, NoSuchPath
from offsets_pipeline.ingest.segments.segment_files import FoundLog, LogFolder, find_log
from offsets_pipeline.ingest.segments.segment_ingest import _check_partition_count

if TYPE_CHECKING:
    from pathlib import Path


def segment(folder: Path, base_offset: int) -> str:
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / f"{base_offset:020}.log"
    path.write_bytes(b"")
    return str(path)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_named_files_of_one_folder_make_one_log_folder(tmp_path: Path, scheme: str) -> None:
    three = tmp_path / "a" / "__consumer_offsets-3"
    files = [scheme + segment(three, base) for base in (0, 7, 9)]
    other = scheme + segment(tmp_path / "b" / "__consumer_offsets-3", 0)
    assert find_log([files[1]]).folders == [LogFolder(3, (files[1],))]
    found = find_log([files[2], other, files[0], files[2]])
    assert found.folders == [LogFolder(3, (other,)), LogFolder(3, (files[0], files[2]))]
    assert [[each.files[0] for each in copies] for copies in found.copies()] == [[files[0]], [other]]
    assert find_log([f"{scheme}{three}"]).folders == [LogFolder(3, tuple(files))]


def test_a_named_file_that_is_no_segment_of_the_topic_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "__consumer_offsets-3"
    segment(folder, 0)
    (folder / "00000000000000000000.index").write_bytes(b"")
    for path in (str(folder / "00000000000000000000.index"), segment(tmp_path / "other-3", 0), segment(tmp_path, 0)):
        with pytest.raises(NoSegments, match=r"is not a segment file: name a file <20 digits>\.log in a folder"):
            find_log([path])
    with pytest.raises(NoSegments, match="no segments of __consumer_offsets in"):
        find_log([str(tmp_path / "other-3")])
    with pytest.raises(NoSuchPath):
        find_log([str(tmp_path / "none")])


def test_number_of_log_partitions_fits_their_numbers_and_most_groups() -> None:  # R1
    found = FoundLog([LogFolder(0, ("a",)), LogFolder(4, ("b",))])
    for groups in ({}, {2: {"a"}}, {2: {"a"}, 0: {"b"}}):  # the hash of "a" is 97: 97 % 5 == 2; that of "b" is 98
        _check_partition_count(found, groups, 5)
    for groups, count, said in (
        ({}, 0, "a log has at least 1 partition, not 0"),
        ({}, 4, "found log partition 4, but a log of 4 partitions has 0 to 3"),
        ({0: {"a"}}, 5, "1 of 1 groups are in the wrong partition of a log of 5 partitions"),
        ({2: {"a", "b"}, 4: {"c"}}, 6, "2 of 3 groups are in the wrong partition of a log of 6 partitions"),
    ):
        with pytest.raises(InvalidPartitionCount, match=said):
            _check_partition_count(found, groups, count)
