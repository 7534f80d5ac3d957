"""`offsets lag`, `fetch` and `share-partitions`: commits beside the positions of their topics. None imports Spark."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from offsets_pipeline.cli.answer_times import STALE, answer_time_of, log_answer_time_of, write_listing
from offsets_pipeline.cli.live_cluster import LiveCluster, kafka_options
from offsets_pipeline.cli.opened import open_reader, open_readers
from offsets_pipeline.cli.output import with_cluster, write_rows
from offsets_pipeline.common.clock import SystemClock, shown_time
from offsets_pipeline.common.input_text import first_ones
from offsets_pipeline.errors import NoSuchGroup, UnknownTopicOrPartition
from offsets_pipeline.ingest.topic_positions.position_samples import PositionSamples
from offsets_pipeline.ingest.topic_positions.positions import Position, Positions, TimedOffset
from offsets_pipeline.ingest.topic_positions.sample_table import read_sample_file, read_samples, table_of
from offsets_pipeline.questions.history.log_history import LogHistory
from offsets_pipeline.questions.lag.lag_rows import GroupLag, LagRow, StoreGroups, group_lags, lag_of_groups
from offsets_pipeline.questions.lag.position_sources import incarnations_at
from offsets_pipeline.questions.lag.starting_offset import StartingOffset, Strategy, starting_offset
from offsets_pipeline.questions.query.describe import GroupAnswer, OffsetAnswer, describe_groups, state_of
from offsets_pipeline.questions.query.group_listing import is_pattern, matching, without_match
from offsets_pipeline.questions.query.share_partitions import SharePartitionInfo, share_partitions
from offsets_pipeline.semantics.group_types import SHARE
from offsets_pipeline.semantics.partition_state import TopicPartition
from offsets_pipeline.semantics.partitioning import partition_for

if TYPE_CHECKING:
    from offsets_pipeline.cli.section_questions import Fetch, Lag, SharePartitions
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.questions.query.state_reader import StateReader

_FIRST_COLUMNS = ("cluster", "group", "topic", "partition", "lag", "lag_seconds", "status", "reason")
_SHOWN_BATCHES = 10


@contextmanager
def _for_many_rows() -> Iterator[None]:
    """Stop the garbage collector, and let Arrow allocate as the C library does.

    The collector takes a second to look at the rows of 200,000 offsets, and finds nothing. Arrow's own allocator gives
    memory back after each block of the log, and takes a second to get it again.
    """
    was_enabled, pool = gc.isenabled(), pa.default_memory_pool()
    gc.disable()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(pool)
        if was_enabled:
            gc.enable()


@_for_many_rows()
def lag(options: Lag, settings: Settings) -> None:
    """Show the lag of these groups, or of all.

    Raises NoSuchGroup for named groups that do not exist, and for patterns that match none, after the others are shown.
    """
    kind = GroupLag if options.summary else LagRow
    readers = open_readers(options.stores, settings)
    columns = with_cluster(kind._fields, readers)
    answered: set[str] = set()
    shown: list[tuple[Any, ...]] = []
    for store, reader in readers.items():
        with LiveCluster(options.positions_from, settings) as live:
            if options.at_ms is None:
                groups = live.groups(reader, options.groups or None)
                time = answer_time_of(reader, store, settings)
            else:
                log = LogHistory(reader)
                groups = _past_groups(log, options.groups, options.at_ms)
                time = log_answer_time_of(log, store, settings, options.at_ms)
            asked = StoreGroups(reader, groups, time, options.at_ms)
            of_store = lag_of_groups(asked, live.positions(asked), settings.lag.window_commits)
        rows: Sequence[tuple[Any, ...]] = group_lags(groups, of_store) if options.summary else of_store
        if len(readers) > 1:
            rows = [(*row, reader.cluster) for row in rows]
        if options.format_ == "json":
            stale = {  # a share group has share partitions in several log partitions
                name: time.stale if group.type == SHARE else time.of_partition(group.log_partition)
                for name, group in groups.items()
            }
            rows = [(*row, stale[row[0]]) for row in rows]
        shown += rows
        answered.update(groups)
    if options.format_ == "json":
        columns.append(STALE)
    missing = without_match(options.groups, answered)
    if shown or not missing:
        write_rows(columns, shown, options.format_, absolute=options.absolute, first=_FIRST_COLUMNS)
    if missing:
        then = "" if options.at_ms is None else f" as of {shown_time(options.at_ms)}"
        raise NoSuchGroup.of(missing, ", ".join(reader.location for reader in readers.values()) + then)


def _past_groups(log: LogHistory, patterns: Sequence[str], at_ms: int) -> dict[str, GroupAnswer]:
    """The groups with these names or patterns, or all, at a past time."""
    from offsets_pipeline.questions.query.as_of import offsets_as_of  # imports the replay

    if not any(map(is_pattern, patterns)):
        return offsets_as_of(log, time_ms=at_ms, group_ids=patterns or None).groups
    groups = offsets_as_of(log, time_ms=at_ms).groups
    return {name: groups[name] for name in matching(groups, patterns)}


def fetch(options: Fetch, settings: Settings) -> None:
    """Show where a consumer of the group would start in the topic's partitions.

    Raises UnknownTopicOrPartition if no store knows a partition of the topic.
    """
    readers = open_readers(options.stores, settings)
    now_ms = SystemClock().now_ms()
    sources = []
    rows: list[tuple[Any, ...]] = []
    for store, reader in readers.items():
        group = describe_groups(reader, [options.group]).get(options.group)
        time = answer_time_of(reader, store, settings)
        committed = {} if group is None else {(each.topic, each.partition): each for each in group.offsets}
        home = partition_for(options.group, reader.offsets_partitions) if group is None else group.log_partition
        pending = state_of(reader).pending.get((home, options.group), ())
        positions = _fetch_positions(store, reader, options, settings, now_ms, committed)
        sources.append(positions.source)
        if options.partition is None:
            known = {*positions.by_partition, *committed, *pending}
            places = sorted((topic, partition) for topic, partition in known if topic == options.topic)
        else:
            places = [(options.topic, options.partition)]
        more = (
            *([reader.cluster] if len(readers) > 1 else []),
            *((time.as_of_partition(home), time.of_partition(home)) if options.format_ == "json" else ()),
        )
        for place in places:
            position = positions.by_partition.get(TopicPartition(*place))
            starts = starting_offset(
                options.group,
                place,
                committed.get(place),
                options.reset,
                position,
                now_ms,
                is_pending=place in pending,
            )
            rows.append((*astuple(starts), *more))
    if not rows:
        raise UnknownTopicOrPartition(
            f"{', '.join(sources)} has no partition of topic {options.topic!r}; add --partition, or --bootstrap-server"
        )
    columns = with_cluster((each.name for each in fields(StartingOffset)), readers)
    if options.format_ == "json":
        columns += ["as_of", STALE]
    write_rows(columns, rows, options.format_)


def _fetch_positions(
    store: str,
    reader: StateReader,
    options: Fetch,
    settings: Settings,
    now_ms: int,
    committed: Mapping[tuple[str, int], OffsetAnswer],
) -> Positions:
    policy = options.reset
    # a broker gives times before 1970 other meanings
    since_ms = max(0, now_ms - policy.duration_ms) if policy.strategy is Strategy.BY_DURATION else None
    asked = options.positions_from
    if asked.bootstrap_server is not None:
        # a broker's client takes long to import
        from offsets_pipeline.ingest.topic_positions.broker_positions import ask_broker

        of_topic = {place: each.leader_epoch for place, each in committed.items() if place[0] == options.topic}
        epochs = {place: epoch for place, epoch in of_topic.items() if epoch is not None}
        return ask_broker(kafka_options(asked, settings), [options.topic], since_ms, epochs)
    if asked.positions is not None:
        rows = read_sample_file(asked.positions, now_ms, [options.topic])
        return _fetch_samples(PositionSamples(rows), asked.positions, since_ms, committed)
    return _fetch_samples(read_samples(table_of(reader.location), [options.topic]), store, since_ms, committed)


def _fetch_samples(
    samples: PositionSamples, source: str, since_ms: int | None, committed: Mapping[tuple[str, int], OffsetAnswer]
) -> Positions:
    """The newest positions; the offset for a time is the log end of the last sample up to it: no record is skipped.

    A commit after the newest sample proves that the records before it were there (R37).
    """
    before = {} if since_ms is None else samples.latest(since_ms)
    found, newest_ms = {}, samples.newest_ms or 0
    latest = samples.latest()
    created, _, _ = incarnations_at(samples.columns, *samples.slices(latest), np.full(len(latest), newest_ms))
    for (place, newest), first in zip(latest.items(), created.tolist(), strict=True):
        then = before.get(place)
        times: tuple[TimedOffset, ...] = ()
        if then is not None and since_ms is not None:
            is_older = then.sampled_ms < samples.columns.sampled_ms[first]  # of an earlier incarnation of the topic
            times = (TimedOffset(since_ms, newest.log_start_offset if is_older else then.log_end_offset),)
        commit, end = committed.get(place), newest.log_end_offset
        if commit is not None and (commit.committed_ms is None or commit.committed_ms > newest_ms):
            end = max(end, commit.offset)
        found[TopicPartition(*place)] = Position(newest.log_start_offset, end, times)
    return Positions(source, found)


def show_share_partitions(options: SharePartitions, settings: Settings) -> None:
    """Show the share partitions."""
    reader = open_reader(options.store, settings)
    found = share_partitions(reader, *_share_names_and_ends(reader, options, settings))
    time = answer_time_of(reader, options.store, settings)
    rows = [each._asdict() for each in found]
    if options.format_ != "json":
        rows = [{**row, "state_batches": _shown_batches(row["state_batches"])} for row in rows]
    write_listing("share_partitions", SharePartitionInfo._fields, rows, [(reader.cluster, time)], options.format_)


def _share_names_and_ends(
    reader: StateReader, options: SharePartitions, settings: Settings
) -> tuple[Mapping[str, str], Mapping[tuple[str, int], int]]:
    """Names of topic ids and log ends of partitions: of the cluster, or of a store, by default the reader's own."""
    if options.live.bootstrap_server is not None:
        # a broker's client takes long to import
        from offsets_pipeline.kafka.broker.log_offsets import LogBounds, bounds_of_topics

        with LiveCluster(options.live, settings) as live:
            names = live.topic_names()
            bounds = bounds_of_topics(live.cluster, set(names.values()))
        return names, {place: each.end for place, each in bounds.items() if isinstance(each, LogBounds)}
    source = reader if options.groups is None else open_reader(options.groups, settings)
    latest = read_samples(table_of(source.location)).latest()
    return source.topic_names(), {place: each.log_end_offset for place, each in latest.items()}


def _shown_batches(batches: list[dict[str, Any]]) -> str:
    """The first batches as text, such as `3-4 AVAILABLE x1`."""
    shown = [
        f"{each['first_offset']}-{each['last_offset']} {each['delivery_state']} x{each['delivery_count']}"
        for each in batches
    ]
    return first_ones(shown, _SHOWN_BATCHES)
