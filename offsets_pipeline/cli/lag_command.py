"""`offsets lag`: offsets behind, seconds behind, and status of groups. Imports no Spark."""

from __future__ import annotations

import gc
import shlex
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offsets_pipeline.cli.answer_times import answer_time_of
from offsets_pipeline.cli.opened import open_readers
from offsets_pipeline.cli.output import write_rows
from offsets_pipeline.clock import SystemClock, parse_time_ms, shown_time
from offsets_pipeline.errors import NoSuchGroup
from offsets_pipeline.lag.lag_rows import GroupLag, LagRow, group_lags, lag_rows, topics_of
from offsets_pipeline.lag.logged_commits import last_commits
from offsets_pipeline.lag.position_sources import SampledPositions
from offsets_pipeline.observability.warnings import warn
from offsets_pipeline.query.as_of import offsets_as_of
from offsets_pipeline.query.describe import describe_groups
from offsets_pipeline.query.group_listing import group_names, is_pattern, matching
from offsets_pipeline.topic_positions.position_samples import PositionSamples
from offsets_pipeline.topic_positions.sample_files import read_sample_file
from offsets_pipeline.topic_positions.sample_table import read_samples, table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import Settings
    from offsets_pipeline.lag.position_sources import PositionSource
    from offsets_pipeline.query.describe import GroupAnswer
    from offsets_pipeline.query.state_reader import StateReader

_STALE_INTERVALS = 3


@dataclass(frozen=True)
class PositionOptions:
    """The options that say where positions come from."""

    bootstrap_server: str | None
    positions: str | None
    options: tuple[str, ...]


@dataclass(frozen=True)
class LagOptions:
    """The options of the command."""

    stores: tuple[str, ...]
    groups: tuple[str, ...]
    at: str | None
    summary: bool
    format_: str
    of_positions: PositionOptions


def lag(options: LagOptions, settings: Settings) -> int:
    """Show the lag of these groups, or of all; returns the exit status.

    Raises NoSuchGroup for named groups that do not exist, and for patterns that match none, after the others are shown.
    """
    with _no_collections():
        return _lag(options, settings)


def _lag(options: LagOptions, settings: Settings) -> int:
    at_ms = None if options.at is None else parse_time_ms(options.at)
    kind = GroupLag if options.summary else LagRow
    columns = list(kind._fields)
    readers = open_readers(options.stores, settings)
    missing = dict.fromkeys(options.groups)
    shown: list[tuple[Any, ...]] = []
    for store, reader in readers.items():
        groups = _groups(reader, options.groups, at_ms)
        if at_ms is None:
            answer_time_of(reader, store, settings)
        shown += _of_store(store, reader, groups, options, settings, at_ms)
        for name in [each for each in missing if matching(groups, [each])]:
            del missing[name]
    if len(readers) > 1:
        columns.append("cluster")
    if shown or not missing:
        write_rows(columns, shown, options.format_)
    if missing:
        raise NoSuchGroup.of(list(missing), ", ".join(reader.location for reader in readers.values()))
    return 0


def _of_store(
    store: str,
    reader: StateReader,
    groups: dict[str, GroupAnswer],
    options: LagOptions,
    settings: Settings,
    at_ms: int | None,
) -> Sequence[tuple[Any, ...]]:
    """The rows of one store; of several with the name of its cluster."""
    with ExitStack() as opened:
        source = position_source(
            reader, options.of_positions, settings, topics_of(groups), opened, SystemClock(), at_ms, store
        )
        rows = lag_rows(groups, source, lambda behind: last_commits(reader, behind, settings.lag.window_commits, at_ms))
    shown: Sequence[tuple[Any, ...]] = group_lags(groups, rows) if options.summary else rows
    return shown if len(set(options.stores)) == 1 else [(*row, reader.cluster) for row in shown]


@contextmanager
def _no_collections() -> Iterator[None]:
    """Stop the garbage collector: it takes a second to look at the rows of 200,000 offsets, and finds nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _groups(reader: StateReader, patterns: Sequence[str], at_ms: int | None) -> dict[str, GroupAnswer]:
    """The groups with these names or patterns, or all, now or at a past time."""
    if not any(map(is_pattern, patterns)):
        if at_ms is None:
            return describe_groups(reader, patterns or None)
        return offsets_as_of(reader.location, time_ms=at_ms, group_ids=patterns or None).groups
    if at_ms is None:
        return describe_groups(reader, matching(group_names(reader), patterns))
    groups = offsets_as_of(reader.location, time_ms=at_ms).groups
    return {name: groups[name] for name in matching(groups, patterns)}


def position_source(
    reader: StateReader,
    options: PositionOptions,
    settings: Settings,
    topics: Collection[str],
    opened: ExitStack,
    clock: Clock,
    at_ms: int | None,
    store: str,
    tell: Callable[[str], None] = warn,
) -> PositionSource:
    """The positions of these topics, now or at a past time, from the broker, file or table that the options name.

    ``tell`` is called with a warning if the store's positions are old or missing.
    """
    now_ms = clock.now_ms() if at_ms is None else at_ms
    if options.positions is not None:
        return SampledPositions(PositionSamples(read_sample_file(options.positions, now_ms, topics)), now_ms)
    sampled = SampledPositions(read_samples(table_of(reader.location), topics), now_ms)
    if options.bootstrap_server is None:
        _warn_of_old_samples(sampled, settings.lag.sample_interval_ms, topics, store, tell)
        return sampled
    # a broker's client takes long to import
    from offsets_pipeline.broker.cluster import Cluster
    from offsets_pipeline.broker.kafka_options import KafkaOptions, parse_options
    from offsets_pipeline.lag.broker_source import BrokerPositions

    kafka = KafkaOptions(options.bootstrap_server, {**settings.kafka.options, **parse_options(options.options)})
    cluster = opened.enter_context(Cluster(kafka))
    return BrokerPositions(cluster, topics, sampled, is_past=at_ms is not None)


def _warn_of_old_samples(
    sampled: SampledPositions, interval_ms: int, topics: Collection[str], store: str, tell: Callable[[str], None]
) -> None:
    newest_ms = sampled.newest_ms()
    if newest_ms is None and topics:
        tell(
            f"{store} has no positions of these topics; add --bootstrap-server or --positions, or run "
            f"`offsets sample-topic-offsets --store {shlex.quote(store)}`"
        )
    elif newest_ms is not None and sampled.at_ms - newest_ms > _STALE_INTERVALS * max(interval_ms, 1_000):
        tell(f"the newest positions in {store} are of {shown_time(newest_ms)}; lag counts up to then")
