"""`offsets reset-offsets`: reads what a reset is planned from, shows the plan, and commits it to an owned store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from offsets_pipeline.cli.output import write_rows
from offsets_pipeline.clock import SystemClock, parse_time_ms, time_before_ms
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.standings import owned_standings
from offsets_pipeline.coordinator.store import OwnedStore
from offsets_pipeline.errors import InvalidReset, NonEmptyGroup, NotCoordinator, OffsetsError
from offsets_pipeline.offset_reset.broker_positions import ask_broker, read_client_properties
from offsets_pipeline.offset_reset.plan import (
    MAX_OFFSET,
    FromFile,
    Scenario,
    ShiftBy,
    ToCurrent,
    ToEarliest,
    ToLatest,
    ToOffset,
    ToTime,
    plan_reset,
)
from offsets_pipeline.offset_reset.plan_file import plan_csv, read_plan
from offsets_pipeline.offset_reset.positions import read_positions
from offsets_pipeline.query.state import StateReader

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import Settings
    from offsets_pipeline.offset_reset.plan import PlannedOffset, ResetPlan, Standing
    from offsets_pipeline.offset_reset.positions import Positions
    from offsets_pipeline.semantics.partition_state import TopicPartition

_COLUMNS = ("group", "topic", "partition", "new_offset", "current_offset")
#: Commits of all groups wait together: the last of very many comes late.
_COMMIT_TIMEOUT_MS = 600_000
_NAMED_GROUPS = 5


def reset_offsets(options: argparse.Namespace, settings: Settings) -> int:
    """Show what a reset commits, or commit it; what keeps groups from being reset is told after the others are."""
    _validate_scope(options)
    named = list(dict.fromkeys(options.group or ()))
    scenario = _scenario(options, named, SystemClock())
    group_ids = list(scenario.offsets) if isinstance(scenario, FromFile) else named or None
    try:
        store = OwnedStore.open(options.store)
    except NotCoordinator:
        if options.execute:
            raise NotCoordinator(
                f"{options.store} is a mirrored store: only its broker may write (R4); what --export prints is for "
                "kafka-consumer-groups --reset-offsets --execute --from-file"
            ) from None
        from offsets_pipeline.cli.answers import tell_unfolded
        from offsets_pipeline.coordinator.mirrored_standings import mirrored_standings

        reader = StateReader(options.store)
        tell_unfolded(reader, options.store)
        plan = _plan(options, scenario, mirrored_standings(reader, group_ids))
        _show(options, plan, plan.offsets, "--export prints it for kafka-consumer-groups --reset-offsets --from-file")
        return _status(plan, {})
    partitions = None if group_ids is None else {store.partition_for(group_id) for group_id in group_ids}
    with Coordinator.open(store, settings, partitions=partitions, housekeeping=False) as coordinator:
        plan = _plan(options, scenario, owned_standings(coordinator, group_ids))
        failed = _commit(coordinator, plan.offsets) if options.execute else {}
    _show(options, plan, [each for each in plan.offsets if each.group_id not in failed], "--execute commits it")
    return _status(plan, failed)


def _validate_scope(options: argparse.Namespace) -> None:
    if options.command_config is not None and options.bootstrap_server is None:
        raise InvalidReset("--command-config is for --bootstrap-server: name the broker too")
    if options.from_file is not None:
        if options.topic or options.all_topics:
            raise InvalidReset("--from-file says by itself which partitions are reset: leave out --topic, --all-topics")
        return
    if not (options.group or options.all_groups):
        raise InvalidReset("which groups? --group G (may be repeated) or --all-groups")
    if not (options.topic or options.all_topics):
        raise InvalidReset("which partitions? --topic T[:P,P...] (may be repeated) or --all-topics")


def _scenario(options: argparse.Namespace, group_ids: Sequence[str], clock: Clock) -> Scenario:
    plain: tuple[tuple[bool, Scenario], ...] = (
        (options.to_earliest, ToEarliest()),
        (options.to_latest, ToLatest()),
        (options.to_current, ToCurrent()),
    )
    for is_chosen, scenario in plain:
        if is_chosen:
            return scenario
    if options.to_offset is not None:
        return ToOffset(options.to_offset)
    if options.shift_by is not None:
        return ShiftBy(options.shift_by)
    if options.to_datetime is not None:
        return _to_time(parse_time_ms(options.to_datetime))
    if options.by_duration is not None:
        return _to_time(time_before_ms(clock.now_ms(), options.by_duration))
    return FromFile(read_plan(Path(options.from_file), group_ids))


def _to_time(time_ms: int) -> ToTime:
    """No record is older than 1970: to a broker, times before that have meanings of their own."""
    return ToTime(min(max(0, time_ms), MAX_OFFSET))


def _plan(options: argparse.Namespace, scenario: Scenario, standings: Mapping[str, Standing]) -> ResetPlan:
    return plan_reset(standings, scenario, options.topic, _positions(options, scenario, standings))


def _positions(options: argparse.Namespace, scenario: Scenario, standings: Mapping[str, Standing]) -> Positions | None:
    if options.positions is not None:
        return read_positions(Path(options.positions))
    if options.bootstrap_server is None:
        return None
    if isinstance(scenario, FromFile):
        topics = {where.topic for offsets in scenario.offsets.values() for where in offsets}
    elif options.topic:
        topics = {topic for topic, _ in options.topic}
    else:
        topics = {where.topic for standing in standings.values() for where in standing.offsets}
    config = options.command_config
    return ask_broker(
        options.bootstrap_server,
        topics,
        scenario.time_ms if isinstance(scenario, ToTime) else None,
        None if config is None else read_client_properties(Path(config)),
    )


def _commit(coordinator: Coordinator, planned: Sequence[PlannedOffset]) -> dict[str, OffsetsError]:
    """Commit, one commit a group; by group, why one was not carried out: the others are all the same."""
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


def _show(options: argparse.Namespace, plan: ResetPlan, offsets: Sequence[PlannedOffset], otherwise: str) -> None:
    """Print what is planned, or what of it was committed; ``otherwise`` is what to do with a plan."""
    for line in plan.warnings:
        sys.stderr.write(f"offsets: warning: {line}\n")
    if options.format == "csv":
        # without the name of the one --group, as kafka-consumer-groups expects it with one --group
        sys.stdout.write(plan_csv(offsets, with_groups=len(options.group or ()) != 1))
    elif offsets:
        rows = [(each.group_id, *each.where, each.new_offset, each.current_offset) for each in offsets]
        write_rows(_COLUMNS, rows, options.format)
    if offsets and not (options.execute or options.dry_run):
        sys.stderr.write(f"offsets: nothing is changed: this is the plan; {otherwise}\n")


def _status(plan: ResetPlan, failed: Mapping[str, OffsetsError]) -> int:
    """Raises what kept groups from being reset, in one line; all but the first that failed are warnings."""
    errors = list(failed.values())
    if plan.active:
        active = [f"{group_id!r} is {state}" for group_id, state in plan.active.items()]
        more = f", and {len(active) - _NAMED_GROUPS} more" if len(active) > _NAMED_GROUPS else ""
        errors.append(NonEmptyGroup(f"only inactive groups are reset: {', '.join(active[:_NAMED_GROUPS])}{more}"))
    for error in errors[1:]:
        sys.stderr.write(f"offsets: warning: {error}\n")
    if errors:
        raise errors[0]
    return 0
