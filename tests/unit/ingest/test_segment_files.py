"""Segment files below the paths that a user names."""

from __future__ import annotations

from pathlib import Path

import pytest

from offsets_pipeline.errors import InvalidPartitionCount, NoSegments, NoSuchPath, StorageFailed, StoreMismatch
from offsets_pipeline.ingest.segments.segment_files import FoundLog, LogFolder, find_log
from offsets_pipeline.ingest.segments.segment_ingest import _check_partition_count, _look


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


def test_a_brokers_data_folder_has_the_log_partitions_with_their_starts_and_ids(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first = [segment(data / "__consumer_offsets-0", base) for base in (5, 70)]
    (data / "__consumer_offsets-0" / "00000000000000000090.log.deleted").write_bytes(b"")
    (data / "__consumer_offsets-0" / "partition.metadata").write_text("version: 0\ntopic_id: of-offsets\n")
    third = segment(data / "__consumer_offsets-2", 7)
    (data / "__consumer_offsets-2" / "00000000000000000007.log.swap").write_bytes(b"")  # its segment is still there
    swap = data / "__consumer_offsets-2" / "00000000000000000020.log.swap"  # of this one it is gone
    swap.write_bytes(b"")
    segment(data / "__consumer_offsets-3.0f3c-delete", 0)
    (data / "__consumer_offsets-4").mkdir()  # without segments
    segment(data / "orders-0", 0)
    (data / "orders-0" / "partition.metadata").write_text("version: 0\ntopic_id: of-orders\n")
    inner = segment(data / "disk-1" / "__consumer_offsets-5", 0)  # the folder is only named like a partition
    hidden = segment(data / "other-1" / "__consumer_offsets-6", 0)
    segment(data / "other-1", 0)  # so this one is a partition
    segment(data / "new-1" / "__consumer_offsets-7", 0)
    (data / "new-1" / "partition.metadata").write_text(
        "version: 0\ntopic_id: of-new\n"
    )  # and this one, without records
    (data / "meta.properties").write_text("version=1\ncluster.id=here\nnode.id=1\n")
    checkpoint = "0\n3\n__consumer_offsets 0 5\n__consumer_offsets 2 8\norders 5 9\n"
    (data / "log-start-offset-checkpoint").write_text(checkpoint)
    found = find_log([str(data)])
    assert found.folders == [LogFolder(0, tuple(first), 5), LogFolder(2, (third, str(swap)), 8), LogFolder(5, (inner,))]
    assert (found.cluster_id, found.topic_id, found.topic_names) == (
        "here",
        "of-offsets",
        {"of-orders": "orders", "of-new": "new"},
    )
    assert find_log([str(data), hidden]).partitions() == {0, 2, 5, 6}
    other = tmp_path / "other"
    segment(other / "__consumer_offsets-0", 0)
    for name, text, said in (
        ("meta.properties", "cluster.id=there\n", "other belongs to cluster there, the earlier paths to here; ingest"),
        (
            "__consumer_offsets-0/partition.metadata",
            "topic_id: old\n",
            "belongs to topic old, the earlier paths to of-",
        ),
    ):
        (other / name).write_text(text)
        with pytest.raises(StoreMismatch, match=said):
            find_log([str(data), str(other)])
        (other / name).unlink()
    assert find_log([str(other), str(data)]).cluster_id == "here"


def test_links_that_lead_back_are_followed_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    file = segment(data / "__consumer_offsets-3", 0)
    for name in ("loop", "loop2"):
        (data / name).symlink_to(data)
    (tmp_path / "other").symlink_to(data / "__consumer_offsets-3")
    assert find_log([str(data)]).folders == [LogFolder(3, (file,))]


def test_a_segment_that_a_broker_has_deleted_meanwhile_is_named(tmp_path: Path) -> None:
    found = find_log([segment(tmp_path / "__consumer_offsets-3", 0)])
    Path(found.folders[0].files[0]).unlink()
    with pytest.raises(StorageFailed, match=r"0\.log is gone: its broker has replaced or deleted it; run this again"):
        _look(found)


def test_number_of_log_partitions_fits_their_numbers_and_most_groups() -> None:  # R1
    found = FoundLog([LogFolder(0, ("a",)), LogFolder(4, ("b",))])
    for groups, count, said in (
        (set(), 0, "a log has at least 1 partition, not 0"),
        (set(), 4, "found log partition 4, but a log of 4 partitions has 0 to 3"),
        ({(0, "a")}, 5, "1 of 1 groups are in the wrong partition of a log of 5 partitions"),
        ({(2, "a"), (2, "b"), (4, "c")}, 6, "2 of 3 groups are in the wrong partition of a log of 6 partitions"),
    ):
        with pytest.raises(InvalidPartitionCount, match=said):
            _check_partition_count(found, groups, count)
    for groups in (set(), {(2, "a")}, {(2, "a"), (0, "b")}):  # the hash of "a" is 97: 97 % 5 == 2; that of "b" is 98
        _check_partition_count(found, groups, 5)
