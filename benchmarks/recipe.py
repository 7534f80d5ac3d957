"""The usual recipe for the state of `__consumer_offsets` in Spark, to compare with.

A pandas function unpacks the records row by row, a window numbers the records of each identity from the newest, and a
MERGE takes the records with number 1. Most pipelines of this kind do the same. The recipe supports no corrupt records,
no transactions and no groups, so a measured log must not have any.
"""

from __future__ import annotations

import base64
from struct import unpack_from
from typing import TYPE_CHECKING

import pandas as pd
from delta.tables import DeltaTable
from pyspark.sql import Window
from pyspark.sql import functions as F

from offsets_pipeline.store.delta.schemas import LOG, OFFSET_FACTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from offsets_pipeline.store.store import Store

Commit = tuple[str, str, int, int | None, int | None, str | None, int | None, str | None]

_TOPIC_ID_TAG = b"\x01\x00\x10"
_COLUMNS = [
    "group_id",
    "topic",
    "partition",
    "committed_offset",
    "leader_epoch",
    "metadata",
    "commit_timestamp_ms",
    "topic_id",
]
_DECODED = (
    "log_partition int, record_offset bigint, group_id string, topic string, partition int, committed_offset bigint, "
    "leader_epoch int, metadata string, commit_timestamp_ms bigint, topic_id string"
)


def decode_commit(key: bytes, value: bytes | None) -> Commit:
    """Decode one offset commit of value version 3 or 4, or its tombstone."""
    at = 4 + unpack_from(">h", key, 2)[0]
    group = key[4:at].decode()
    end = at + 2 + unpack_from(">h", key, at)[0]
    topic = key[at + 2 : end].decode()
    (partition,) = unpack_from(">i", key, end)
    if value is None:
        return group, topic, partition, None, None, None, None, None
    version, committed_offset, leader_epoch = unpack_from(">hqi", value)
    if version == 3:
        start, length = 16, unpack_from(">h", value, 14)[0]
    else:
        start, length = 15, value[14] - 1  # of metadata below 127 bytes, which is all there is here
    metadata = value[start : start + length].decode()
    (timestamp,) = unpack_from(">q", value, start + length)
    tags = value[start + length + 8 :]
    topic_id = None
    if tags.startswith(_TOPIC_ID_TAG):
        topic_id = base64.urlsafe_b64encode(tags[3:19]).rstrip(b"=").decode()
    epoch = None if leader_epoch == -1 else leader_epoch
    return group, topic, partition, committed_offset, epoch, metadata, timestamp, topic_id


def _decode(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        commits = [decode_commit(key, value) for key, value in zip(frame["key"], frame["value"], strict=True)]
        decoded = pd.DataFrame(commits, columns=_COLUMNS, dtype=object)
        decoded.insert(0, "log_partition", frame["log_partition"])
        decoded.insert(1, "record_offset", frame["record_offset"])
        yield decoded


def merge_by_recipe(store: Store) -> None:
    """Merge the store's log into `offset_facts`."""
    newest_first = Window.partitionBy("group_id", "topic", "partition").orderBy(F.col("record_offset").desc())
    newest = (
        store.read(LOG.name)
        .select("log_partition", "record_offset", "key", "value")
        .mapInPandas(_decode, _DECODED)
        .withColumn("number", F.row_number().over(newest_first))
        .where("number = 1")
        .withColumn("commit_timestamp", F.timestamp_millis("commit_timestamp_ms"))
        .withColumn("expire_timestamp", F.lit(None).cast("timestamp"))
        .withColumn("position", F.col("record_offset"))
        .withColumn("misplaced", F.lit(False))
        .withColumn("folded_to", F.lit(0).cast("long"))
        .withColumn("incarnation", F.lit(1))
        .select(OFFSET_FACTS.names())
    )
    (
        DeltaTable.forPath(store.spark, store.table(OFFSET_FACTS.name).folder)
        .alias("t")
        .merge(newest.alias("s"), "t.group_id = s.group_id AND t.topic = s.topic AND t.partition = s.partition")
        .whenMatchedUpdateAll(condition="s.record_offset > t.record_offset")
        .whenNotMatchedInsertAll()
        .execute()
    )
