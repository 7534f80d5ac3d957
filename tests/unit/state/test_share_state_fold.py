"""Folds of a recorded `__share_group_state`, against what Kafka's tools said of it (R39)."""

from __future__ import annotations

import json
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.errors import StoreMismatch
from offsets_pipeline.fold.maintenance import maintain_store
from offsets_pipeline.fold.state.fold import fold_log, reload_partitions
from offsets_pipeline.fold.state.fold_progress import FoldProgress
from offsets_pipeline.fold.state.merge_on_read import SHARES
from offsets_pipeline.fold.state.publishing import publish
from offsets_pipeline.fold.state.verify import verify_store
from offsets_pipeline.ingest.record_kind import RecordKey, topic_kind_of
from offsets_pipeline.kafka.record.decode import decode_key, decode_value
from offsets_pipeline.kafka.record.message_types import SHARE_MESSAGE_TYPES
from offsets_pipeline.questions.query.describe import describe_groups
from offsets_pipeline.questions.query.log_info import log_info
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.log_row import LogRow
from offsets_pipeline.semantics.share_replay import compact_shares, replay_shares
from offsets_pipeline.semantics.survivors import topic_survivors
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.semantics.topic_replay import CONNECT_INPUT_SCHEMA
from offsets_pipeline.store.delta.schemas import LOG
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.log.metadata import note_topics
from tests.folded_stores import folded_capture, opened
from tests.spark.stores import CLOCK, appended
from tests.unit.share_logs import IN_DRIVER, PARTITIONS, answers, as_described, needed, share_rows, share_store, shown
from tests.unit.state.test_stream_upkeep import keeps_nothing

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from offsets_pipeline.semantics.effects import ReplayedPartition

_STATES = {0: "AVAILABLE", 2: "ACKNOWLEDGED", 4: "ARCHIVED"}


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(each.title() for each in rest)


def as_dumped(value: Any) -> Any:  # noqa: ANN401 - any field
    if isinstance(value, dict):
        return {camel(name): as_dumped(each) for name, each in value.items() if each is not None}
    return [as_dumped(each) for each in value] if isinstance(value, list) else value


def test_records_decode_as_kafkas_dump_tool_decodes_them() -> None:
    for at in range(PARTITIONS):
        found = []
        for row in share_rows():
            if row.log_partition == at:
                key = decode_key(row.key, SHARE_MESSAGE_TYPES)
                value = None if row.value is None else decode_value(key.record_type, row.value, SHARE_MESSAGE_TYPES)
                of_key = {"type": str(key.record_type), "data": as_dumped(key.fields)}
                of_value = None if value is None else {"version": str(value.version), "data": as_dumped(value.fields)}
                found.append({"offset": row.record_offset, "key": of_key, "value": of_value})
        assert found == answers()["records"][f"__share_group_state-{at}"]


def test_lag_is_what_the_broker_answers(tmp_path: Path) -> None:
    found = shown(share_store(tmp_path / "store", share_rows()))
    assert as_described(found) == answers()["described"]


def delivered(records: list[dict[str, Any]], group_id: str) -> tuple[int, dict[int, tuple[int, str]]]:
    """Start offset of a group, and delivery count and state of each record, record by record from the tool's output."""
    start, states = -1, dict[int, tuple[int, int]]()
    for record in records:
        if record["key"]["data"]["groupId"] == group_id:
            if record["key"]["type"] == "0":
                states = {}
            data = record["value"]["data"]
            start = start if data["startOffset"] == -1 else data["startOffset"]
            for batch in data["stateBatches"]:
                for offset in range(batch["firstOffset"], batch["lastOffset"] + 1):
                    news = batch["deliveryCount"], batch["deliveryState"]
                    states[offset] = max(states.get(offset, news), news)
    return start, {at: (count, _STATES[state]) for at, (count, state) in states.items() if at >= start}


def test_each_record_has_its_delivery_state(tmp_path: Path) -> None:
    for each in shown(share_store(tmp_path / "store", share_rows())):
        found = {
            offset: (batch["delivery_count"], batch["delivery_state"])
            for batch in each.state_batches
            for offset in range(batch["first_offset"], batch["last_offset"] + 1)
        }
        of_partition = answers()["records"][f"__share_group_state-{each.log_partition}"]
        assert (each.start_offset, found) == delivered(of_partition, each.group)
        if each.delivery_complete_count is not None:  # the broker counts the records of the final states
            assert each.delivery_complete_count == sum(state != "AVAILABLE" for _, state in found.values())


