"""`offsets restore`: plans which offsets of the past to commit to a live cluster, shows the plan, and commits it."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from offsets_pipeline.cli.answer_times import log_answer_time_of
from offsets_pipeline.cli.history_commands import warn_of_gaps
from offsets_pipeline.cli.live_cluster import kafka_options, require_same_cluster
from offsets_pipeline.cli.opened import open_reader
from offsets_pipeline.cli.options import LiveBrokers
from offsets_pipeline.cli.output import write_rows
from offsets_pipeline.cli.repair_commands import raise_errors
from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.common.input_text import counted
from offsets_pipeline.common.warnings import warn
from offsets_pipeline.errors import NoSuchGroup, OffsetsError
from offsets_pipeline.ingest.topic_positions.broker_positions import positions_of
from offsets_pipeline.ingest.topic_positions.sample_table import read_samples, table_of
from offsets_pipeline.kafka.broker.cluster import Cluster
from offsets_pipeline.kafka.broker.groups_client import commit_offsets_of_groups
from offsets_pipeline.questions.history.log_history import LogHistory
from offsets_pipeline.questions.query.as_of import offsets_as_of
from offsets_pipeline.repair.offset_reset.group_offsets import PROTOCOL_TYPES, cluster_group_offsets
from offsets_pipeline.repair.offset_reset.restore_plan import (
    moments_by_records,
    moments_by_samples,
    plan_restore,
    same_offset,
    translated,
)
from offsets_pipeline.semantics.partition_state import TopicPartition
from offsets_pipeline.store.delta.schemas import TOPICS

if TYPE_CHECKING:
    from offsets_pipeline.cli.section_coordinator import Restore
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.questions.query.describe import OffsetAnswer
    from offsets_pipeline.questions.query.state_reader import StateReader
    from offsets_pipeline.repair.offset_reset.restore_plan import Finder, RestorePlan

    Past = Mapping[str, Mapping[TopicPartition, OffsetAnswer]]

_COLUMNS = ("group", "topic", "partition", "past_offset", "new_offset", "current_offset", "method", "detail")


def restore(options: Restore, settings: Settings) -> None:
    """Show the plan, or commit it.

    Raises NoSuchGroup for a named group without offsets at the time, NonEmptyGroup for named groups with members after
    the others are restored, and the errors of `Cluster`.
    """
    at_ms = options.as_of_ms
    reader = open_reader(options.store, settings)
    log = LogHistory(reader)
    log_answer_time_of(log, options.store, settings, at_ms)
    past = _past_offsets(log, options.groups, at_ms)
    if not past:
        warn(f"no consumer group of {reader.location} had an offset as of {shown_time(at_ms)}")
        return
    with ExitStack() as opened:
        live = opened.enter_context(Cluster(kafka_options(options.live, settings)))
        source = None
        if options.source_bootstrap_server is not None:
            brokers = LiveBrokers(
                bootstrap_server=options.source_bootstrap_server,
                client_options=options.source_options,
                command_config=None,
            )
            source = opened.enter_context(Cluster(kafka_options(brokers, settings)))
        plan = _plan(options, reader, live, source, past)
        offsets = [  # metadata may describe the offset: only with the same offset they are right
            (group_id, where, new.offset, then.metadata if new.offset == then.offset else "")
            for group_id, where, then, new, _ in plan.offsets
            if new.offset is not None
        ]
        failed = commit_offsets_of_groups(live, offsets) if options.execute else {}
    if options.execute:  # first: stdout may be a full disk
        committed = len(offsets) - len(failed)
        sys.stderr.write(f"offsets: {counted(committed, 'offset')} committed to {options.live.bootstrap_server}\n")
    try:
        _show(options, plan, failed)
    finally:
        if plan.active and not options.groups:
            states = ", ".join(f"{group_id!r} is {state}" for group_id, state in plan.active.items())
            warn(f"groups with members are skipped: {states}; stop their members, and restore again")
        raise_errors(plan.active if options.groups else {}, [*failed.values()], "restore")


def _past_offsets(log: LogHistory, group_ids: Sequence[str], at_ms: int) -> Past:
    """The committed offsets of these groups, or of all consumer groups, at a time; warns if the log lacks records."""
    answer = offsets_as_of(log, time_ms=at_ms, group_ids=group_ids or None)
    warn_of_gaps(answer, log.location)
    past = {
        group_id: {TopicPartition(each.topic, each.partition): each for each in offsets}
        for group_id, group in answer.groups.items()
        if (offsets := group.offsets) and (group_ids or group.protocol_type in PROTOCOL_TYPES)
    }
    missing = [group_id for group_id in dict.fromkeys(group_ids) if group_id not in past]
    if missing:
        named = ", ".join(map(repr, missing))
        raise NoSuchGroup(f"{log.location} has no offset of group {named} as of {shown_time(at_ms)}; check the time")
    return past


def _plan(options: Restore, reader: StateReader, live: Cluster, source: Cluster | None, past: Past) -> RestorePlan:
    topics = {where.topic for offsets in past.values() for where in offsets}
    standings = cluster_group_offsets(live, past)
    positions = positions_of(live, topics)
    of_store, of_live = reader.properties.cluster_id, live.cluster_id()
    recreated: list[str] = []
    finder: Finder = same_offset
    is_other = of_store is not None and of_live is not None and of_store != of_live
    if source is None and not is_other:
        recreated = _recreated(reader, live, topics)
    elif source is not None or not options.same_offsets:
        points = {
            ((where.topic, where.partition), each.offset)
            for offsets in past.values()
            for where, each in offsets.items()
            if where in positions.by_partition
        }
        if source is not None:
            require_same_cluster(reader, source)
            moments = moments_by_records(source, points)
        else:
            warn(
                f"{reader.location} has the offsets of cluster {of_store}, and {live.settings.at} is cluster {of_live}"
                ": offsets are translated by the store's samples; --source-bootstrap-server translates exactly, and "
                "--same-offsets takes them as they are"
            )
            samples = read_samples(table_of(reader.location), {topic for (topic, _), _ in points})
            moments = moments_by_samples(samples, points)
        finder = translated(live, moments)
    return plan_restore(past, standings, positions, finder, recreated)


def _recreated(reader: StateReader, live: Cluster, topics: set[str]) -> list[str]:
    """Topics that were created again: the store knows another id of their name than the cluster has."""
    known: dict[str, set[str]] = defaultdict(set)
    for row in reader.table(TOPICS.name).rows().to_pylist():
        known[row["topic"]].add(row["topic_id"])
    found = [
        name
        for name, topic in live.topics(topics).items()
        if topic.topic_id is not None and known[name] - {topic.topic_id}
    ]
    for name in found:
        warn(f"topic {name!r} was created again since: its offsets may stand for other records")
    return found


def _show(options: Restore, plan: RestorePlan, failed: Mapping[tuple[str, tuple[str, int]], OffsetsError]) -> None:
    rows = [
        (each.group_id, *each.where, each.past.offset, each.new.offset, each.current_offset, *each.new[1:])
        for each in plan.offsets
        if (each.group_id, each.where) not in failed
    ]
    if rows or options.format_ != "table":
        write_rows(_COLUMNS, rows, options.format_)
    left = [each for each in plan.offsets if each.new.offset is None]
    if left:
        warn(f"{counted(len(left), 'offset')} cannot be restored; the column DETAIL has the reasons")
    for group_id, count in plan.later.items():
        warn(
            f"group {group_id!r} has {counted(count, 'offset')} of partitions that it had not committed at the time; "
            "they stay"
        )
    if not options.execute and len(left) < len(plan.offsets):
        sys.stderr.write("offsets: nothing is changed: this is the plan; --execute commits it\n")
