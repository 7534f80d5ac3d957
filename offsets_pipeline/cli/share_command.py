"""`offsets share-partitions`: where share groups stand. Imports no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offsets_pipeline.cli.answer_times import answer_time_of, write_listing
from offsets_pipeline.cli.live_cluster import LiveCluster
from offsets_pipeline.cli.opened import open_reader
from offsets_pipeline.common.input_text import first_ones
from offsets_pipeline.ingest.topic_positions.sample_table import read_samples, table_of
from offsets_pipeline.questions.query.share_partitions import SharePartitionInfo, share_partitions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsets_pipeline.cli.section_questions import SharePartitions
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.questions.query.state_reader import StateReader

    Positions = tuple[Mapping[str, str], Mapping[tuple[str, int], int]]

_SHOWN_BATCHES = 10


def show_share_partitions(options: SharePartitions, settings: Settings) -> None:
    """Show the share partitions."""
    reader = open_reader(options.store, settings)
    found = share_partitions(reader, *_names_and_ends(reader, options, settings))
    time = answer_time_of(reader, options.store, settings)
    rows = [each._asdict() for each in found]
    if options.format_ != "json":
        rows = [{**row, "state_batches": _shown(row["state_batches"])} for row in rows]
    write_listing("share_partitions", SharePartitionInfo._fields, rows, [(reader.cluster, time)], options.format_)


def _names_and_ends(reader: StateReader, options: SharePartitions, settings: Settings) -> Positions:
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


def _shown(batches: list[dict[str, Any]]) -> str:
    """The first batches as text, such as `3-4 AVAILABLE x1`."""
    shown = [
        f"{each['first_offset']}-{each['last_offset']} {each['delivery_state']} x{each['delivery_count']}"
        for each in batches
    ]
    return first_ones(shown, _SHOWN_BATCHES)