def test_folds_of_any_batches_give_the_same_state(tmp_path: Path, chance: random.Random) -> None:
    rows = share_rows()
    expected = shown(share_store(tmp_path / "whole", rows))
    assert [each.group for each in expected] == ["mixed", "open", "reset"]  # deleted and left are gone
    for number in range(4):
        cut = sorted(chance.sample(range(1, len(rows)), chance.randrange(1, 6)))
        # log partitions interleave, as on a live topic
        rows = sorted(rows, key=lambda row: (row.record_offset, row.log_partition))
        batches = [rows[start:end] for start, end in zip([0, *cut], [*cut, len(rows)], strict=True)]
        location = share_store(tmp_path / str(number), *batches)
        assert shown(location) == expected
        assert verify_store(opened(tmp_path / str(number)), IN_DRIVER.fold).equal


def test_a_fold_that_died_before_its_swap_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = sorted(share_rows(), key=lambda row: row.record_offset)
    expected = shown(share_store(tmp_path / "whole", rows))
    location = share_store(tmp_path / "store", rows[:7])
    appended(location, rows[7:12])

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(FoldProgress, "swap", die)
        with pytest.raises(KeyboardInterrupt):
            fold_log(opened(tmp_path / "store"), IN_DRIVER, CLOCK)
    appended(location, rows[12:])
    fold_log(opened(tmp_path / "store"), IN_DRIVER, CLOCK)
    assert shown(location) == expected
    for independent in (False, True):
        assert verify_store(opened(tmp_path / "store"), IN_DRIVER.fold, independent=independent).equal


def test_a_question_folds_the_rest_of_the_log(tmp_path: Path) -> None:
    rows = sorted(share_rows(), key=lambda row: row.record_offset)
    expected = shown(share_store(tmp_path / "whole", rows))
    location = share_store(tmp_path / "store", rows[:7])
    appended(location, rows[7:])
    assert shown(location) == expected


def states(table: pa.Table, folded_to: dict[int, int]) -> tuple[list[Any], dict[int, ReplayedPartition], list[Any]]:
    effects = replay_shares([table], folded_to)
    order = ["log_partition", "group_id"]
    facts = effects.share_partitions.sort_by([(name, "ascending") for name in order])
    return facts.to_pylist(), effects.progress, effects.quarantine


def test_rows_before_a_later_snapshot_are_not_needed(chance: random.Random) -> None:
    rows = [*share_rows(), LogRow(0, 99, b"\0\0garbage", b"x"), LogRow(2, 99, b"\0\7garbage", b"x")]
    chance.shuffle(rows)
    everything = [{**row._asdict(), "record_timestamp": 0, "records": 1} for row in rows]
    table = pa.Table.from_pylist(everything, schema=CONNECT_INPUT_SCHEMA)
    for folded_to in ({}, {0: 1, 1: 6, 2: 3}):
        compacted = compact_shares(table, folded_to)
        parts = [compact_shares(table.slice(at, 6), folded_to) for at in range(0, len(rows), 6)]
        assert states(compacted, folded_to) == states(table, folded_to)
        assert states(compact_shares(pa.concat_tables(parts), folded_to), folded_to) == states(table, folded_to)
        assert compacted.num_rows < len(rows)


def test_a_cleaned_log_gives_the_same_state() -> None:
    for at in range(PARTITIONS):
        rows = [row for row in share_rows() if row.log_partition == at]
        columns = [{**row._asdict(), "record_timestamp": 0, "records": 1, "aged": True} for row in rows]
        table = pa.Table.from_pylist(columns)
        stays = pa.array(topic_survivors(table, TopicKind.SHARE_STATE))
        whole = pa.Table.from_pylist(columns, schema=CONNECT_INPUT_SCHEMA)
        cleaned = whole.filter(stays)
        assert states(cleaned, {})[0] == states(whole, {})[0]
        assert {(at, offset) for offset in cleaned["record_offset"].to_pylist()} == {
            place for place in needed() if place[0] == at
        }


def test_a_reload_gives_the_same_state(tmp_path: Path) -> None:
    rows = share_rows()
    location = share_store(tmp_path / "store", rows)
    expected = shown(location)
    store = opened(tmp_path / "store")
    reload_partitions(store, None, IN_DRIVER, CLOCK)
    assert shown(location) == expected
    assert publish(store, CLOCK)
    assert not verify_store(store, IN_DRIVER.fold).differences


def test_progress_names_the_published_share_partitions_and_is_written_only_for_new_ones(tmp_path: Path) -> None:
    share_store(tmp_path / "store", share_rows())
    store = opened(tmp_path / "store")
    assert publish(store, CLOCK)
    progress = FoldProgress.read(store.table("fold_progress"))
    assert progress.versions.get("share_partitions") == store.version("share_partitions") > 0
    assert publish(store, CLOCK)
    assert store.version("fold_progress") == progress.snapshot.version


