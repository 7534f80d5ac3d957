"""Change one rule at a time and see whether a test notices: for each rule a mutation of each replay that has it.

    python scripts/mutations.py [R12 | STATE | DOOR ...]

STATE breaks the writers of the state tables (docs/adr/0037), DOOR the access to Delta tables (docs/adr/0015).

A mutation replaces one text in one file of a copy of the project. The tests named with it run until an assertion fails.
The program prints a table and exits with 1 if a mutation survives, does not compile, or its text is no longer in the
file. First it runs the same tests without a mutation: a test that fails anyway notices nothing.
scripts/generated_mutations.py makes mutations of all packages from the syntax.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a program, not as a module

from scripts.mutation_runs import NOTICED, PACKAGE, RAISED, ROOT, SURVIVED, MutatedProject, Outcome, mutated_project

UNIT = "tests/unit/semantics"
PROPERTY = ("tests/property/test_fold_properties.py", "tests/property/test_cleaning_keeps.py")
RULES = (f"{UNIT}/test_partition_state.py", f"{UNIT}/test_columnar_replay.py", f"{UNIT}/test_group_description.py")
#: The narrowest tests come first: a run ends with the first that fails.
REPLAYS = (*RULES, UNIT, *PROPERTY)
COMPACTION = (f"{UNIT}/test_transactions.py", f"{UNIT}/test_early_compaction.py", *REPLAYS)
PARTITIONING = (f"{UNIT}/test_partitioning.py", *REPLAYS)
CLEANING = (f"{UNIT}/test_survivors.py", PROPERTY[1], *REPLAYS)
RECORD = ("tests/unit/record/test_decode.py", "tests/unit/record/test_commit_columns.py", *RULES)
#: The clauses of `classic`.
CLASSIC = (f"{UNIT}/test_classic_semantics.py", *PROPERTY)
RETENTION = ("tests/unit/coordinator/test_expiration.py", "tests/property/test_retention_properties.py")
COORDINATOR = ("tests/unit/coordinator",)
STATE_UNIT = "tests/unit/state"
STATE_ON_SPARK = "tests/streaming/test_writers_of_state.py"
STATE_WRITER = (STATE_UNIT,)
LATE_ROWS_ON_SPARK = (f"{STATE_ON_SPARK}::test_views_show_no_late_row_behind_a_reload",)
QUESTIONS = ("tests/unit/state/test_current.py",)
PUBLISHED_AS_OF = ("tests/unit/state/test_published_as_of.py",)
DOOR = ("tests/unit/delta/test_table_folder.py", "tests/unit/delta")
REQUESTS = ("tests/unit/delta/test_lost_requests.py",)
FORMATS = ("tests/unit/coordinator/test_table_features.py", "tests/unit/state/test_fold_log.py")
IDENTIFIERS = "tests/unit/test_identifiers.py"
APPENDS = ("tests/unit/coordinator/test_log.py", "tests/unit/coordinator/test_replaced_store.py", *COORDINATOR)

COLUMNS, ROWS, BOTH, COORDINATES, FOLDS, TABLES = "columns", "rows", "both", "coordinator", "fold", "delta"
STATE = "semantics/partition_state.py"
REPLAY = "semantics/columnar_replay.py"
MERGE, CHANGES, FOLD, PROGRESS = (
    f"fold/state/{name}.py" for name in ("merge_on_read", "changes", "fold", "fold_progress")
)
UNFOLDED, STORED = "fold/state/unfolded.py", "fold/state/stored_rows.py"
PUBLISHED, PUBLISHING, DERIVED = (
    f"fold/state/{name}.py" for name in ("published_rows", "publishing", "derived_tables")
)
CONNECT_TESTS = ("tests/unit/connect",)
SHARE_TESTS = ("tests/unit/semantics/test_share_state.py", "tests/unit/state/test_share_state_fold.py")
SHARE_LAG = ("tests/unit/lag/test_share_lag.py",)
SHARE_STATE, SHARE_REPLAY = "semantics/share_state.py", "semantics/share_replay.py"
TARGET = "connect/target_table.py"
EXACTLY_ONCE = "connect/exactly_once.py"
TARGET_STATES = "connect/target_states.py"
TOPIC_ROWS, TOPIC_COLUMNS = "semantics/topic_state.py", "semantics/topic_replay.py"
ANSWERING, CONNECT_VIEWS, WRITER, MANAGEMENT = (
    f"connect/{name}.py"
    for name in ("connector_offsets", "connector_views", "offset_backing_store", "offset_management")
)
STORAGE, PUT, DOOR_FILE = (f"store/delta/{name}.py" for name in ("storage", "retry", "table_folder"))


class Mutation(NamedTuple):
    """A deliberate fault: in ``file``, ``old`` becomes ``new``. ``engine`` names the implementation of the rule."""

    rule: str
    engine: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = REPLAYS


MUTATIONS = [
    Mutation(
        "R1", ROWS, "semantics/partitioning.py", "(0 if value == _INT_MIN else abs(value))", "abs(value)", PARTITIONING
    ),
    Mutation(
        "R1",
        COLUMNS,
        "semantics/partitioning.py",
        "np.where(signed == _INT_MIN, 0, np.abs(signed))",
        "np.abs(signed)",
        PARTITIONING,
    ),
    Mutation("R1", ROWS, STATE, "None if group is None or self.is_misplaced(group_id) else group", "group"),
    Mutation(
        "R1",
        COLUMNS,
        "semantics/partitioning.py",
        "to_numpy(zero_copy_only=False)] != log_partition.to_numpy())",
        "to_numpy(zero_copy_only=False)] < 0)",
    ),
    Mutation(
        "R1",
        ROWS,
        "semantics/partitioning.py",
        "return not semantics.is_classic and partition",
        "return partition",
        CLASSIC,
    ),
    Mutation(
        "R1",
        COLUMNS,
        "semantics/partitioning.py",
        "        return pa.repeat(pa.scalar(value=False), len(group_ids))\n",
        "        pass\n",
        CLASSIC,
    ),
    Mutation("R2", COLUMNS, "semantics/transactions.py", "(step > 1)", "(step > 2)", COMPACTION),
    Mutation(
        "R3",
        BOTH,
        "kafka/record/decode.py",
        'raise CorruptRecord("key", "record has no key")',
        "key = bytes(2)",
        RECORD,
    ),
    Mutation(
        "R3",
        ROWS,
        STATE,
        "                self._delete(key.group_id, where, row.producer_id)\n",
        "                pass\n",
    ),
    Mutation(
        "R3",
        COLUMNS,
        "kafka/record/commit_columns.py",
        "of_key.valid & (self.tombstone | decodes)",
        "of_key.valid & decodes",
    ),
    Mutation("R4", COORDINATES, "coordinator/owned_store.py", "if properties.kind != OWNED:", "if False:", COORDINATOR),
    Mutation("R5", BOTH, "semantics/group_types.py", "(3, 4, 5, 6, 7, 8, 16)", "(3, 4, 5, 6, 7, 8)"),
    Mutation(
        "R5", BOTH, "semantics/group_types.py", "(10, 11, 12, 13, 14, 15), SHARE", "(10, 11, 12, 13, 14, 15), STREAMS"
    ),
    Mutation("R5", COLUMNS, "semantics/compaction.py", "[bytes((0, 0)), bytes((0, 1))]", "[bytes((0, 1))]", COMPACTION),
    Mutation("R6", ROWS, STATE, "self.unknown_records += 1", "pass"),
    Mutation("R6", ROWS, STATE, "self.quarantined[row.record_offset] = str(corrupt)", "pass"),
    Mutation("R6", BOTH, "semantics/group_types.py", "record_type > GROUP_METADATA", "record_type > 99"),
    Mutation("R6", COLUMNS, REPLAY, "if not commits.valid.all():", "if False:"),
    Mutation(
        "R6",
        COLUMNS,
        "semantics/compaction.py",
        "self.of_offsets = key_decodes & decodes",
        "self.of_offsets = key_decodes & True",
        COMPACTION,
    ),
    Mutation("R6", BOTH, "semantics/survivors.py", "np.isin(last, unread)", "np.isin(last, unread[:0])", CLEANING),
    Mutation("R7", COLUMNS, "kafka/record/commit_columns.py", "& ~(legacy_key & (self.version != 0))", "", RECORD),
    Mutation(
        "R7",
        COLUMNS,
        "kafka/record/commit_columns.py",
        "mask=self.tombstone | (column == NONE_ON_WIRE)",
        "mask=self.tombstone",
        RECORD,
    ),
    Mutation("R7", ROWS, "kafka/record/message_types.py", "NONE_SENTINEL = -1", "NONE_SENTINEL = -2", RECORD),
    Mutation("R7", ROWS, STATE, "None if topic_id == NO_TOPIC_ID else topic_id", "topic_id"),
    Mutation("R8", ROWS, "kafka/record/schema.py", "(tag, reader.raw(size,", "(tag, reader.raw(max(size, 1),", RECORD),
    Mutation(
        "R8",
        ROWS,
        "kafka/record/schema.py",
        "is_null = present <= 0 if tagged else present < 0",
        "is_null = present < 0",
        RECORD,
    ),
    Mutation(
        "R9",
        ROWS,
        STATE,
        'TopicPartition(key.fields["topic"], key.fields["partition"])',
        'TopicPartition(key.fields["topic"], 0)',
    ),
    Mutation("R9", COLUMNS, REPLAY, 'codes_of(commits.identities()), table["log', 'codes_of(table["key"]), table["log'),
    Mutation(
        "R10", ROWS, STATE, "held.record_offset < offset.record_offset", "held.record_offset > offset.record_offset"
    ),
    Mutation(
        "R10", COLUMNS, "semantics/compaction.py", "if np.any(np.diff(record_offset) < 0):", "if False:", COMPACTION
    ),
    Mutation(
        "R10",
        COLUMNS,
        "semantics/transactions.py",
        "position[later] = np.maximum(position[later], last)",
        "pass",
        CLASSIC,
    ),
    Mutation(
        "R10", COLUMNS, "semantics/compaction.py", "np.lexsort((rank, position))", "np.lexsort((position,))", CLASSIC
    ),
    Mutation("R10", BOTH, "semantics/survivors.py", "found.position[visible]", "rows[visible]", CLEANING),
    Mutation("R11", ROWS, STATE, "self.pending.pop(producer_id, {})", "self.pending.get(producer_id, {})"),
    Mutation("R11", ROWS, STATE, "            if control_type == COMMIT:", "            if control_type == ABORT:"),
    Mutation(
        "R11",
        COLUMNS,
        "semantics/transactions.py",
        "found &= transaction_of[candidate] == transaction_of[order]",
        "pass",
        COMPACTION,
    ),
    Mutation("R11", COLUMNS, "semantics/transactions.py", "COMMITTED, ABORTED)", "COMMITTED, COMMITTED)", COMPACTION),
    Mutation("R12", ROWS, STATE, "self.pending[producer].get(group_id, {}).pop(where, None)", "pass"),
    Mutation("R12", COLUMNS, REPLAY, "waiting = waiting[offset[waiting] > removed[identity[waiting]]]", "pass"),
    Mutation(
        "R12",
        COLUMNS,
        REPLAY,
        'pc.and_(in_transaction, table["value"].is_valid())',
        "in_transaction",
    ),
    Mutation(
        "R12", COLUMNS, "semantics/compaction.py", "part.plain | part.tombstone  # R12", "part.plain  # R12", COMPACTION
    ),
    Mutation("R12", ROWS, STATE, "not is_classic or producer == producer_id", "True", CLASSIC),
    Mutation("R12", ROWS, STATE, "if not is_classic or producer_id is None:", "if True:", CLASSIC),
    Mutation(
        "R12",
        COLUMNS,
        "semantics/transactions.py",
        "counts &= ~(tombstone & in_transaction)",
        "pass",
        CLASSIC,
    ),
    Mutation(
        "R12",
        COLUMNS,
        "semantics/compaction.py",
        "visible[rows] = found.visible & ~brought_back",
        "visible[rows] = found.visible",
        (f"{UNIT}/test_early_compaction.py", *CLASSIC),
    ),
    Mutation(
        "R12",
        COLUMNS,
        "fold/state/changes.py",
        'if commit["position"] != commit["record_offset"]:',
        "if False:",
        ("tests/unit/state/test_semantics.py", *CLASSIC),
    ),
    Mutation(
        "R12",
        BOTH,
        "fold/state/merge_on_read.py",
        "CASE WHEN committed_offset IS NULL THEN -1 ELSE record_offset END",
        "record_offset",
        ("tests/unit/state/test_semantics.py",),
    ),
    Mutation("R13", ROWS, STATE, "offsets.pop(where, None)  # R13", "offsets.pop(where)"),
    Mutation("R13", ROWS, STATE, "self.records.pop(name, None)", "self.records.pop(name)"),
    Mutation("R14", ROWS, STATE, "self.groups[group_id] = Group(CLASSIC)  # R14", "pass"),
    Mutation("R14", ROWS, STATE, "self.groups.pop(group_id, None)", "pass"),
    Mutation("R14", ROWS, STATE, " or group.group_type != group_type", ""),
    Mutation("R14", ROWS, STATE, "group is None or group.group_type == SHARE else group", "group is None else group"),
    Mutation("R14", ROWS, STATE, "_NO_OFFSETS if self.group(group_id) is None else self", "self"),
    Mutation("R14", COLUMNS, "semantics/group_description.py", "CLASSIC if is_simple else None", "None"),
    Mutation(
        "R14", COLUMNS, "semantics/group_description.py", "removed = max(removed, _at(row.tombstone_offset))", "pass"
    ),
    Mutation(
        "R14",
        COLUMNS,
        "semantics/group_description.py",
        "offset for name, offset in newest.items() if name != last",
        "-1 for name in newest",
    ),
    Mutation(
        "R14",
        COLUMNS,
        REPLAY,
        "values = np.flatnonzero(~commits.tombstone)",
        'values = np.flatnonzero(~commits.tombstone & ~_mask(table["producer_id"].is_valid()))',
    ),
    Mutation(
        "R14",
        COLUMNS,
        "semantics/compaction.py",
        "return newest[aborted[newest]]",
        "return newest[:0]",
        COMPACTION,
    ),
    Mutation(
        "R14",
        ROWS,
        STATE,
        "            self.groups[group_id] = Group(CLASSIC)\n        elif",
        "            pass\n        elif",
        CLASSIC,
    ),
    Mutation("R14", ROWS, STATE, "            del self.groups[group_id]", "            pass", CLASSIC),
    Mutation("R14", COLUMNS, REPLAY, "holds[pending] = True", "pass", CLASSIC),
    Mutation(
        "R14",
        COLUMNS,
        "semantics/group_description.py",
        "commit >= max(removed, 0)",
        "commit > max(removed, 0)",
        CLASSIC,
    ),
    Mutation(
        "R14",
        COLUMNS,
        "fold/state/changes.py",
        'groups_in(visible.filter(visible["committed_offset"].is_valid()))',
        "set()",
        ("tests/unit/state/test_semantics.py",),
    ),
    Mutation("R14", BOTH, "semantics/survivors.py", "{} if is_classic else dict", "dict", CLEANING),
    Mutation("R15", ROWS, STATE, "if record_offset < self.end:", "if record_offset < 0:"),
    Mutation(
        "R15",
        COLUMNS,
        "semantics/effects.py",
        "behind = (offset < of_each_row(self.folded_to, partition)) & ~carried",
        "behind = (offset < 0) & ~carried",
    ),
    Mutation(
        "R16",
        COLUMNS,
        "semantics/compaction.py",
        "last_of_each(part.code[visible] * 2 + part.tombstone[visible], part.offset[visible])",
        "last_of_each(part.code[visible] * 2, part.offset[visible])",
        COMPACTION,
    ),
    Mutation(
        "R16",
        COLUMNS,
        "semantics/compaction.py",
        'code = codes_of(table["key"]) * 2 + ',
        'code = codes_of(table["key"]) * 2 + 0 * ',
        COMPACTION,
    ),
    Mutation(
        "R17",
        ROWS,
        STATE,
        "            yield from self.pending[producer_id].get(group_id, _NO_OFFSETS)",
        "            yield from ()",
    ),
    Mutation("R17", COLUMNS, REPLAY, "np.flatnonzero(in_transaction & (outcome == OPEN))", "visible[:0]"),
    Mutation(
        "R17",
        COORDINATES,
        "coordinator/handlers.py",
        "if require_stable and state",
        "if False and state",
        ("tests/unit/coordinator/test_commits.py",),
    ),
    Mutation(
        "R18",
        COORDINATES,
        "semantics/retention.py",
        "return Rule.SUBSCRIBED if group.is_subscribed_to(topic) else Rule.NOT_SUBSCRIBED\n",
        "return Rule.NOT_SUBSCRIBED\n",
        RETENTION,
    ),
    Mutation(
        "R18",
        COORDINATES,
        "semantics/group_description.py",
        'member.get("subscribed_topic_names", sources)',
        'member.get("subscribed_topic_names")',
        RETENTION,
    ),
    Mutation("R19", COORDINATES, "semantics/retention.py", "now_ms >= self.at_ms", "now_ms > self.at_ms", RETENTION),
    Mutation(
        "R19",
        COORDINATES,
        "semantics/retention.py",
        "emptied_ms + retention_ms",
        "offset.commit_timestamp_ms + retention_ms",
        RETENTION,
    ),
    Mutation("R20", COORDINATES, "semantics/retention.py", "        rule = Rule.PENDING", "        pass", RETENTION),
    Mutation("R20", COORDINATES, "semantics/retention.py", "semantics.is_classic else held", "0 else held", CLASSIC),
    Mutation(
        "R20", COORDINATES, "semantics/retention.py", "return not self.has_open_transaction and ", "return ", RETENTION
    ),
    Mutation("R21", COORDINATES, "semantics/retention.py", "and group.is_empty", "", RETENTION),
    Mutation("R21", COORDINATES, "semantics/retention.py", " and gets_tombstone(group, semantics)", "", CLASSIC),
    Mutation(
        "R22",
        COORDINATES,
        "coordinator/expiration.py",
        "for each in expired.expired]",
        "for each in expired.expired[1:]]",
        RETENTION,
    ),
    Mutation(
        "R23",
        BOTH,
        "semantics/survivors.py",
        "self._keep = self._open.copy()",
        "self._keep = np.zeros_like(self._open)",
        CLEANING,
    ),
    Mutation("R23", BOTH, "semantics/survivors.py", "        self._keep_what_hides(keep)\n", "", CLEANING),
    Mutation("R23", BOTH, "semantics/survivors.py", "        self._keep_proofs(keep)\n", "", CLEANING),
    Mutation("R23", BOTH, "semantics/survivors.py", "known & ~self._open & ~self._aborted", "known", CONNECT_TESTS),
    Mutation(
        "R23", BOTH, "semantics/survivors.py", "        keep[last[~self._aged[last]]] = True", "        pass", CLEANING
    ),
    Mutation("R23", BOTH, "semantics/survivors.py", "        keep[self._marker[ended]] = True\n", "", CONNECT_TESTS),
    Mutation("R23", BOTH, "semantics/survivors.py", "        keep[self._marker[ended]] = True\n", "", CLEANING),
    Mutation("R23", BOTH, "semantics/survivors.py", "live += [newest for", "live += [] and [newest for", CLEANING),
    Mutation(
        "R24",
        COORDINATES,
        "coordinator/handlers.py",
        'raise NoSuchGroup(f"no group {group_id!r}; commit',
        'raise UnknownMemberId(f"no group {group_id!r}; commit',
        ("tests/unit/coordinator/test_commits.py",),
    ),
    Mutation(
        "R25",
        COORDINATES,
        "coordinator/handlers.py",
        "if member.generation < 0 and group.is_empty:",
        "if member.generation < 0:",
        ("tests/unit/coordinator/test_commits.py",),
    ),
    Mutation(
        "R25",
        COORDINATES,
        "coordinator/handlers.py",
        "if member.generation != group.generation:",
        "if False:",
        ("tests/unit/coordinator/test_commits.py",),
    ),
    Mutation(
        "R26",
        COORDINATES,
        "coordinator/handlers.py",
        "    if not group.is_empty:",
        "    if False:",
        ("tests/unit/coordinator/test_groups.py", *COORDINATOR),
    ),
    Mutation(
        "R26",
        COORDINATES,
        "coordinator/handlers.py",
        "if group.is_subscribed_to(topic):",
        "if False:",
        ("tests/unit/coordinator/test_groups.py", *COORDINATOR),
    ),
    Mutation(
        "R27",
        COORDINATES,
        "coordinator/core.py",
        "if acks is None else acks",
        "",
        ("tests/unit/coordinator/test_appender.py", *COORDINATOR),
    ),
    Mutation(
        "R28",
        COORDINATES,
        "coordinator/loading.py",
        "if partition.status is LoadStatus.LOADING:\n            raise",
        "if False:\n            raise",
        ("tests/unit/coordinator/test_loading.py",),
    ),
    Mutation(
        "R29",
        BOTH,
        "questions/lag/starting_offset.py",
        "return position.earliest, ",
        "return position.latest, ",
        ("tests/unit/lag/test_starting_offset.py",),
    ),
    Mutation(
        "R29",
        BOTH,
        "questions/lag/starting_offset.py",
        "and position.is_epoch_ahead",
        "and False",
        ("tests/unit/lag/test_starting_offset.py",),
    ),
    Mutation(
        "R30", ROWS, TOPIC_ROWS, "if row.producer_id is None else self.pending[row.producer_id]", "", CONNECT_TESTS
    ),
    Mutation("R30", ROWS, TOPIC_ROWS, "known.record_offset < record.record_offset", "True", CONNECT_TESTS),
    Mutation(
        "R30", COLUMNS, TOPIC_COLUMNS, "(plain | (outcome == COMMITTED)))\n    last", "plain)\n    last", CONNECT_TESTS
    ),
    Mutation("R30", COLUMNS, TOPIC_COLUMNS, "(plain | (outcome != OPEN))", "(plain | ~plain)", CONNECT_TESTS),
    Mutation("R30", COLUMNS, TOPIC_COLUMNS, "is_known[self.key_code] & decodes", "decodes", CONNECT_TESTS),
    Mutation("R30", BOTH, "semantics/connect_keys.py", "sort_keys=True", "sort_keys=False", CONNECT_TESTS),
    Mutation(
        "R30",
        BOTH,
        CONNECT_VIEWS,
        '"record_timestamp IS NOT NULL, record_timestamp, record_offset"',
        '"record_offset, record_timestamp"',
        CONNECT_TESTS,
    ),
    Mutation("R30", BOTH, CONNECT_VIEWS, 'age = "record_offset" if', 'age = "record_timestamp" if', CONNECT_TESTS),
    Mutation(
        "R30", COORDINATES, "connect/connect_log.py", "max(records.values()", "min(records.values()", CONNECT_TESTS
    ),
    Mutation("R30", BOTH, "connect/redaction.py", "if name in KEPT_SETTINGS and", "if", CONNECT_TESTS),
    Mutation(
        "R31", COORDINATES, WRITER, "self._flushing | self._queued", "self._queued | self._flushing", CONNECT_TESTS
    ),
    Mutation("R31", COORDINATES, WRITER, "if number == self._flush_number:", "if True:", CONNECT_TESTS),
    Mutation(
        "R31",
        COORDINATES,
        WRITER,
        "if self._flushing is not None:\n                raise",
        "if False:\n                raise",
        CONNECT_TESTS,
    ),
    Mutation(
        "R31",
        COORDINATES,
        "connect/offset_committer.py",
        "                self._writer.cancel_flush()\n",
        "",
        CONNECT_TESTS,
    ),
    Mutation("R31", COORDINATES, TARGET, "unless_advanced=[_epoch_of(application)],", "", CONNECT_TESTS),
    Mutation("R31", COORDINATES, EXACTLY_ONCE, "if flush <= note.flush:", "if False:", CONNECT_TESTS),
    Mutation("R31", COORDINATES, EXACTLY_ONCE, "> note.record_offset >= 0:", "> 2**62:", CONNECT_TESTS),
    Mutation("R31", COORDINATES, EXACTLY_ONCE, ".epoch > self._epoch:", ".epoch > 2**62:", CONNECT_TESTS),
    Mutation("R32", COORDINATES, TARGET_STATES, "if state in _NO_WRITES:", "if False:", CONNECT_TESTS),
    Mutation("R32", COORDINATES, TARGET_STATES, "if state != STOPPED:", "if False:", CONNECT_TESTS),
    Mutation("R32", COORDINATES, TARGET_STATES, "if is_deleted(log, connector):", "if False:", CONNECT_TESTS),
    Mutation(
        "R32",
        COORDINATES,
        MANAGEMENT,
        "own, offset_value(offset)))",
        "own, offset_value(offset or {})))",
        CONNECT_TESTS,
    ),
    Mutation("R32", COORDINATES, "connect/sink_offsets.py", "if len(new) < len(wanted):", "if False:", CONNECT_TESTS),
    Mutation("R32", BOTH, ANSWERING, 'f"{SINK_GROUP_PREFIX}{connector}"', "connector", CONNECT_TESTS),
    Mutation(
        "R33",
        BOTH,
        "semantics/group_description.py",
        "elif group_epoch > assignment_epoch:",
        "elif group_epoch < assignment_epoch:",
    ),
    Mutation(
        "R33",
        BOTH,
        "semantics/group_description.py",
        "elif group_type == STREAMS and not _topology",
        "elif False and not _topology",
    ),
    Mutation(
        "R33", BOTH, "semantics/group_description.py", 'state=STABLE if value["members"] else EMPTY', "state=STABLE"
    ),
    Mutation("R34", BOTH, "semantics/group_description.py", "(-named[name], _place_in_map(name))", "-named[name]"),
    Mutation(
        "R34", BOTH, "semantics/group_description.py", "(-named[name], _place_in_map(name))", "(named[name], name)"
    ),
    Mutation(
        "R34", BOTH, "semantics/group_description.py", "protocol_type=group_type.lower()", "protocol_type=group_type"
    ),
    Mutation(
        "R34", BOTH, "semantics/group_description.py", 'current.get("active_tasks")', 'current.get("standby_tasks")'
    ),
    Mutation("R35", ROWS, STATE, "            self._learn_name(offset.topic_id, where.topic)", "            pass"),
    Mutation("R35", ROWS, STATE, "                self._learn_name(topic_id, topic)", "                pass"),
    Mutation("R35", ROWS, STATE, "min(topic, self.topic_names.get(topic_id, topic))", "topic"),
    Mutation("R35", COLUMNS, "semantics/group_facts.py", "update(named_topics(key.record_type, fields))", "update(())"),
    Mutation("R35", COLUMNS, REPLAY, "self._groups.topics.update(commits.topic_names())", "pass"),
    Mutation(
        "R35",
        COLUMNS,
        "semantics/compaction.py",
        "np.concatenate([last, _naming_more(part.code, part.topic_id, decided.removable, last_values)])",
        "last",
        COMPACTION,
    ),
    Mutation(
        "R36",
        BOTH,
        "fold/state/data_time.py",
        "max(newest.get(at, 0), read_at.get(at, 0), appended_ms)",
        "read_at.get(at, 0)",
        ("tests/unit/state/test_answer_time.py",),
    ),
    Mutation(
        "R36",
        BOTH,
        "ingest/topic/topic_progress.py",
        "            if self._is_complete(read_to, ends):",
        "            if True:",
        ("tests/unit/ingest/test_topic_progress.py",),
    ),
    Mutation(
        "R37",
        BOTH,
        "questions/lag/position_sources.py",
        "ends[before] + share * grown",
        "ends[before]",
        ("tests/unit/lag/test_status_between_samples.py",),
    ),
    Mutation(
        "R37",
        BOTH,
        "questions/lag/lag_rows.py",
        "np.minimum(self.data_ms, until_ms)",
        "np.full(len(self.data_ms), until_ms)",
        ("tests/unit/lag/test_status_between_samples.py",),
    ),
    Mutation(
        "R37",
        BOTH,
        "questions/lag/lag_rows.py",
        "(committed > at_ms) & (at_ms < self.data_ms)",
        "committed < 0",
        ("tests/unit/lag/test_status_between_samples.py",),
    ),
    Mutation(
        "R37",
        BOTH,
        "questions/lag/broker_source.py",
        "            elif at_ms >= self._now_ms:",
        "            elif True:",
        ("tests/unit/lag/test_broker_source.py",),
    ),
    # --- the writers of the state
    Mutation(
        "R38",
        FOLDS,
        DERIVED,
        "(times.get(at), before.get((published.name, at)))",
        "(times.get(at),)",
        PUBLISHED_AS_OF,
    ),
    Mutation(
        "R38",
        FOLDS,
        DERIVED,
        "progress.partitions.keys() - missing.keys()",
        "progress.partitions.keys()",
        PUBLISHED_AS_OF,
    ),
    Mutation("R39", COLUMNS, SHARE_STATE, "if second < first:", "if second > first:", SHARE_TESTS),
    Mutation("R39", COLUMNS, SHARE_STATE, "if each.last_offset >= start_offset", "", SHARE_TESTS),
    Mutation("R39", COLUMNS, SHARE_STATE, "or not self.is_update:", "or self.is_update:", SHARE_TESTS),
    Mutation("R39", COLUMNS, SHARE_STATE, "return touches or", "return", SHARE_TESTS),
    Mutation("R39", COLUMNS, SHARE_REPLAY, " & (offset >= of_each_row(folded_to, partition))", "", SHARE_TESTS),
    Mutation("R39", COLUMNS, SHARE_REPLAY, "if not read.is_update and", "if", SHARE_TESTS),
    Mutation("R39", COLUMNS, "questions/lag/lag_rows.py", "end - offset - entries.complete", "end - offset", SHARE_LAG),
    Mutation(
        *("R39", COLUMNS, "questions/query/share_partitions.py"),
        *("record_offset DESC) = 1", "record_offset) = 1", SHARE_LAG),
    ),
    Mutation(
        "STATE",
        FOLDS,
        MERGE,
        "AND (p.version > f.version OR p.version = f.version AND p.tie > f.tie)\n            UNION ALL",
        "AND TRUE\n            UNION ALL",
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        MERGE,
        "p.version = f.version AND p.tie > f.tie)\n            UNION ALL",
        "p.version = f.version AND p.tie >= f.tie)\n            UNION ALL",
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        MERGE,
        "ON {self._same} AND (f.version > p.version OR",
        "ON {self._same} AND (TRUE OR",
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        MERGE,
        "AND (f.version > p.version OR f.version = p.version AND f.tie >= p.tie)",
        "AND (f.version > p.version OR f.version = p.version AND f.tie > p.tie)",
        STATE_WRITER,
    ),
    Mutation("STATE", FOLDS, MERGE, 'ORDER BY version DESC, tie DESC"', 'ORDER BY version, tie"', STATE_WRITER),
    Mutation("STATE", FOLDS, MERGE, "f\"PARTITION BY {', '.join(self.key)} ORDER", 'f"ORDER', STATE_WRITER),
    Mutation("STATE", FOLDS, MERGE, "w WHERE place = 1", "w", STATE_WRITER),
    Mutation("STATE", FOLDS, MERGE, "WHERE version < {_published_to(progress)}", "WHERE FALSE", STATE_WRITER),
    Mutation(
        "STATE", FOLDS, MERGE, "version >= {_published_to(progress)} AS is_later", "TRUE AS is_later", STATE_WRITER
    ),
    Mutation(
        "STATE",
        FOLDS,
        MERGE,
        'OR f.version = p.version AND f.tie >= p.tie)\n        """\n\n    def facts_in_spark',
        'OR f.version = p.version AND f.tie > p.tie)\n        """\n\n    def facts_in_spark',
        STATE_WRITER,
    ),
    Mutation("STATE", FOLDS, MERGE, "get(({partitions}), log_partition)", "get(({partitions}), 0)", LATE_ROWS_ON_SPARK),
    Mutation("STATE", FOLDS, MERGE, "incarnation = {_of_partition(progress)}.incarnation", "TRUE", STATE_WRITER),
    Mutation(
        "STATE",
        FOLDS,
        MERGE,
        'ELSE record_offset END" if self.has_tie',
        'ELSE record_offset END" if False',
        STATE_WRITER,
    ),
    Mutation(
        "STATE", FOLDS, CHANGES, "if self.known is None and table.published is not None:", "if False:", STATE_WRITER
    ),
    Mutation(
        "STATE",
        FOLDS,
        CHANGES,
        "{at: each.folded_to for at, each in changes.partitions.items()}",
        "{at: each.folded_to + 1 for at, each in changes.partitions.items()}",
        STATE_WRITER,
    ),
    Mutation("STATE", FOLDS, CHANGES, "hidden = hiding(groups) if", "hidden = frozenset() if", STATE_WRITER),
    Mutation(
        "STATE", FOLDS, PUBLISHED, "for own in [of_partitions(facts, partitions)]", "for own in [facts]", STATE_WRITER
    ),
    Mutation(
        "STATE",
        FOLDS,
        PUBLISHED,
        'pc.or_(pc.invert(is_answered), pc.not_equal(rows["position"], rows["record_offset"]))',
        "pc.invert(is_answered)",
        STATE_WRITER,
    ),
    Mutation(
        "R38",
        FOLDS,
        PUBLISHED,
        "is_answered = pc.and_not(is_answered, are_of_groups(rows, hidden))",
        "pass",
        STATE_WRITER,
    ),
    Mutation("STATE", FOLDS, PUBLISHING, "if newest.incarnations != progress.incarnations:", "if False:", STATE_WRITER),
    Mutation(
        "STATE",
        FOLDS,
        PUBLISHING,
        "        for each in covered:\n            each.drop(newest.number + 1)\n",
        "",
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        PUBLISHING,
        "are_folded(facts, self.ends)",
        'pc.is_valid(facts["folded_to"])',
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        PUBLISHING,
        "found.files[table.name] + merge.others(table, gone, shared)",
        "found.files[table.name]",
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        PUBLISHING,
        "self.folder.commit(kept, seen=self.seen, is_change=False)",
        "self.folder.commit(kept, seen=self.seen)",
        STATE_WRITER,
    ),
    Mutation(
        "STATE", FOLDS, PUBLISHING, ' and int(file.partition["incarnation"]) < progress.incarnation', "", STATE_WRITER
    ),
    Mutation("STATE", FOLDS, DERIVED, "if not groups_changed and all(", "if all(", STATE_WRITER),
    Mutation("STATE", FOLDS, PROGRESS, "if newest.version < version:", "if False:", STATE_WRITER),
    Mutation("STATE", FOLDS, PROGRESS, "if not is_own(actions):", "if False:", STATE_WRITER),
    Mutation(
        "STATE",
        FOLDS,
        PROGRESS,
        "advance={APPLICATION: self.number + 1, **folded}",
        "advance=folded",
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        DOOR_FILE,
        "            advance={APPLICATION: seen.transaction(APPLICATION) + 1, **advance},\n",
        "            advance=advance,\n",
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        PROGRESS,
        "max(partitions[at].published_to, others[at].published_to)",
        "partitions[at].published_to",
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        PROGRESS,
        "            if _published(self.partitions, newest.partitions) != newest.partitions:\n                raise\n",
        "",
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        PROGRESS,
        "newest.swap(_published(partitions, newest.partitions), versions, folded, log_commit)",
        "newest.swap(partitions, versions, folded, log_commit)",
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        PROGRESS,
        "newest.swap(_published(partitions, newest.partitions), versions, folded, log_commit)",
        "raise",
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        PROGRESS,
        "            if newest.incarnations != self.incarnations:\n                break\n",
        "",
        STATE_WRITER,
    ),
    Mutation("STATE", FOLDS, PROGRESS, "**vars(each),", '**vars(each), "published_to": 0,', STATE_WRITER),
    Mutation(
        "STATE",
        FOLDS,
        STORED,
        " if each != UNSTORED_INCARNATION]",
        "]",
        QUESTIONS,
    ),
    Mutation(
        "STATE",
        FOLDS,
        "questions/query/state_reader.py",
        "if self._progress().says_same(progress):",
        "if True:",
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        MERGE,
        '("value_offset", "tombstone_offset"),',
        '("value_offset",),',
        STATE_WRITER,
    ),
    Mutation("STATE", FOLDS, MERGE, 'return f"incarnation = {next(iter(partitions))}"', 'return "TRUE"', STATE_WRITER),
    Mutation(
        "STATE",
        FOLDS,
        MERGE,
        "(incarnation = {incarnation} AND log_partition IN",
        "(log_partition IN",
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        CHANGES,
        'last_of_each(rows, RECORDS.key, [rows["value_offset"]])',
        'last_of_each(rows, RECORDS.key, [pc.negate(rows["value_offset"])])',
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        CHANGES,
        'for name in ("tombstone_offset", "is_new"):',
        'for name in ("is_new",):',
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        CHANGES,
        "named | (groups_in(holding) - existing)",
        "named",
        STATE_WRITER,
    ),
    Mutation("STATE", FOLDS, CHANGES, "_of_groups(held, changed)", "records.slice(0, 0)", STATE_WRITER),
    Mutation("STATE", FOLDS, CHANGES, "pending=pending[at]", "pending=[]", STATE_WRITER),
    Mutation("STATE", FOLDS, PROGRESS, "**row)", '**row | {"incarnation": 1})', STATE_WRITER),
    Mutation(
        "STATE",
        FOLDS,
        PROGRESS,
        '"coordinator_semantics": each.semantics.value,',
        '"coordinator_semantics": each.semantics.value, "pending": [],',
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        "fold/state/changes.py",
        '"producer_id": commit["producer_id"]',
        '"producer_id": None',
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        PROGRESS,
        "if partitions[at].incarnation == others[at].incarnation:",
        "if True:",
        STATE_WRITER,
    ),
    Mutation(
        "STATE", FOLDS, "fold/state/current.py", "if at in behind & chosen else each", "if False else each", QUESTIONS
    ),
    Mutation("STATE", FOLDS, "fold/state/current.py", "if is_other_log and unfolded:", "if False:", QUESTIONS),
    Mutation("STATE", FOLDS, "fold/state/fold_rest.py", "**progressed(start, changes.partitions, 0)", "", QUESTIONS),
    Mutation(
        "STATE",
        FOLDS,
        "fold/state/fold_rest.py",
        "self._tables.append(conformed(rows, self._table.arrow_schema(), partition))",
        "pass",
        QUESTIONS,
    ),
    Mutation("STATE", FOLDS, STORED, "pc.less_equal(facts", "pc.greater_equal(facts", STATE_WRITER),
    Mutation("STATE", FOLDS, STORED, "if not log_partitions_in(file).issubset(partitions):", "if False:", STATE_WRITER),
    Mutation(
        "STATE", FOLDS, MERGE, "[published.filter(may_be), facts]", "[facts, published.filter(may_be)]", STATE_WRITER
    ),
    Mutation("STATE", FOLDS, MERGE, "places.slice(0, last).filter(is_last), ", "", STATE_WRITER),
    Mutation("STATE", FOLDS, MERGE, "if self.has_tie:", "if False:", STATE_WRITER),
    Mutation(
        "DOOR",
        TABLES,
        "store/delta/data_file.py",
        "bisect_right(values, highest[name])",
        "bisect_left(values, highest[name])",
        DOOR,
    ),
    Mutation(
        "STATE",
        FOLDS,
        FOLD,
        "NO_INCARNATION, *written) + 1",
        "NO_INCARNATION, *written)",
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        PROGRESS,
        "pending=each.pending,",
        "pending=before[at].pending,",
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        FOLD,
        "(reload_partitions(store, late, settings, clock) if late else 0)",
        "0",
        ("tests/streaming/test_steps.py::test_second_half_that_came_first_is_replayed_after_the_first",),
    ),
    Mutation(
        "STATE",
        FOLDS,
        FOLD,
        "progress.log_incarnation < self._log_incarnation or ",
        "",
        STATE_WRITER,
    ),
    Mutation(
        "STATE", FOLDS, FOLD, "append.version == progress.log_version + 1", "True", (f"{STATE_UNIT}/test_fold_log.py",)
    ),
    Mutation(
        "STATE",
        FOLDS,
        PUBLISHING,
        "self.folder.commit(kept, seen=self.seen, is_change=False) if kept else self.seen.version",
        "self.seen.version",
        (f"{STATE_UNIT}/test_publishing.py",),
    ),
    Mutation("STATE", FOLDS, UNFOLDED, "if log.transaction(LATE) <= folded:", "if True:", STATE_WRITER),
    Mutation(
        "STATE", FOLDS, FOLD, "log.transaction(LATE)} if has_late else {}", "log.transaction(LATE)}", STATE_WRITER
    ),
    Mutation(
        "STATE", FOLDS, UNFOLDED, "return log.files() if added is None else added", "return added or []", STATE_WRITER
    ),
    Mutation(
        "DOOR",
        TABLES,
        "store/delta/snapshot.py",
        'if actions is None or any(action["remove"]["path"] in added for action in actions if "remove" in action):',
        "if actions is None:",
        (f"{STATE_UNIT}/test_fold_log.py",),
    ),
    # --- the door to Delta tables
    Mutation("DOOR", TABLES, STORAGE, "place.hardlink_to(aside)", "aside.replace(place)", DOOR),
    Mutation("DOOR", TABLES, STORAGE, 'mode="create", use_multipart', 'mode="overwrite", use_multipart', DOOR),
    Mutation("DOOR", TABLES, STORAGE, "_object_store(root, max_retries=0)", "self._store", REQUESTS),
    Mutation("DOOR", TABLES, STORAGE, "(OSError if _REFUSED.search(said) else NoAnswer)", "OSError", REQUESTS),
    Mutation("DOOR", TABLES, STORAGE, "(OSError if _REFUSED.search(said) else NoAnswer)", "NoAnswer", REQUESTS),
    Mutation("DOOR", TABLES, STORAGE, "            if is_named and is_there():", "            if False:", DOOR),
    Mutation("DOOR", TABLES, STORAGE, "raise NoAnswer(first_line(error)) from no_answer", "raise", DOOR),
    Mutation("DOOR", TABLES, PUT, "no_answer is not None and not may_retry()", "False", DOOR),
    Mutation("DOOR", TABLES, PUT, "if no_answer is None and not isinstance(error, NoAnswer):", "if True:", DOOR),
    Mutation("DOOR", TABLES, PUT, "            if found is not None:", "            if True:", DOOR),
    Mutation("DOOR", TABLES, PUT, "return found", 'return b""', DOOR),
    Mutation("DOOR", TABLES, PUT, "    yield\n    yield\n", "    yield\n", DOOR),
    Mutation("DOOR", TABLES, DOOR_FILE, "        except CommitUnknown:\n            raise\n", "", DOOR),
    Mutation("DOOR", TABLES, DOOR_FILE, "        if self.table == LOG:", "        if False:", FORMATS),
    Mutation(
        "DOOR",
        TABLES,
        "coordinator/owned_log.py",
        "        require_format(found.properties, self._store_folder)\n",
        "",
        FORMATS,
    ),
    Mutation("DOOR", TABLES, "fold/state/fold.py", "    store.require_format()\n", "", FORMATS),
    Mutation("DOOR", TABLES, STORAGE, "if seen != self._seen:", "if not self._seen:", APPENDS),
    Mutation("DOOR", TABLES, STORAGE, "if self.read(name) != contents:", "if False:", (*DOOR, *APPENDS)),
    Mutation("DOOR", TABLES, DOOR_FILE, "            self.refuse_unwritable(committed)\n", "", DOOR),
    Mutation(
        "DOOR",
        TABLES,
        DOOR_FILE,
        "            self._refuse_conflict(seen, actions, unless_advanced, others)\n",
        "",
        DOOR,
    ),
    Mutation("DOOR", TABLES, "store/delta/protocol.py", "ensure_ascii=False", "ensure_ascii=True", (IDENTIFIERS,)),
    Mutation("DOOR", TABLES, DOOR_FILE, 'action["txn"]["appId"] in applications', "False", DOOR),
    Mutation("DOOR", TABLES, DOOR_FILE, 'action["remove"]["path"] in removed', "False", DOOR),
    Mutation("DOOR", TABLES, DOOR_FILE, 'action["metaData"]["id"] != seen.table_id', "False", DOOR),
    Mutation("DOOR", TABLES, DOOR_FILE, 'if any("metaData" in own for own in actions)', "if False", DOOR),
    Mutation(
        "DOOR", TABLES, DOOR_FILE, 'remove and is_change and seen.properties.get(_APPEND_ONLY) == "true"', "False", DOOR
    ),
    Mutation(
        "DOOR", TABLES, DOOR_FILE, "is_next = next(self.commits_after(known), None) is None", "is_next = True", APPENDS
    ),
    Mutation("DOOR", TABLES, DOOR_FILE, "(last is None or not check())", "last is None", (*DOOR, *APPENDS)),
    Mutation(
        "DOOR", TABLES, DOOR_FILE, "                if not check():\n", "                if False:\n", (*DOOR, *APPENDS)
    ),
    Mutation(
        "DOOR",
        TABLES,
        DOOR_FILE,
        "if newest is None or newest.commits_read > MOST_COMMITS:",
        "if newest is None:",
        DOOR,
    ),
    Mutation(
        "DOOR",
        TABLES,
        "store/delta/snapshot.py",
        '_changed[action["remove"]["path"]] = None',
        "_has_vectors |= False",
        DOOR,
    ),
    Mutation(
        "DOOR",
        TABLES,
        "store/delta/snapshot.py",
        "        if reason is not None:\n",
        "        if False:\n",
        (*DOOR, "tests/unit/coordinator/test_table_features.py"),
    ),
    Mutation(
        "DOOR",
        TABLES,
        "store/delta/snapshot.py",
        "            if self._has_vectors or has_deletion_vectors(self._loaded):\n",
        "            if False:\n",
        (*DOOR, "tests/unit/coordinator/test_table_features.py"),
    ),
    Mutation(
        "DOOR", TABLES, "store/delta/reader.py", "if _TRY_AGAIN.search(str(error)) is None or ", "if True or ", DOOR
    ),
    Mutation(
        "DOOR",
        TABLES,
        "store/delta/protocol.py",
        'if protocol["minWriterVersion"] > _WRITER_VERSION:',
        "if False:",
        (*DOOR, "tests/unit/coordinator/test_table_features.py"),
    ),
    Mutation(
        "DOOR",
        TABLES,
        "store/delta/protocol.py",
        'if protocol["minReaderVersion"] > _READER_VERSION:',
        "if False:",
        (*DOOR, "tests/unit/coordinator/test_table_features.py"),
    ),
    Mutation(
        "DOOR",
        TABLES,
        "store/delta/upkeep.py",
        "together, seen=seen, is_change=False",
        "together, seen=seen, is_change=True",
        DOOR,
    ),
    Mutation("DOOR", TABLES, "store/delta/upkeep.py", "if file.size < SMALL_BYTES:", "if True:", DOOR),
    Mutation("DOOR", TABLES, "store/delta/upkeep.py", "if held + file.size > TARGET_BYTES:", "if False:", DOOR),
    Mutation("DOOR", TABLES, "store/delta/upkeep.py", "            continue\n", "            raise\n", DOOR),
    Mutation("DOOR", TABLES, "store/delta/upkeep.py", "sorted(file.partition.items())", "()", DOOR),
    Mutation("DOOR", TABLES, "store/delta/upkeep.py", 'unchecked | {"full": True, ', "unchecked | {", DOOR),
    Mutation("DOOR", TABLES, "store/delta/retry.py", "if attempts > MAX_RETRIES:", "if True:", DOOR),
    Mutation("DOOR", TABLES, "store/delta/retry.py", "min(2 * backoff_ms, MAX_BACKOFF_MS)", "2 * backoff_ms", DOOR),
    Mutation(
        "DOOR",
        TABLES,
        DOOR_FILE,
        "            advance={APPLICATION: seen.transaction(APPLICATION) + 1, **advance},\n",
        "",
        DOOR,
    ),
    Mutation("DOOR", TABLES, DOOR_FILE, "self.with_missing_columns(seen)", "None", DOOR),
    Mutation(
        "DOOR",
        TABLES,
        "store/delta/data_file.py",
        "bound.value) // 1000",
        "bound.value) // 1000 + 1_000",
        ("tests/unit/log/test_file_writer.py",),
    ),
    Mutation(
        "DOOR",
        TABLES,
        "store/delta/data_file.py",
        "self._system.delete_file(self._path)",
        "pass",
        DOOR,
    ),
    Mutation(
        "DOOR",
        TABLES,
        "store/delta/reader.py",
        "str(each).lower() if isinstance(each, bool)",
        "str(each) if False",
        DOOR,
    ),
    Mutation("DOOR", TABLES, DOOR_FILE, "{path}/{unquote(file.name)}", "{path}/{file.name}", DOOR),
    Mutation(
        "STATE",
        FOLDS,
        PUBLISHING,
        "    seen = {table.name: store.table(table.name).snapshot() for table in published}\n"
        "    progress = FoldProgress.read(store.table(FOLD_PROGRESS.name))\n",
        "    progress = FoldProgress.read(store.table(FOLD_PROGRESS.name))\n"
        "    seen = {table.name: store.table(table.name).snapshot() for table in published}\n",
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        PUBLISHING,
        "all(self._versions.get(name) == each.version for name, each in seen.items())",
        "bool(self._versions)",
        STATE_WRITER,
    ),
    Mutation("STATE", FOLDS, PUBLISHING, "        progress.fenced()\n", "        pass\n", STATE_WRITER),
    Mutation(
        "STATE",
        FOLDS,
        PUBLISHING,
        "            each.drop(newest.number + 1)\n",
        "            each.drop(newest.number)\n",
        STATE_WRITER,
    ),
    Mutation("STATE", FOLDS, PROGRESS, "        if changes_rows(actions):\n", "        if True:\n", STATE_WRITER),
    Mutation(
        "STATE", FOLDS, PROGRESS, "(written == [progress.incarnation] and not is_named)", "not is_named", STATE_WRITER
    ),
    Mutation(
        "STATE",
        FOLDS,
        PROGRESS,
        "(written == [progress.incarnation] and not is_named)",
        "written == [progress.incarnation]",
        STATE_WRITER,
    ),
    Mutation("STATE", FOLDS, PROGRESS, "return {**self.versions, **later}", "return later", STATE_WRITER),
    Mutation(
        "STATE",
        FOLDS,
        PROGRESS,
        "self.replace(partitions, {**self.versions, **versions}, folded, log_commit)",
        "self.replace(partitions, versions, folded, log_commit)",
        STATE_WRITER,
    ),
    Mutation(
        "STATE", FOLDS, FOLD, "                versions |= published.publish(self._progress, seen)\n", "", STATE_WRITER
    ),
    Mutation(
        "STATE",
        FOLDS,
        FOLD,
        "moved = {at: replace(each, published_to=each.folded_to) for at, each in written.items()}",
        "moved = dict(written)",
        STATE_WRITER,
    ),
    Mutation("STATE", FOLDS, FOLD, "if self.is_behind or self.is_of_other(log):", "if self.is_behind:", STATE_WRITER),
    Mutation("STATE", FOLDS, FOLD, "known = {} if is_other else ", "known = ", STATE_WRITER),
    Mutation(
        "STATE",
        FOLDS,
        FOLD,
        "not (fold.is_behind or fold.is_of_other(log))",
        "not fold.is_behind",
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        "store/delta/snapshot.py",
        "if commit not in (found, None):",
        "if False:",
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        "store/delta/snapshot.py",
        "return not any(takes_rows(actions or ()) for actions in self._actions_after(version))",
        "return True",
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        FOLD,
        "            moved |= self._catch_up(moved, known, versions, published, log)\n",
        "",
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        FOLD,
        "or self._progress.incarnation > published.incarnation  #",
        "#",
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        FOLD,
        "folder.commit(add=facts, seen=seen, is_change=is_change) if facts else seen.version",
        "seen.version",
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        FOLD,
        "                versions |= published.merge({at: each.folded_to for at, each in moved.items()})\n",
        "                pass\n",
        STATE_WRITER,
    ),
    Mutation("STATE", FOLDS, FOLD, "at in known and known[at].folded_to > each.folded_to}", "False}", STATE_WRITER),
    Mutation(
        "STATE", FOLDS, PUBLISHED, '_STAYS = f"{HIDES_OFFSETS} OR misplaced"', '_STAYS = "misplaced"', STATE_WRITER
    ),
    Mutation(
        "STATE",
        FOLDS,
        PUBLISHED,
        "    if hidden:\n        is_answered = pc.and_not(is_answered, are_of_groups(rows, hidden))\n",
        "",
        STATE_WRITER,
    ),
    Mutation(
        "STATE",
        FOLDS,
        DERIVED,
        "for at in whole & found.keys()}",
        "for at in found}",
        PUBLISHED_AS_OF,
    ),
    Mutation(
        "DOOR",
        TABLES,
        DOOR_FILE,
        "            self.storage.aside(self.remove_uncommitted, () if keep else add)\n",
        "",
        DOOR,
    ),
    Mutation("STATE", FOLDS, "fold/state/view_queries.py", "AND NOT {hides_offsets}", "", PUBLISHED_AS_OF),
    Mutation(
        "STATE", FOLDS, PUBLISHED, '_STAYS = f"{HIDES_OFFSETS} OR misplaced"', "_STAYS = HIDES_OFFSETS", STATE_WRITER
    ),
]


