"""Plans as kafka-consumer-groups writes and reads them: the lines come from the tool of Kafka 4.2.0."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.errors import InvalidReset, MalformedFile, NoSuchPath
from offsets_pipeline.repair.offset_reset.plan import PlannedOffset, plan_csv, read_plan
from offsets_pipeline.semantics.partition_state import TopicPartition

if TYPE_CHECKING:
    from pathlib import Path

OFFSETS = [
    ("billing", "orders", 0, 40),
    ("billing", "orders", 10, 0),
    ("a group", "t", 0, 1),
    ("com,ma", "t", 0, 2),
    ('quo"te', "t", 0, 3),
    ("twenty-four.characters__", "t", 0, 4),
    ("twenty-five.characters___", "t", 0, 5),
    ("#hash", "t", 0, 6),
    ("a:b;c<d", "t", 0, 7),
    ("back\\slash", "t", 0, 8),
    ("grün", "t", 0, 2**63 - 1),
]
LINES = r"""billing,orders,0,40
billing,orders,10,0
"a group",t,0,1
"com,ma",t,0,2
"quo""te",t,0,3
twenty-four.characters__,t,0,4
"twenty-five.characters___",t,0,5
"#hash",t,0,6
a:b;c<d,t,0,7
"back\slash",t,0,8
grün,t,0,9223372036854775807
"""
PLANNED = [
    PlannedOffset(group, TopicPartition(topic, partition), offset, None) for group, topic, partition, offset in OFFSETS
]
BILLING = {TopicPartition("orders", 0): 40, TopicPartition("orders", 10): 0}


def plan_file(folder: Path, text: str | bytes) -> Path:
    path = folder / "plan.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_plan_is_written_as_kafka_writes_it() -> None:
    assert plan_csv(PLANNED, with_groups=True) == LINES
    assert plan_csv(PLANNED[:2], with_groups=False) == "orders,0,40\norders,10,0\n"


def test_both_forms_are_read(tmp_path: Path) -> None:
    plan = read_plan(plan_file(tmp_path, LINES), [])
    assert [(group, *where, offset) for group, of_it in plan.items() for where, offset in of_it.items()] == OFFSETS
    assert read_plan(plan_file(tmp_path, "orders,0,40\norders,10,0\n"), ["billing"]) == {"billing": BILLING}
    # with groups in it, only those that are named count
    assert read_plan(plan_file(tmp_path, LINES), ["billing"]) == {"billing": BILLING}


@pytest.mark.parametrize(
    "text",
    [
        "orders,0,40\norders,10,0\n\n",  # Kafka ends what it exports with an empty line
        "orders,0,40\r\norders,10,0",
        '"orders", 0 ,"40"\n\norders,10,0\n',
        b"\xef\xbb\xbforders,0,40\norders,10,0\n",
    ],
)
def test_files_of_editors_and_of_kafka_are_read(tmp_path: Path, text: str | bytes) -> None:
    assert read_plan(plan_file(tmp_path, text), ["billing"]) == {"billing": BILLING}


@pytest.mark.parametrize(
    ("text", "groups", "line", "said"),
    [
        ("t,0,5\nt,1,-1\n", ["g"], 2, "offset -1 is negative"),
        ("t,0,5\nt,-1,5\n", ["g"], 2, "partition -1 is negative"),
        ("t,0,5\nt,1,\n", ["g"], 2, "offset '' is not a whole number"),
        ("t,0,5\nt,1,1_0\n", ["g"], 2, "offset '1_0' is not a whole number"),
        ("t,0,5\nt,1,٣\n", ["g"], 2, "offset '٣' is not a whole number"),
        ("topic,partition,offset\nt,0,5\n", ["g"], 1, "partition 'partition' is not a whole number"),
        ("t,2147483648,5\n", ["g"], 1, "2147483648 is not a partition of topic 't': partitions count from 0"),
        ("t,0,9223372036854775808\n", ["g"], 1, "offset 9223372036854775808 is above 2^63-1"),
        (",0,5\n", ["g"], 1, "'' is not a topic name"),
        ("t,0\n", ["g"], 1, "2 fields: it takes topic,partition,offset or group,topic,partition,offset"),
        ("t,0,5\ng,t,1,5\n", ["g"], 2, "4 fields: it takes topic,partition,offset, like the lines before"),
        ("g,t,1,5\n\nt,0,5\n", [], 3, "3 fields: it takes group,topic,partition,offset, like the lines before"),
        ("t,0,5\nt,0,5\n", ["g"], 2, "t-0 of group 'g' has a line already"),
        ('t,0,5\n"t"x,1,5\n', ["g"], 2, "it is not CSV: "),
        ('t,0,5\n"t,1,5\n', ["g"], 2, "it is not CSV: "),
        ('"t\nu",0,5\nt,x,5\n', ["g"], 3, "partition 'x' is not a whole number"),
        ("g" * 40_000 + ",t,0,5\n", [], 1, "a group id has at most 32767 bytes"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(
    tmp_path: Path, text: str, groups: list[str], line: int, said: str
) -> None:
    path = plan_file(tmp_path, text)
    with pytest.raises(MalformedFile) as raised:
        read_plan(path, groups)
    assert str(raised.value).startswith(f"{path}, line {line}: {said}")
    assert "\n" not in str(raised.value)


def test_a_file_that_fits_no_group_is_refused(tmp_path: Path) -> None:
    path = plan_file(tmp_path, "t,0,5\n")
    for groups in ([], ["g", "h"]):
        with pytest.raises(InvalidReset, match="does not name groups; name the group of its offsets with --group"):
            read_plan(path, groups)
    with pytest.raises(InvalidReset, match="has no line for group 'g'"):
        read_plan(plan_file(tmp_path, "h,t,0,5\n"), ["h", "g"])
    with pytest.raises(MalformedFile, match="has no offsets"):
        read_plan(plan_file(tmp_path, "\n"), ["g"])
    with pytest.raises(MalformedFile, match=r"cannot read .*: it is not UTF-8"):
        read_plan(plan_file(tmp_path, b"\xff\n"), ["g"])
    with pytest.raises(MalformedFile, match=r"cannot read .*: Is a directory"):
        read_plan(tmp_path, ["g"])
    with pytest.raises(NoSuchPath, match="no such file: "):
        read_plan(tmp_path / "none", ["g"])