def test_upkeep_that_dies_before_any_commit_leaves_the_share_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = sorted(share_rows(), key=lambda row: row.record_offset)
    location = share_store(tmp_path / "store", rows[:7], rows[7:12], rows[12:])
    expected = shown(location)
    store = keeps_nothing(opened(tmp_path / "store"))
    whole, left = TableFolder.create_version, 0

    def create_version(*arguments: Any, **more: Any) -> bool:  # noqa: ANN401 - as the method
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        return whole(*arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(TableFolder, "create_version", create_version)
        for run in count():
            left = run
            try:
                maintain_store(store, SystemClock(), IN_DRIVER)
            except KeyboardInterrupt:
                assert shown(location) == expected
            else:
                break
    assert run > 2
    assert [len(store.table(name).snapshot().files()) for name in (LOG.name, SHARES.name)] == [1, 1]
    assert shown(location) == expected
    assert verify_store(store, IN_DRIVER.fold).equal
    reload_partitions(store, None, IN_DRIVER, CLOCK)
    assert shown(location) == expected


def test_garbage_is_counted_and_left_out(tmp_path: Path) -> None:
    rows = share_rows()
    last = max(row.record_offset for row in rows if row.log_partition == 0)
    snapshot = next(row for row in rows if row.log_partition == 0 and row.value is not None)
    assert snapshot.key is not None
    assert snapshot.value is not None
    garbage = [
        LogRow(0, last + 1, b"\0\0garbage", b"x"),
        LogRow(0, last + 2, b"\0\1" + snapshot.key[2:], snapshot.value[:9]),
        LogRow(0, last + 3, b"\0\1" + snapshot.key[2:], None),
        LogRow(0, last + 4, b"\0\7" + snapshot.key[2:], snapshot.value),
    ]
    location = share_store(tmp_path / "store", [*rows, *garbage])
    assert shown(location) == shown(share_store(tmp_path / "clean", rows))
    info = log_info(StateReader(location))[0]
    assert (info.quarantined, info.unknown, info.pending) == (3, 1, 0)
    for independent in (False, True):
        assert verify_store(opened(tmp_path / "store"), IN_DRIVER.fold, independent=independent).equal


def test_command_and_sql_show_the_share_partitions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    location = share_store(tmp_path / "share", share_rows())
    assert main(["share-partitions", "--store", location, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["share_partitions"]
    expected = [each._asdict() | {"topic": None, "log_end_offset": None, "lag": None} for each in shown(location)]
    order = [(each["group"], each["topic_id"]) for each in found]
    assert found == sorted(expected, key=lambda each: order.index((each["group"], each["topic_id"])))
    query = "SELECT group_id, start_offset, len(state_batches) AS batches FROM share_partitions ORDER BY 1"
    assert main(["sql", "--store", location, "--format", "csv", query]) == 0
    batches = {each.group: (each.start_offset, len(each.state_batches)) for each in shown(location)}
    lines = [f"{group},{start},{count}" for group, (start, count) in batches.items()]
    assert capsys.readouterr().out.splitlines() == ["group_id,start_offset,batches", *lines]


def test_a_store_of_groups_has_the_names_and_the_log_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    location = share_store(tmp_path / "share", share_rows())
    groups = str(folded_capture(tmp_path / "groups", "4.2.0-share"))
    names = [(topic_id, name) for name, topic_id in answers()["topic_ids"].items()]
    note_topics(opened(tmp_path / "groups"), set(names))
    ends = answers()["log_ends"]
    lines = [f"{name},0,0,{end},2026-11-20T12:00:00Z" for name, end in ends.items()]
    positions = tmp_path / "positions.csv"
    positions.write_text("\n".join(["topic,partition,log_start_offset,log_end_offset,sampled_at", *lines]) + "\n")
    assert main(["sample-topic-offsets", "--store", groups, "--positions", str(positions)]) == 0
    capsys.readouterr()
    assert main(["share-partitions", "--store", location, "--groups", groups, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["share_partitions"]
    assert found == [each._asdict() for each in shown(location)]


def test_the_kind_is_recognised_and_other_commands_refuse(tmp_path: Path) -> None:
    keys = [RecordKey(row.log_partition, row.record_offset, row.key) for row in share_rows()]
    assert topic_kind_of("a log", "copy", keys) is TopicKind.SHARE_STATE
    assert topic_kind_of("a log", "__share_group_state", []) is TopicKind.SHARE_STATE
    with pytest.raises(StoreMismatch, match="share-group-state"):
        describe_groups(StateReader(share_store(tmp_path / "share", share_rows())))
    groups = folded_capture(tmp_path / "groups", "4.2.0-share")
    with pytest.raises(StoreMismatch, match="consumer-offsets"):
        shown(str(groups))
