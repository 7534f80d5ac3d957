"""Whether the state is what a replay of the log gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from offsets_pipeline.delta.schemas import COMMITTED_OFFSETS, FOLD_PROGRESS, GROUP_RECORDS, GROUPS, LOG
from offsets_pipeline.fold.dataframes import described_groups, pending_arrays
from offsets_pipeline.fold.reload import replayed
from offsets_pipeline.fold.state import offset_of_partition
from offsets_pipeline.layers import DESCRIBED, OFFSETS, RECORDS
from offsets_pipeline.log.epochs import folded_epoch
from offsets_pipeline.log.notes import cleaned_to
from offsets_pipeline.semantics.group_types import GROUP_REMOVING_TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from offsets_pipeline.store import Store

_EXAMPLES = 5


@dataclass
class Verification:
    """What was compared, and what differs: a count for each table, and the first few differences in words."""

    log_partitions: int = 0
    records: int = 0
    offsets: int = 0
    groups: int = 0
    differences: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


def verify_store(store: Store) -> Verification:
    """Replay the log from its start, as far as it is folded, and compare the result with the state tables.

    What is appended to the log while this runs is not looked at; a stream that folds meanwhile is: stop it, or
    take a difference for what it may be.
    """
    epoch = folded_epoch(store)
    of_epoch = f"log_epoch = {epoch}"
    progress = store.read(FOLD_PROGRESS.name).select("log_partition", "folded_to", "pending").persist()
    folded = (
        store.read(LOG.name)
        .where(of_epoch)
        .join(F.broadcast(progress.select("log_partition", "folded_to")), "log_partition")
        .where("record_offset < folded_to")
    )
    effects = replayed(store, folded).withColumn("log_epoch", F.lit(epoch)).persist()
    result = Verification()
    cleaned = cleaned_to(store, epoch)
    try:
        of_log = effects.where("kind = 'progress'").agg(F.count("*"), F.coalesce(F.sum("records"), F.lit(0))).first()
        assert of_log is not None  # noqa: S101 - an aggregate has a row
        result.log_partitions, result.records = of_log[0], of_log[1]
        _compare(
            result,
            COMMITTED_OFFSETS.name,
            list(OFFSETS.key),
            effects.where("kind = 'offset'").select(OFFSETS.columns),
            store.latest(OFFSETS, of_epoch),
            excused=_forgotten_tombstone(cleaned),
        )
        _compare_groups(result, store, effects, of_epoch, was_cleaned=bool(cleaned))
        _compare(
            result,
            FOLD_PROGRESS.name,
            ["log_partition"],
            effects.where("kind = 'progress'")
            .join(pending_arrays(effects.where("kind = 'pending'")), "log_partition", "left")
            .select("log_partition", "folded_to", _as_json("pending")),
            # of a log partition that holds nothing an epoch that took over says so
            progress.where("folded_to > 0").select("log_partition", "folded_to", _as_json("pending")),
        )
        result.offsets = effects.where("kind = 'offset' AND committed_offset IS NOT NULL").count()
        return result
    finally:
        effects.unpersist()
        progress.unpersist()


def _forgotten_tombstone(cleaned: Mapping[int, int]) -> str:
    """SQL: whether the state keeps a tombstone that it once folded, and a cleaning of the log let go of (R23)."""
    if not cleaned:
        return "FALSE"
    return (
        f"found.record_offset < {offset_of_partition(cleaned)} "
        "AND found.record_offset >= coalesce(expected.record_offset, -1) "
        "AND found.committed_offset IS NULL AND expected.committed_offset IS NULL"
    )


def _compare_groups(
    result: Verification, store: Store, effects: DataFrame, of_epoch: str, *, was_cleaned: bool
) -> None:
    records = effects.where("kind IN ('group_record', 'group_commit')").select(RECORDS.columns)
    of_state = store.latest(RECORDS, of_epoch)
    known = _live if was_cleaned else _but_commits
    _compare(result, GROUP_RECORDS.name, list(RECORDS.key), known(records), known(of_state))
    described = described_groups(records, store.properties.offsets_partitions)
    columns = [name for name in DESCRIBED.columns if name not in ("members", "record_offset")]
    alive = described.where("state <> 'Dead'").select(*columns, _as_json("members")).persist()
    _compare(
        result,
        GROUPS.name,
        list(DESCRIBED.key),
        alive,
        store.latest(DESCRIBED, of_epoch).where("state <> 'Dead'").select(*columns, _as_json("members")),
    )
    result.groups = alive.count()
    alive.unpersist()


def _but_commits(records: DataFrame) -> DataFrame:
    """Of commits the state notes no more than it takes to tell that a group exists; `groups` shows whether it did."""
    return records.where("record_type <> 1")


def _live(records: DataFrame) -> DataFrame:
    """The values behind which no tombstone lies, neither of their key nor of their group (R14), but for commits.

    Of others a log that was cleaned knows nothing (R23).
    """
    removing = (
        f"CASE WHEN record_type IN ({', '.join(map(str, sorted(GROUP_REMOVING_TYPES)))}) THEN tombstone_offset END"
    )
    removed = F.expr(f"max({removing})").over(Window.partitionBy("log_partition", "group_id"))
    values = _but_commits(records.withColumn("removed", removed))
    live = values.where("value_offset > greatest(coalesce(tombstone_offset, -1), coalesce(removed, -1))")
    return live.select(*RECORDS.key, "log_epoch", "value_offset", "value")


def _as_json(name: str) -> Column:
    return F.coalesce(F.to_json(name), F.lit("[]")).alias(name)


def _compare(
    result: Verification, table: str, key: list[str], expected: DataFrame, found: DataFrame, excused: str = "FALSE"
) -> None:
    """Note the rows that only one of the two has, and those that differ, but for those that are ``excused`` (SQL).

    And those that ``found`` has more than once.
    """
    columns = [name for name in expected.columns if name not in key]
    left = expected.select(*key, F.struct(*columns).alias("expected"))
    right = found.groupBy(*key).agg(F.first(F.struct(*columns)).alias("found"), F.count("*").alias("copies"))
    differing = left.join(right, key, "full_outer")
    differs = f"(NOT (expected <=> found) AND NOT coalesce({excused}, FALSE)) OR copies > 1"
    differing = differing.where(differs).persist()
    try:
        count = differing.count()
        if not count:
            return
        result.differences[table] = count
        shown = differing.select(*key, F.to_json("expected").alias("e"), F.to_json("found").alias("f"), "copies")
        for row in shown.take(_EXAMPLES):
            where = ", ".join(f"{name} {row[name]!r}" for name in key)
            times = f" {row['copies']} times" if (row["copies"] or 0) > 1 else ""
            result.examples.append(
                f"{table}: {where}: the log gives {row['e'] or 'nothing'}, the state has {row['f'] or 'nothing'}{times}"
            )
    finally:
        differing.unpersist()
