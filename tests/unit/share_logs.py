"""The log `__share_group_state` of a recorded broker, and the broker's answers about it."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from offsets_pipeline.common.config import Settings
from offsets_pipeline.common.config.sections import FoldSettings
from offsets_pipeline.fold.state.fold import fold_log
from offsets_pipeline.ingest.log_columns import log_columns
from offsets_pipeline.kafka.record.segment import read_segment
from offsets_pipeline.questions.query.share_partitions import SharePartitionInfo, share_partitions
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.log_row import LogRow
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.delta.store_folder import create_tables
from tests.folded_stores import opened
from tests.logs import CAPTURES
from tests.spark.stores import CLOCK, appended

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

CAPTURE = CAPTURES / "4.2.0-share-state"
TOPIC = "__share_group_state"
PARTITIONS = 3
PROPERTIES = StoreProperties(MIRRORED, PARTITIONS, topic_kind=TopicKind.SHARE_STATE)
IN_DRIVER = Settings(fold=FoldSettings(driver_rows=2**31 - 1))


@cache
def answers() -> dict[str, Any]:
    """What Kafka's own tools printed."""
    found: dict[str, Any] = json.loads((CAPTURE / "share_groups.json").read_text(encoding="utf-8"))
    return found


@cache
def share_rows() -> list[LogRow]:
    """The rows of the log, by log partition and record offset."""
    rows: list[LogRow] = []
    for path in sorted((CAPTURE / "segments").glob("*/*.log")):
        log_partition = int(path.parent.name.rpartition("-")[2])
        for batch in read_segment(memoryview(path.read_bytes()), source=path.name).batches():
            columns = log_columns(batch, log_partition, path.name, PROPERTIES)
            rows += map(LogRow._make, zip(*(columns[name].to_pylist() for name in LogRow._fields), strict=True))
    return rows


def share_store(folder: Path, *batches: Iterable[LogRow]) -> str:
    """A new store with these records, folded after each batch."""
    create_tables(str(folder), PROPERTIES)
    for batch in batches:
        appended(folder, list(batch))
        fold_log(opened(folder), IN_DRIVER, CLOCK)
    return str(folder)


def shown(location: str) -> list[SharePartitionInfo]:
    """The share partitions, with the names and log ends that the broker had."""
    names = {topic_id: name for name, topic_id in answers()["topic_ids"].items()}
    ends = {(name, 0): end for name, end in answers()["log_ends"].items()}
    return share_partitions(StateReader(location), names, ends)


def as_described(found: Iterable[SharePartitionInfo]) -> list[dict[str, str]]:
    """Share partitions as `kafka-share-groups.sh --describe --offsets --verbose` prints them."""
    return [
        {
            "GROUP": each.group,
            "TOPIC": str(each.topic),
            "PARTITION": str(each.partition),
            "LEADER-EPOCH": str(each.leader_epoch),
            "START-OFFSET": str(each.start_offset),
            "LAG": "-" if each.lag is None else str(each.lag),
        }
        for each in found
    ]


def needed() -> set[tuple[int, int]]:
    """Log partition and record offset of the records that a replay needs: from each last snapshot or tombstone on."""
    found = set()
    for at in range(PARTITIONS):
        records = answers()["records"][f"{TOPIC}-{at}"]
        last = {each["key"]["data"]["groupId"]: each["offset"] for each in records if each["key"]["type"] == "0"}
        found |= {(at, each["offset"]) for each in records if each["offset"] >= last[each["key"]["data"]["groupId"]]}
    return found
