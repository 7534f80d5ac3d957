"""`offsets fetch`: where a consumer would start. Imports no Spark."""

from __future__ import annotations

from dataclasses import astuple, fields
from typing import TYPE_CHECKING, Any

from offsets_pipeline.cli.answer_times import STALE, answer_time_of
from offsets_pipeline.cli.live_cluster import kafka_options
from offsets_pipeline.cli.opened import open_readers
from offsets_pipeline.cli.output import with_cluster, write_rows
from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.errors import UnknownTopicOrPartition
from offsets_pipeline.ingest.topic_positions.position_samples import PositionSamples
from offsets_pipeline.ingest.topic_positions.positions import Position, Positions, TimedOffset
from offsets_pipeline.ingest.topic_positions.sample_files import read_sample_file
from offsets_pipeline.ingest.topic_positions.sample_table import read_samples, table_of
from offsets_pipeline.questions.lag.starting_offset import StartingOffset, Strategy, starting_offset
from offsets_pipeline.questions.query.describe import describe_groups
from offsets_pipeline.semantics.partition_state import TopicPartition
from offsets_pipeline.semantics.partitioning import partition_for

if TYPE_CHECKING:
    from offsets_pipeline.cli.section_questions import Fetch
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.questions.query.state_reader import StateReader


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
        positions = _positions(store, reader, options, settings, now_ms)
        sources.append(positions.source)
        if options.partition is None:
            known = {*positions.by_partition, *committed}
            places = sorted((topic, partition) for topic, partition in known if topic == options.topic)
        else:
            places = [(options.topic, options.partition)]
        home = partition_for(options.group, reader.offsets_partitions) if group is None else group.log_partition
        more = (
            *([reader.cluster] if len(readers) > 1 else []),
            *((time.as_of_partition(home), time.of_partition(home)) if options.format_ == "json" else ()),
        )
        for place in places:
            position = positions.by_partition.get(TopicPartition(*place))
            starts = starting_offset(options.group, place, committed.get(place), options.reset, position, now_ms)
            rows.append((*astuple(starts), *more))
    if not rows:
        raise UnknownTopicOrPartition(
            f"{', '.join(sources)} has no partition of topic {options.topic!r}; add --partition, or --bootstrap-server"
        )
    columns = with_cluster((each.name for each in fields(StartingOffset)), readers)
    if options.format_ == "json":
        columns += ["as_of", STALE]
    write_rows(columns, rows, options.format_)


def _positions(store: str, reader: StateReader, options: Fetch, settings: Settings, now_ms: int) -> Positions:
    policy = options.reset
    # a broker gives times before 1970 other meanings
    since_ms = max(0, now_ms - policy.duration_ms) if policy.strategy is Strategy.BY_DURATION else None
    asked = options.positions_from
    if asked.bootstrap_server is not None:
        # a broker's client takes long to import
        from offsets_pipeline.ingest.topic_positions.broker_positions import ask_broker

        return ask_broker(kafka_options(asked, settings), [options.topic], since_ms)
    if asked.positions is not None:
        rows = read_sample_file(asked.positions, now_ms, [options.topic])
        return _of_samples(PositionSamples(rows), asked.positions, since_ms)
    return _of_samples(read_samples(table_of(reader.location), [options.topic]), store, since_ms)


def _of_samples(samples: PositionSamples, source: str, since_ms: int | None) -> Positions:
    """The newest positions; the offset for a time is the log end of the last sample up to it: no record is skipped."""
    before = {} if since_ms is None else samples.latest(since_ms)
    found = {}
    for place, newest in samples.latest().items():
        then = before.get(place)
        times = () if then is None or since_ms is None else (TimedOffset(since_ms, then.log_end_offset),)
        found[TopicPartition(*place)] = Position(newest.log_start_offset, newest.log_end_offset, times)
    return Positions(source, found)
