"""The CSV in which kafka-consumer-groups writes (`--export`) and reads (`--from-file`) a plan, without a header.

topic,partition,offset          for the one group that the command line names
group,topic,partition,offset    for several
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.coordinator.requests import validated_group_id, validated_partition
from offsets_pipeline.errors import InvalidReset, MalformedFile
from offsets_pipeline.ingest.topic_positions.csv_file import read_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from offsets_pipeline.repair.offset_reset.plan import PlannedOffset
    from offsets_pipeline.semantics.partition_state import TopicPartition

_WITHOUT_GROUP = 3
#: The forms of a line, by its number of fields.
_FORMS = {_WITHOUT_GROUP: "topic,partition,offset", 4: "group,topic,partition,offset"}
# Kafka writes with Jackson, which quotes longer texts, and texts with a \ or a character below the hyphen.
_UNQUOTED_UNITS, _FIRST_UNQUOTED = 24, "-"


def read_plan(path: Path, group_ids: Sequence[str]) -> dict[str, dict[TopicPartition, int]]:
    """Return the offsets of a plan by group and partition, of these groups or, if empty, of all in the file.

    Raises:
        NoSuchPath: the file does not exist.
        MalformedFile: a line is wrong; the message has its number.
        InvalidReset: the file has no groups and ``group_ids`` not exactly one, or the file lacks one of them.
    """
    plan: dict[str, dict[TopicPartition, int]] = {}
    width = None
    for row in read_rows(path):
        width = width or len(row.fields)
        if len(row.fields) != width or width not in _FORMS:
            expected = f"{_FORMS[width]}, like the lines before" if width in _FORMS else " or ".join(_FORMS.values())
            raise row.malformed(f"{len(row.fields)} fields: it takes {expected}")
        if width == _WITHOUT_GROUP and len(group_ids) != 1:
            raise InvalidReset(f"{path} does not name groups; name the group of its offsets with --group")
        group_id = group_ids[0] if width == _WITHOUT_GROUP else row.fields[0]
        topic, partition, text = row.fields[-_WITHOUT_GROUP:]
        with row.checked():
            validated_group_id(group_id)
            where = validated_partition((topic, row.number("partition", partition)))
        offset = row.number("offset", text)
        offsets = plan.setdefault(group_id, {})
        if where in offsets:
            raise row.malformed(f"{where} of group {group_id!r} has a line already")
        offsets[where] = offset
    if not plan:
        raise MalformedFile(f"{path} has no offsets: add a line for each")
    for group_id in group_ids:
        if group_id not in plan:
            raise InvalidReset(f"{path} has no line for group {group_id!r}")
    return {group_id: offsets for group_id, offsets in plan.items() if not group_ids or group_id in group_ids}


def plan_csv(offsets: Iterable[PlannedOffset], *, with_groups: bool) -> str:
    """Return the plan as CSV with the same bytes as kafka-consumer-groups writes."""
    lines = []
    for each in offsets:
        group = f"{_quoted(each.group_id)}," if with_groups else ""
        lines.append(f"{group}{_quoted(each.where.topic)},{each.where.partition},{each.new_offset}\n")
    return "".join(lines)


def _quoted(text: str) -> str:
    units = len(text.encode("utf-16-le", "surrogatepass")) // 2
    if units <= _UNQUOTED_UNITS and all(each >= _FIRST_UNQUOTED and each != "\\" for each in text):
        return text
    return '"' + text.replace('"', '""') + '"'
