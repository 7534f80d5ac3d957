"""`offsets reset-offsets`, and `delete-group` and `delete-offsets` in a live cluster: plan, show the plan, change."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from offsets_pipeline.cli.answer_times import answer_time_of
from offsets_pipeline.cli.live_cluster import kafka_options, mirrored_cluster, say_undo
from offsets_pipeline.cli.opened import open_coordinator, open_folder
from offsets_pipeline.cli.output import write_rows
from offsets_pipeline.common.clock import SystemClock, time_before_ms
from offsets_pipeline.common.input_text import counted, first_ones, printable
from offsets_pipeline.common.warnings import warn
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.errors import NonEmptyGroup, NoSuchGroup, NotCoordinator, OffsetsError
from offsets_pipeline.ingest.topic_positions.broker_positions import ask_broker
from offsets_pipeline.ingest.topic_positions.positions import read_positions
from offsets_pipeline.kafka.broker.groups_client import (
    commit_offsets_of_groups,
    delete_group_offsets,
    delete_groups,
    unstable_offsets,
)
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.repair.offset_reset.group_offsets import (
    cluster_group_offsets,
    mirrored_group_offsets,
    owned_group_offsets,
)
from offsets_pipeline.repair.offset_reset.plan import (
    MAX_OFFSET,
    FromFile,
    GroupOffsets,
    Plain,
    PlannedOffset,
    ResetPlan,
    Scenario,
    ShiftBy,
    ToOffset,
    ToTime,
    plan_csv,
    plan_reset,
    read_plan,
)
from offsets_pipeline.semantics.group_description import EMPTY
from offsets_pipeline.semantics.partition_state import TopicPartition

if TYPE_CHECKING:
    from concurrent.futures import Future

    from offsets_pipeline.cli.section_coordinator import DeleteGroup, DeleteOffsets, ResetOffsets
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.coordinator.coordinator import Coordinator
    from offsets_pipeline.kafka.broker.cluster import Cluster

_COLUMNS = ("group", "topic", "partition", "new_offset", "current_offset")
_DELETED = ("group", "topic", "partition", "committed_offset")
#: Commits of all groups wait together, so the last of many needs long.
_COMMIT_TIMEOUT_MS = 600_000
_NAMED_GROUPS = 5


def reset_offsets(options: ResetOffsets, settings: Settings) -> None:
    """Show the plan of a reset, or commit it.

    Raises NotCoordinator and the errors of `plan_reset`. After the others are reset, raises the error of the groups
    that cannot be.
    """
    named = list(dict.fromkeys(options.groups))
    scenario = _scenario(options, named)
    group_ids = list(scenario.offsets) if isinstance(scenario, FromFile) else named or None
    folder = open_folder(options.store, settings)
    try:
        store = OwnedStore.open(folder)
    except NotCoordinator:
        if options.live.bootstrap_server is not None:
            _reset_cluster(options, settings, scenario, group_ids)
            return
        if options.execute:
            raise NotCoordinator(
                f"cannot reset offsets in {options.store}: in a mirrored store only the broker writes (R4); "
                "name the cluster with --bootstrap-server"
            ) from None
        reader = StateReader(folder, settings.questions.max_unfolded_records)
        answer_time_of(reader, options.store, settings)
        plan = _plan(options, settings, scenario, mirrored_group_offsets(reader, group_ids))
        _show(options, plan.offsets, None)
        raise_errors(plan.active, [], "reset")
        return
    with open_coordinator(store, settings, group_ids) as coordinator:
        plan = _plan(options, settings, scenario, owned_group_offsets(coordinator, group_ids))
        failed = _commit(coordinator, plan.offsets) if options.execute else {}
    committed = [each for each in plan.offsets if each.group_id not in failed]
    if options.execute:
        _say_committed(committed, options.store)
    try:
        _show(options, committed, options.store)
    finally:
        raise_errors(plan.active, [*failed.values()], "reset")


def _reset_cluster(
    options: ResetOffsets, settings: Settings, scenario: Scenario, group_ids: Sequence[str] | None
) -> None:
    """Show the plan of a reset in the cluster that the store mirrors, or commit it."""
    with mirrored_cluster(options.store, options.live, settings) as cluster:
        plan = _plan(options, settings, scenario, cluster_group_offsets(cluster, group_ids))
        offsets = [(each.group_id, each.where, each.new_offset, "") for each in plan.offsets]
        before_ms = SystemClock().now_ms() - 1
        failed = commit_offsets_of_groups(cluster, offsets) if options.execute else {}
    committed = [each for each in plan.offsets if (each.group_id, each.where) not in failed]
    changed = {each.group_id for each in committed if each.current_offset is not None}
    if options.execute:  # first: stdout may be a full disk
        _say_committed(committed, cluster.settings.at)
        say_undo(options, options.live, sorted(changed), before_ms)
    try:
        _show(options, committed, cluster.settings.at)
    finally:
        raise_errors(plan.active, [*failed.values()], "reset")


def _scenario(options: ResetOffsets, group_ids: Sequence[str]) -> Scenario:
    for plain in Plain:
        if getattr(options, plain.name.lower()):
            return plain
    if options.to_offset is not None:
        return ToOffset(options.to_offset)
    if options.shift_by is not None:
        return ShiftBy(options.shift_by)
    before = options.by_duration
    time_ms = options.to_datetime_ms if before is None else time_before_ms(SystemClock().now_ms(), before)
    if time_ms is not None:
        return ToTime(min(max(0, time_ms), MAX_OFFSET))  # a broker gives times before 1970 other meanings
    if options.from_file is not None:
        return FromFile(read_plan(options.from_file, group_ids))
    raise AssertionError("one scenario is required")


def _plan(
    options: ResetOffsets, settings: Settings, scenario: Scenario, standings: Mapping[str, GroupOffsets]
) -> ResetPlan:
    """Plan with the positions of topics that a file or the brokers have, if the command line names one of them.

    Prints the plan's warnings.
    """
    positions = None
    if options.positions is not None:
        positions = read_positions(options.positions)
    elif options.live.bootstrap_server is not None:
        if isinstance(scenario, FromFile):
            topics = {where.topic for offsets in scenario.offsets.values() for where in offsets}
        elif options.topics:
            topics = {topic for topic, _ in options.topics}
        else:
            topics = {where.topic for standing in standings.values() for where in standing.offsets}
        time_ms = scenario.time_ms if isinstance(scenario, ToTime) else None
        positions = ask_broker(kafka_options(options.live, settings), topics, time_ms)
    plan = plan_reset(standings, scenario, options.topics or None, positions)
    for line in plan.warnings:
        warn(line)
    return plan


def _commit(coordinator: Coordinator, planned: Sequence[PlannedOffset]) -> dict[str, OffsetsError]:
    """Commit, one request a group; returns the errors of groups whose commit failed. The other commits are done."""
    offsets: dict[str, dict[TopicPartition, int]] = {}
    for each in planned:
        offsets.setdefault(each.group_id, {})[each.where] = each.new_offset
    commits: dict[str, Future[None]] = {}
    failed: dict[str, OffsetsError] = {}
    for group_id, of_it in offsets.items():
        try:
            commits[group_id] = coordinator.commit_offsets_async(group_id, of_it, timeout_ms=_COMMIT_TIMEOUT_MS)
        except OffsetsError as error:
            failed[group_id] = error
    for group_id, commit in commits.items():
        try:
            commit.result()
        except OffsetsError as error:
            failed[group_id] = error
    return failed


def _say_committed(offsets: Sequence[PlannedOffset], target: str) -> None:
    """Write to stderr how many offsets were committed, if any."""
    if offsets:
        of_groups = _named_groups({each.group_id for each in offsets})
        sys.stderr.write(f"offsets: {counted(len(offsets), 'offset')} of {of_groups} committed in {target}\n")


def _show(options: ResetOffsets, offsets: Sequence[PlannedOffset], target: str | None) -> None:
    """Print the planned or committed offsets. ``target`` is what `--execute` commits to; None: it cannot."""
    if options.export or options.format_ == "csv":
        # kafka-consumer-groups expects no group names with one --group
        sys.stdout.write(plan_csv(offsets, with_groups=len(options.groups) != 1))
    elif offsets:
        rows = [(each.group_id, *each.where, each.new_offset, each.current_offset) for each in offsets]
        if options.format_ == "json":
            write_rows((*_COLUMNS, "committed"), [(*row, options.execute) for row in rows], "json")
        else:
            write_rows(_COLUMNS, rows, options.format_)
    if offsets and not (options.execute or options.dry_run):
        export = "--export prints it for kafka-consumer-groups --reset-offsets --from-file"
        otherwise = export if target is None else "--execute commits it"
        sys.stderr.write(f"offsets: nothing is changed: this is the plan; {otherwise}\n")


def delete_in_cluster(
    options: DeleteGroup | DeleteOffsets,
    settings: Settings,
    group_ids: Sequence[str],
    places: Sequence[tuple[str, int | None]] | None = None,
) -> None:
    """Show the offsets that would be deleted, or delete them.

    Deletes the groups, or with ``places`` only offsets of these partitions, and of all partitions of a topic (None).
    After the others are deleted, raises NoSuchGroup, NonEmptyGroup or the broker's error.
    """
    asked = options.deletion
    with mirrored_cluster(options.store, asked.live, settings) as cluster:
        standings = cluster_group_offsets(cluster, group_ids)
        planned: dict[str, dict[TopicPartition, int | None]] = {
            group_id: {**each.offsets} if places is None else _chosen(cluster, group_id, each.offsets, places)
            for group_id, each in standings.items()
            if each.state == EMPTY
        }
        before_ms, at = SystemClock().now_ms() - 1, cluster.settings.at
        errors: list[OffsetsError] = []
        whole: set[str] = set()  # groups that are, or would be, deleted with all offsets
        stay: set[tuple[str, TopicPartition]] = set()  # offsets that could not be deleted
        if places is None:
            of_groups, first = delete_groups(cluster, planned) if asked.execute else ({}, set())
            errors += of_groups.values()
            whole = planned.keys() - of_groups.keys()
            stay = {(group_id, where) for group_id in of_groups for where in planned[group_id]} - first
        elif asked.execute:
            for group_id, offsets in planned.items():
                refused = delete_group_offsets(cluster, group_id, offsets)
                errors += refused.values()
                stay |= {(group_id, TopicPartition(*where)) for where in refused}
    rows: list[tuple[object, ...]] = []
    for group_id, offsets in planned.items():
        gone = [(group_id, *where, offset) for where, offset in offsets.items() if (group_id, where) not in stay]
        rows += gone or ([(group_id, None, None, None)] if group_id in whole else [])
    if rows and asked.execute:  # first: stdout may be a full disk
        if whole:
            sys.stderr.write(f"offsets: {_named_groups(whole)} deleted from {at}\n")
        of_others = [str(row[0]) for row in rows if row[0] not in whole]
        if of_others:
            number, others = counted(len(of_others), "offset"), _named_groups(set(of_others))
            sys.stderr.write(f"offsets: {number} of {others} deleted from {at}\n")
        say_undo(options, asked.live, sorted({str(row[0]) for row in rows if row[-1] is not None}), before_ms)
    missing = [name for name, each in standings.items() if each.state is None]
    unknown = [NoSuchGroup.of(missing, at)] if missing else []
    active = {name: str(each.state) for name, each in standings.items() if each.state not in {None, EMPTY}}
    try:
        if rows or asked.format_ != "table":
            write_rows(_DELETED, rows, asked.format_)
        if rows and not asked.execute:
            sys.stderr.write("offsets: nothing is changed: this is the plan; --execute deletes\n")
        elif not rows and planned and not errors:
            warn(f"{_named_groups(planned)} has no such offset: nothing to delete")
    finally:
        raise_errors(active, [*unknown, *errors], "change")


def _chosen(
    cluster: Cluster,
    group_id: str,
    offsets: Mapping[TopicPartition, int],
    places: Sequence[tuple[str, int | None]],
) -> dict[TopicPartition, int | None]:
    """The offsets of these partitions in order, of all partitions of a topic (None).

    Also those that are only pending in a transaction, as None: a broker deletes them, too (R12).
    """
    topics = cluster.topics({topic for topic, partition in places if partition is None})
    named = {TopicPartition(topic, at) for topic, at in places if at is not None}
    named |= {TopicPartition(topic.name, at) for topic in topics.values() for at in topic.partitions}
    named |= {where for where in offsets if (where.topic, None) in places}
    found = unstable_offsets(cluster, group_id, named) | offsets.keys()
    return {where: offsets.get(where) for where in sorted(named & found)}


def _named_groups(group_ids: Collection[str]) -> str:
    """One group by its id, or the number of several."""
    return f"group {printable(next(iter(group_ids)))}" if len(group_ids) == 1 else f"{len(group_ids)} groups"


def raise_errors(active: Mapping[str, str], failed: Sequence[OffsetsError], action: str) -> None:
    """Raise the first error of a group that was left out; warns of the others. ``active``: groups with their states."""
    errors = list(dict.fromkeys(failed))
    if active:
        named = [f"{group_id!r} is {state}" for group_id, state in active.items()]
        said = f"cannot {action} groups with members: {first_ones(named, _NAMED_GROUPS)}; stop the members first"
        errors.append(NonEmptyGroup(said))
    for error in errors[1:]:
        warn(str(error))
    if errors:
        raise errors[0]
