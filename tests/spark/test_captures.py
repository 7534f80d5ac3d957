"""Recorded brokers' logs through the whole pipeline, compared with the brokers' answers."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable

from offsets_pipeline.fold.state.fold_progress import FoldProgress
from offsets_pipeline.questions.query.log_info import log_info
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from offsets_pipeline.store.delta.schemas import LOG, LOG_PARTITIONS, TABLES
from tests.compare import compared_offsets
from tests.logs import (
    ALIKE,
    CAPTURE_NAMES,
    CAPTURES,
    LOST_BY_BROKER,
    capture_partitions,
    capture_rows,
    capture_semantics,
    oracle,
)
from tests.places import copied
from tests.spark.stores import (
    Workbench,
    appended,
    assert_as_reference,
    differences,
    export_of,
    log_of,
    rows_of,
    state_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

MODERN, CLASSIC = CoordinatorSemantics
BY_SEMANTICS = Counter(map(capture_semantics, CAPTURE_NAMES))
# transactions, the new protocol, share and streams, the classic coordinator with transactions and old message formats
RELOADED = ["4.2.0-txn-open", "4.2.0-kip848", "4.2.0-share", "3.9.2-txn-open", "2.4.1-old-ibp0.10.0-fmt0.10.0-codec1"]
VERIFIED = ["4.2.0-txn-open", "4.2.0-kip848", "4.2.0-share", "3.9.2-txn-open"]
MALFORMED = "4.2.0-inject-malformed"
OF_CLASSIC = "3.9.2-txn-open"
# What the classic coordinator keeps and the modern one removes: transactional commits with a tombstone above them,
# whose COMMIT comes after that (R12); x-del's stand at 11 to 15 of log partition 4 in dump.txt.
BROUGHT_BACK_BY_3_9 = [
    r"'x-del' offset of t1-0: broker (50, None, '\x00'), ours None",
    r"'x-delgrp' offset of t1-0: broker (60, None, '\x00'), ours None",
    r"'x-topic' offset of t2-0: broker (9, None, ''), ours None",
]


def of_all_but(captures: Sequence[str]) -> list[object]:
    """These captures, and the others for `make test-long`."""
    others = (name for name in CAPTURE_NAMES if name not in captures)
    return [*captures, *(pytest.param(name, marks=pytest.mark.long) for name in others)]


each_capture = pytest.mark.parametrize("capture", of_all_but([name for name in CAPTURE_NAMES if name not in ALIKE]))


def test_there_are_recorded_brokers() -> None:
    assert BY_SEMANTICS[MODERN] >= 19
    assert BY_SEMANTICS[CLASSIC] >= 7


@each_capture
def test_answers_are_those_of_the_broker(folded: Callable[[str], Path], capture: str) -> None:
    assert compared_offsets(oracle(capture)) > 0
    assert differences(folded(capture), oracle(capture)) == LOST_BY_BROKER.get(capture, [])


@pytest.mark.usefixtures("code_generation")
@pytest.mark.parametrize(
    "driver_rows", [pytest.param(0, id="tasks"), pytest.param(50_000, id="driver", marks=pytest.mark.long)]
)
def test_log_of_a_classic_coordinator_folded_in_small_batches_answers_as_its_broker(
    workbench: Workbench, empty: Callable[..., Path], place: Path, driver_rows: int
) -> None:  # R10c, R12, R14
    fold = replace(workbench.settings.fold, driver_rows=driver_rows)
    stream = Workbench(workbench.spark, replace(workbench.settings, fold=fold))
    store = copied(empty(capture_partitions(OF_CLASSIC), CLASSIC), place / "store")
    rows = sorted(
        (row for of_one in capture_rows(OF_CLASSIC).values() for row in of_one), key=attrgetter("record_offset")
    )
    for start in range(0, len(rows), -(-len(rows) // 2)):
        appended(store, rows[start : start - (-len(rows) // 2)])
        stream.fold(store)
    assert differences(store, oracle(OF_CLASSIC)) == []
    assert_as_reference(store, rows)


def test_reload_changes_the_coordinator_semantics_at_once_or_not_at_all(
    workbench: Workbench, folded: Callable[[str], Path], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # R12
    store = copied(folded(OF_CLASSIC), place / "store")

    def answers() -> list[str]:
        return differences(store, oracle(OF_CLASSIC), offsets_only=True)

    def shown() -> set[str]:
        return {each.coordinator_semantics for each in log_info(StateReader(str(store)))}

    workbench.reload(store, semantics=MODERN)
    assert (answers(), shown()) == (BROUGHT_BACK_BY_3_9, {"modern"})
    with monkeypatch.context() as patch:
        patch.setattr(FoldProgress, "replace", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            workbench.reload(store, semantics=CLASSIC)
    assert (answers(), shown()) == (BROUGHT_BACK_BY_3_9, {"modern"})
    workbench.reload(store, 4)
    assert (answers(), shown()) == (BROUGHT_BACK_BY_3_9, {"modern"})
    assert workbench.verify(store, independent=True).equal
    workbench.reload(store, semantics=CLASSIC)
    assert (answers(), shown()) == ([], {"classic"})
    assert workbench.verify(store, independent=True).equal


@each_capture
def test_state_is_what_the_reference_replays(folded: Callable[[str], Path], capture: str) -> None:
    rows = [row for partition in capture_rows(capture).values() for row in partition]
    assert log_of(folded(capture)) == sorted(rows, key=lambda row: (row.log_partition, row.record_offset))
    assert_as_reference(folded(capture), rows)


@each_capture
def test_log_info_has_the_bounds_of_the_broker(folded: Callable[[str], Path], capture: str) -> None:
    found = {each.log_partition: each for each in log_info(StateReader(str(folded(capture))))}
    assert sorted(found) == list(range(capture_partitions(capture)))
    bounds = json.loads((CAPTURES / capture / "oracle.json").read_text())["topics"]["__consumer_offsets"]["partitions"]
    assert {at: (each.start, each.end) for at, each in found.items()} == {
        each["partition"]: (each["start"], each["end"]) for each in bounds
    }
    rows = capture_rows(capture)
    assert {at: each.records for at, each in found.items() if each.records} == {
        at: len(of_one) for at, of_one in rows.items()
    }
    assert {at: each.folded_to for at, each in found.items() if each.folded_to is not None} == {
        at: of_one[-1].record_offset + 1 for at, of_one in rows.items()
    }


@pytest.mark.parametrize("capture", of_all_but(VERIFIED))
def test_verify_finds_the_state_equal(workbench: Workbench, folded: Callable[[str], Path], capture: str) -> None:
    found = workbench.verify(folded(capture))
    assert (found.differences, found.examples) == ({}, [])
    assert found.log_partitions == len(capture_rows(capture))
    assert found.records == sum(map(len, capture_rows(capture).values()))
    assert found.groups > 0


@pytest.mark.parametrize("capture", of_all_but([*RELOADED, MALFORMED]))
def test_reload_gives_what_the_stream_gave(
    workbench: Workbench, folded: Callable[[str], Path], place: Path, capture: str
) -> None:
    store = copied(folded(capture), place / "store")
    streamed = state_rows(store)
    for each in TABLES:
        if each not in (LOG, LOG_PARTITIONS):
            DeltaTable(f"{store}/{each.name}").delete()
    assert export_of(store) == {"groups": {}}
    assert workbench.reload(store) == len(log_of(store)) == sum(map(len, capture_rows(capture).values()))
    assert state_rows(store) == streamed
    assert_as_reference(store, log_of(store))
    assert differences(store, oracle(capture)) == LOST_BY_BROKER.get(capture, [])


def errors_of_kafkas_own_tool() -> dict[tuple[int, int], str]:
    """Reasons of quarantined records, by log partition and record offset."""
    errors: dict[tuple[int, int], str] = {}
    partition = -1
    for line in (CAPTURES / MALFORMED / "dump.txt").read_text().splitlines():
        if found := re.match(r"### segments/__consumer_offsets-(\d+)/", line):
            partition = int(found[1])
        if found := re.search(r"Error at offset (\d+), skipping\. (.*)", line):
            errors[partition, int(found[1])] = found[2]
    return errors


def test_corrupt_records_are_in_quarantine_with_their_reasons(folded: Callable[[str], Path]) -> None:  # R6
    rows = rows_of(folded(MALFORMED), "quarantine")
    ours = {(row["log_partition"], row["record_offset"]): row["reason"] for row in rows}
    assert len(ours) == len(rows)
    assert ours == {
        (10, 5): "OffsetCommitValue: unknown version 9 of record type 1",
        (10, 6): "OffsetCommitValue: cannot read the version: expected 2 bytes, found 0",
        (38, 0): "OffsetCommitValue.leader_epoch: expected 4 bytes at position 10, found 0",
        (44, 2): "OffsetCommitValue: unknown version 1 of record type 0",
        (9, 6): "key: cannot read the record type: expected 2 bytes, found 1",
    }
    kafkas = errors_of_kafkas_own_tool()
    assert ours.keys() == kafkas.keys()
    assert kafkas[10, 5] == "Found an unknown record version 9 for 1 type"
    assert kafkas[9, 6] == "Could not read version from key's buffer."


def test_raw_bytes_of_corrupt_records_are_in_quarantine(folded: Callable[[str], Path]) -> None:  # R6
    log = {(row.log_partition, row.record_offset): (row.key, row.value) for row in log_of(folded(MALFORMED))}
    for row in rows_of(folded(MALFORMED), "quarantine"):
        assert (row["key"], row["value"]) == log[row["log_partition"], row["record_offset"]]
