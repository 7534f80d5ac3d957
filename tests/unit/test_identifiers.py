"""Identifiers of every plane of Unicode, with NUL, and as long as a record's key holds, through every engine."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

from offsets_pipeline.cli import main
from offsets_pipeline.connect.connect_log import ConnectLog
from offsets_pipeline.connect.offset_backing_store import OffsetBackingStore, OffsetStorageWriter
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.coordinator.requests import ClassicMember, GroupMetadata, MemberOfGroup, OffsetAndMetadata
from offsets_pipeline.fold.state.fold import fold_log
from offsets_pipeline.kafka.record.wire import MAX_STRING_BYTES
from offsets_pipeline.questions.history.history_tables import read_views
from offsets_pipeline.questions.query.as_of import offsets_as_of
from offsets_pipeline.questions.query.connectors import describe_connector, list_connectors
from offsets_pipeline.questions.query.describe import GroupAnswer, describe_groups
from offsets_pipeline.questions.query.local_sql import LocalSql
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.repair.export.segment_export import export_segments
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.delta.schemas import CONSUMER_GROUPS
from offsets_pipeline.store.delta.store_folder import create_tables, properties_of
from offsets_pipeline.store.store import Store
from tests.logs import LogPartition, segment_rows
from tests.spark.stores import CLOCK, appended
from tests.unit.connect.connect_logs import in_order
from tests.unit.coordinator.stores import log_of, opened
from tests.unit.history.test_as_of import expected

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pytest
    from pyspark.sql import SparkSession

    from offsets_pipeline.common.config import Settings

PARTITIONS = 3
PLANES = range(17)
_SURROGATES = range(0xD800, 0xE000)
#: deltalake reads the escapes of this character, U+20BB7, as U+10BB7.
OF_PLANE_2 = "\U00020bb7"


def identifiers(chosen: random.Random, count: int) -> list[str]:
    """Different texts, with characters of each plane in turn and NUL; two are as long as a key holds."""
    found = dict.fromkeys(chr(code) * (MAX_STRING_BYTES // len(chr(code).encode())) for code in (0x61, 0x10FFFF))
    while len(found) < count:
        plane = (len(found) % len(PLANES)) << 16
        codes = [chosen.choice([0, 0x7F, 0x61, plane + chosen.randrange(0x10000)]) for _ in range(3)]
        codes.append(plane + chosen.randrange(0x10000))
        if not set(codes) & set(_SURROGATES):
            found["".join(map(chr, codes))] = None
    return list(found)


def answers_of(groups: dict[str, GroupAnswer]) -> dict[str, tuple[object, ...]]:
    """The groups as `expected` has them."""
    return {
        name: (
            group.type,
            group.state,
            [member.member_id for member in group.members],
            [(o.topic, o.partition, o.offset, o.leader_epoch, o.metadata, o.pending) for o in group.offsets],
        )
        for name, group in groups.items()
    }


def offsets_in(specified: dict[str, tuple[object, ...]]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The groups of `expected`, each with one of its offsets."""
    for name, (*_, offsets) in specified.items():
        for offset in cast("list[tuple[Any, ...]]", offsets):
            yield name, offset


def store_without_spark(location: Path) -> Store:
    return Store(cast("SparkSession", None), str(location), properties_of(str(location)))


def assert_answers(location: Path, specified: dict[str, tuple[object, ...]], asked: Iterable[str]) -> None:
    """Assert that `describe` and SQL answer as the specification: of all groups, and of one at a time."""
    reader = StateReader(str(location))
    assert answers_of(describe_groups(reader)) == specified
    for name in asked:
        assert answers_of(describe_groups(reader, [name])) == {name: specified[name]}, ascii(name[:20])
    columns = "SELECT group_id, topic, partition, committed_offset, metadata FROM current_offsets"
    offsets = sorted([name, *offset[:3], offset[4]] for name, offset in offsets_in(specified))
    with closing(LocalSql([reader])) as local:
        assert sorted(local.run(columns)[1]) == offsets