def main(arguments: list[str] | None = None) -> int:
    """Run the mutations of the rules named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rules", nargs="*", help="rules whose mutations run; all if none is named")
    rules = parser.parse_args(arguments).rules
    chosen = [each for each in MUTATIONS if not rules or each.rule in rules]
    bad = 0
    with mutated_project() as project:
        unchanged = project.tested(list(dict.fromkeys(test for each in chosen for test in each.tests)))
        if unchanged.result != SURVIVED:
            print(f"without a mutation {unchanged.by} fails")
            return 1
        print(f"{'rule':6}{'where':12}{'result':10}{'seconds':>8}  file: noticed by")
        for mutation in chosen:
            begun = time.monotonic()
            result, by = run(mutation, project)
            bad += result not in {NOTICED, RAISED}
            seconds = time.monotonic() - begun
            print(f"{mutation.rule:6}{mutation.engine:12}{result:10}{seconds:8.1f}  {mutation.file}: {by}", flush=True)
    print(f"{len(chosen)} mutations, {bad} survived, do not run or no longer apply")
    return min(bad, 1)


def run(mutation: Mutation, project: MutatedProject) -> Outcome:
    """What the tests of a mutation say of it; stale if its text is no longer in the file."""
    source = (ROOT / PACKAGE / mutation.file).read_text(encoding="utf-8")
    if source.count(mutation.old) != 1:
        return Outcome("stale", f"{mutation.old!r} occurs {source.count(mutation.old)} times")
    return project.outcome(mutation.file, source.replace(mutation.old, mutation.new), mutation.tests)


if __name__ == "__main__":
    sys.exit(main())
