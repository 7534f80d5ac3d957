"""Text dumps of ZooKeeper are read in the formats that tools write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.coordinator.zookeeper.consumer_nodes import offset_of, offsets_path, partition_of, read_dump
from offsets_pipeline.errors import InvalidGroupId, MalformedFile, NoSuchPath

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.coordinator.zookeeper.consumer_nodes import GroupNodes

# 2016-03-03T10:13:20Z
MODIFIED_MS = 1_457_000_000_000


def read(tmp_path: Path, text: str) -> dict[str, GroupNodes]:
    path = tmp_path / "dump.txt"
    path.write_text(text, encoding="utf-8")
    return {group.group_id: group for group in read_dump(path)}


def test_lines_of_path_value_and_time_are_read(tmp_path: Path) -> None:
    groups = read(
        tmp_path,
        f"/consumers/a group/offsets/orders/0 42 {MODIFIED_MS}\n"
        "/consumers/a group/offsets/orders/1\t43\n"
        "/kafka/prod/consumers/b:c/offsets/t.x_-y/12:44\n"  # as kafka.tools.ExportZkOffsets
        "/brokers/ids/0 {}\n"
        "\n",
    )
    assert groups["a group"].offsets == {("orders", 0): (42, MODIFIED_MS), ("orders", 1): (43, None)}
    assert groups["b:c"].offsets == {("t.x_-y", 12): (44, None)}
    assert len(groups) == 2


def test_output_of_snapshot_formatter_is_read(tmp_path: Path) -> None:
    groups = read(
        tmp_path,
        "ZNode Details (count=7):\n----\n/\n  cZxid = 0x0\n  dataLength = 0\n----\n"
        "/consumers/g/offsets/t/0\n  mtime = Thu Mar 03 10:13:20 UTC 2016\n  dataLength = 2\n  data = NDI=\n"
        "/consumers/g/offsets/t\n  mtime = Thu Mar 03 10:13:20 UTC 2016\n  dataLength = 0\n"
        "/consumers/g/offsets/t/1\n  mtime = Thu Mar 03 11:13:20 CET 2016\n  dataLength = 2\n  data = NDM=\n",
    )
    assert groups["g"].offsets == {("t", 0): (42, MODIFIED_MS), ("t", 1): (43, None)}


def test_owners_and_ids_are_registrations_and_no_offsets(tmp_path: Path) -> None:
    groups = read(
        tmp_path, '/consumers/g/ids/g_host-1 {"version":1,"x":"/y"}\n/consumers/g/owners/orders/0 g_host-1-0\n'
    )
    assert groups["g"].consumer_ids == ["g_host-1"]
    assert groups["g"].owners == {"orders-0": "g_host-1-0"}
    assert not groups["g"].offsets
    assert not groups["g"].skipped


def test_nodes_without_an_offset_are_skipped_with_the_reason(tmp_path: Path) -> None:
    group = read(
        tmp_path,
        "/consumers/g/offsets/t/0\n/consumers/g/offsets/t/1 -1\n/consumers/g/offsets/t/2 12x\n"
        f"/consumers/g/offsets/t/3 {2**63}\n/consumers/g/offsets/t/0-1 5\n/consumers/g/offsets/t/{2**31} 5\n",
    )["g"]
    assert not group.offsets
    assert [each.reason for each in group.skipped] == [
        "the node is empty",
        "'-1' is negative",
        "'12x' is not a number",
        f"'{2**63}' is above 2^63-1",
        "'0-1' is not a partition",
        f"'{2**31}' is not a partition",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("/consumers/g/offsets/t/0 1 2 3\n", "line 1: '/consumers/g/offsets/t/0 1 2 3' is not of the form PATH VALUE"),
        (
            "consumers/g/offsets/t/0 1\n",
            "line 1: 'consumers/g/offsets/t/0 1' has no path from the root: begin it with a",
        ),
        ("kafka/consumers/g/offsets/t/0 1\n", "line 1: 'kafka/consumers/g/offsets/t/0 1' has no path from the root"),
        ("/brokers/ids/0 {}\n", "has no node below /consumers: write a line PATH VALUE"),
        ("/consumers/g/offsets/t/0\n  dataLength = 2\n", "line 1: the node has no data; run SnapshotFormatter with -d"),
        ("/consumers/g/offsets/t/0\n  data = N\n", "line 1: the data of the node are not Base64"),
    ],
)
def test_wrong_dump_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(MalformedFile) as raised:
        read(tmp_path, text)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_missing_dump_and_binary_dump_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(NoSuchPath):
        read_dump(tmp_path / "no")
    (tmp_path / "binary").write_bytes(b"/consumers/\xff")
    with pytest.raises(MalformedFile, match="it is not UTF-8"):
        read_dump(tmp_path / "binary")


@pytest.mark.parametrize(
    ("data", "offset"), [(b"0", 0), (b"+7", 7), (b"007", 7), (b"-1", -1), (b"%d" % (2**63 - 1), 2**63 - 1)]
)
def test_data_are_read_as_java_reads_a_long(data: bytes, offset: int) -> None:
    assert offset_of(data) == offset


@pytest.mark.parametrize("data", [b"", b"1\n", b" 1", b"1.0", b"0x1", b"\xff", b"1_0", "٣".encode(), b"9" * 5000])
def test_other_data_are_no_offset(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^\S"):
        offset_of(data)


def test_partition_has_digits_alone() -> None:
    assert partition_of("2147483647") == 2**31 - 1
    for name in ("", "-1", "+1", "1-0", "2147483648", "9" * 5000):
        with pytest.raises(ValueError, match="is not a partition"):
            partition_of(name)


def test_offsets_of_a_group_lie_below_its_node() -> None:
    assert offsets_path("billing") == "/consumers/billing/offsets"
    for name in ("", "a/b", ".", ".."):
        with pytest.raises(InvalidGroupId, match="no node can have this name"):
            offsets_path(name)
