"""`offsets fetch`: where a consumer would start. Imports no Spark."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING

from offsets_pipeline.cli.answer_times import answer_time_of
from offsets_pipeline.cli.opened import open_reader
from offsets_pipeline.cli.output import write_rows
from offsets_pipeline.clock import SystemClock
from offsets_pipeline.errors import UnknownTopicOrPartition
from offsets_pipeline.lag.starting_offset import ResetPolicy, StartingOffset, Strategy, parse_reset, starting_offset
from offsets_pipeline.query.describe import describe_groups
from offsets_pipeline.semantics.partition_state import TopicPartition
from offsets_pipeline.topic_positions.position_samples import PositionSamples
from offsets_pipeline.topic_positions.positions import Position, Positions, TimedOffset
from offsets_pipeline.topic_positions.sample_files import read_sample_file
from offsets_pipeline.topic_positions.sample_table import read_samples, table_of

if TYPE_CHECKING:
    from offsets_pipeline.cli.lag_command import PositionOptions
    from offsets_pipeline.config import Settings
    from offsets_pipeline.query.state_reader import StateReader


@dataclass(frozen=True)
class FetchOptions:
    """The options of the command."""

    store: str
    group: str
    topic: str
    partition: int | None
    reset: str
    format_: str
    of_positions: PositionOptions


def fetch(options: FetchOptions, settings: Settings) -> int:
    """Show where a consumer of the group would start in the topic's partitions; returns the exit status.

    Raises InvalidReset, UnknownTopicOrPartition.
    """
    policy = parse_reset(options.reset)
    now_ms = SystemClock().now_ms()
    reader = open_reader(options.store, settings)
    group = describe_groups(reader, [options.group]).get(options.group)
    answer_time_of(reader, options.store, settings)
    committed = {} if group is None else {(each.topic, each.partition): each for each in group.offsets}
    positions = _positions(reader, options, settings, policy, now_ms)
    if options.partition is None:
        known = {*positions.by_partition, *committed}
        places = sorted((topic, partition) for topic, partition in known if topic == options.topic)
    else:
        places = [(options.topic, options.partition)]
    if not places:
        raise UnknownTopicOrPartition(
            f"{positions.source} has no partition of topic {options.topic!r}; add --partition, or --bootstrap-server"
        )
    rows = [
        starting_offset(
            options.group,
            place,
            committed.get(place),
            policy,
            positions.by_partition.get(TopicPartition(*place)),
            now_ms,
        )
        for place in places
    ]
    write_rows([each.name for each in fields(StartingOffset)], map(astuple, rows), options.format_)
    return 0


def _positions(
    reader: StateReader, options: FetchOptions, settings: Settings, policy: ResetPolicy, now_ms: int
) -> Positions:
    since_ms = now_ms - policy.duration_ms if policy.strategy is Strategy.BY_DURATION else None
    of_positions = options.of_positions
    if of_positions.bootstrap_server is not None:
        # a broker's client takes long to import
        from offsets_pipeline.broker.kafka_options import KafkaOptions, parse_options
        from offsets_pipeline.topic_positions.broker_positions import ask_broker

        given = {**settings.kafka.options, **parse_options(of_positions.options)}
        return ask_broker(KafkaOptions(of_positions.bootstrap_server, given), [options.topic], since_ms)
    if of_positions.positions is not None:
        rows = read_sample_file(of_positions.positions, now_ms, [options.topic])
        return _of_samples(PositionSamples(rows), of_positions.positions, since_ms)
    return _of_samples(read_samples(table_of(reader.location), [options.topic]), options.store, since_ms)


def _of_samples(samples: PositionSamples, source: str, since_ms: int | None) -> Positions:
    """The newest positions; the offset for a time is the log end of the last sample up to it: no record is skipped."""
    found = {}
    for place in samples.places():
        series = samples.series(place)
        newest = series.last()
        before = None if since_ms is None else series.until(since_ms).last()
        if newest is not None:
            times = () if before is None or since_ms is None else (TimedOffset(since_ms, before.log_end_offset),)
            found[TopicPartition(*place)] = Position(newest.log_start_offset, newest.log_end_offset, times)
    return Positions(source, found)