def test_3000_identifiers_of_all_planes_are_those_of_the_specification_everywhere(
    tmp_path: Path, settings: Settings, chance: random.Random
) -> None:
    groups, topics, metadata, members, clients = (identifiers(chance, 600) for _ in range(5))
    metadata = [each[:1000] for each in metadata]  # offset.metadata.max.bytes
    OwnedStore.create(tmp_path / "store", PARTITIONS)
    store = store_without_spark(tmp_path / "store")
    joined = [ClassicMember(*each) for each in zip(members, clients, strict=True)]
    with opened(tmp_path / "store") as coordinator:
        for half in (0, 300):  # the second fold looks up the groups of the first
            waiting = []
            for number in range(0, 600, 30):
                of_group = tuple(joined[number : number + 30])
                stored = GroupMetadata(groups[number], "consumer", 1 + half, "range", members[number], of_group)
                coordinator.store_group(stored)
                member = MemberOfGroup(members[number], 1 + half)
                offset = {(topics[number], number): OffsetAndMetadata(half, metadata=metadata[number])}
                waiting.append(coordinator.commit_offsets_async(groups[number], offset, member=member))
            for number in range(half, half + 300):
                if number % 30:
                    offset = {(topics[number], number): OffsetAndMetadata(number, metadata=metadata[number])}
                    waiting.append(coordinator.commit_offsets_async(groups[number], offset))
            for each in waiting:
                each.result()
            fold_log(store, settings, CLOCK)
    log = log_of(tmp_path / "store")
    specified = expected(log, PARTITIONS, store.properties.coordinator_semantics)
    held = sorted((name, *offset[:2], offset[4]) for name, offset in offsets_in(specified))
    assert held == sorted(zip(groups, topics, range(600), metadata, strict=True))
    assert {each for _, _, found, _ in specified.values() for each in cast("list[str]", found)} == set(members)
    asked = [*groups[::30], max(groups)]
    assert_answers(tmp_path / "store", specified, asked)
    for group_ids in (None, asked):
        past = offsets_as_of(str(tmp_path / "store"), time_ms=2**53, group_ids=group_ids)
        assert answers_of(past.groups) == {name: specified[name] for name in group_ids or groups}
    views = read_views(str(tmp_path / "store"), ["offset_history", "group_history"])
    seen = [rows.to_pylist() for rows in views.values()]
    assert {(row["group_id"], row["topic"], row["metadata"]) for row in seen[0]} == set(
        zip(groups, topics, metadata, strict=True)
    )
    assert {each for row in seen[1] for each in row["joined"]} == set(members)
    assert {row["client_id"] for row in seen[0]} <= {None, *clients}
    export_segments(StateReader(str(tmp_path / "store")), tmp_path / "segments")
    assert segment_rows(tmp_path / "segments") == log


MEMBER: dict[str, object] = {
    "member_id": "m",
    "client_id": "",
    "client_host": "",
    "session_timeout": 1,
    "subscription": b"",
    "assignment": b"",
}


def stable_group(name: str) -> LogPartition:
    """The log of a group with a member and an offset."""
    log = LogPartition(partition_for(name, PARTITIONS))
    log.group(2, name, protocol_type="consumer", protocol="range", leader="m", members=[MEMBER])
    log.commit((name, "t", 0), 1)
    return log


def test_statistics_that_deltalake_reads_right_are_used(tmp_path: Path, settings: Settings) -> None:
    create_tables(str(tmp_path), StoreProperties(MIRRORED, PARTITIONS))
    store = store_without_spark(tmp_path)
    for name in ("\U0001f600", OF_PLANE_2, "\U00010bb7" * 5_000):  # the footer of a file has no texts of 20,000 bytes
        appended(tmp_path, stable_group(name).rows)
    fold_log(store, settings, CLOCK)
    files = StateReader(str(tmp_path)).table(CONSUMER_GROUPS.name).files()
    assert files
    assert all("group_id" in file.highest for file in files)


def test_a_group_with_a_character_above_u_ffff_is_described_after_its_commit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    OwnedStore.create(tmp_path / "store", PARTITIONS)
    assert main(["commit", "--store", str(tmp_path / "store"), "--group", OF_PLANE_2, "t:0=5"]) == 0
    capsys.readouterr()
    assert main(["describe", "--store", str(tmp_path / "store"), "--group", OF_PLANE_2]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == [OF_PLANE_2, "t", "0", "5"]


def test_connectors_and_source_partitions_of_all_planes_have_the_offsets_that_were_flushed(
    tmp_path: Path, settings: Settings, chance: random.Random
) -> None:
    names = identifiers(chance, 40)
    ConnectLog.create(tmp_path / "store", "lab", PARTITIONS)
    flushed = {name: [({each: name}, {name: each}) for each in chance.sample(names, 3)] for name in names}
    with OffsetBackingStore(tmp_path / "store") as backing:
        for name in names:
            writer = OffsetStorageWriter(backing, name)
            for partition, offset in flushed[name]:
                writer.offset(partition, offset)
            assert writer.begin_flush()
            writer.do_flush().result(10)
    fold_log(store_without_spark(tmp_path / "store"), settings, CLOCK)
    reader = StateReader(str(tmp_path / "store"))
    for name in names:
        told = describe_connector(reader, name)["offsets"]
        assert in_order((each["partition"], each["offset"]) for each in told) == in_order(flushed[name]), ascii(name)
    assert [each.name for each in list_connectors([reader])] == sorted(names)
    with closing(LocalSql([reader])) as local:
        rows = local.run("SELECT connector, source_partition, source_offset FROM connector_offsets")[1]
        assert in_order([name, json.loads(partition), json.loads(offset)] for name, partition, offset in rows) == (
            in_order([name, *each] for name, pairs in flushed.items() for each in pairs)
        )
