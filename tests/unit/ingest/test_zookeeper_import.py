"""What an import from ZooKeeper commits to an owned store, and what it leaves."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.coordinator.requests import ClassicMember, GroupMetadata
from offsets_pipeline.coordinator.zookeeper.consumer_nodes import GroupNodes, NodeOffset
from offsets_pipeline.ingest import zookeeper_import
from offsets_pipeline.ingest.zookeeper_import import ImportedGroup, decide, import_offsets
from offsets_pipeline.semantics.partition_state import CommittedOffset, TopicPartition
from tests.unit.coordinator.stores import NOW_MS, log_of, opened

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.coordinator.coordinator import Coordinator

YEARS_AGO_MS = 1_457_000_000_000
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    OwnedStore.create(tmp_path / "owned", 3)
    return tmp_path / "owned"


def imported(coordinator: Coordinator, offsets: dict[TopicPartition, NodeOffset], group_id: str = "g") -> ImportedGroup:
    (result,) = import_offsets(coordinator, [GroupNodes(group_id, offsets)])
    return result


def counts(result: ImportedGroup) -> tuple[int, int, int]:
    return result.imported, result.up_to_date, result.kept


def test_offset_of_years_ago_is_committed_now_and_keeps_its_time_in_the_metadata(store: Path) -> None:
    with opened(store) as coordinator:
        assert counts(imported(coordinator, {T0: NodeOffset(42, YEARS_AGO_MS), T1: NodeOffset(7, None)})) == (2, 0, 0)
        found = coordinator.fetch_offsets("g")
        assert {where: (each.offset, each.metadata) for where, each in found.items()} == {
            T0: (42, "zookeeper mtime=2016-03-03T10:13:20.000Z"),
            T1: (7, "zookeeper"),
        }
        assert coordinator.expire(coordinator.partition_for("g")) == []
        week_ms = 7 * 86_400_000
        assert {each.at_ms for each in coordinator.forecast("g")} == {NOW_MS + week_ms}


def test_second_import_adds_what_is_missing_or_newer(store: Path) -> None:
    nodes = {T0: NodeOffset(42, YEARS_AGO_MS)}
    with opened(store) as coordinator:
        imported(coordinator, nodes)
        end = coordinator._core.partitions.state(coordinator.partition_for("g")).end
        assert counts(imported(coordinator, nodes)) == (0, 1, 0)
        assert coordinator._core.partitions.state(coordinator.partition_for("g")).end == end
        assert counts(imported(coordinator, {**nodes, T1: NodeOffset(1, YEARS_AGO_MS)})) == (1, 1, 0)
        # an old consumer was set back in ZooKeeper, and nothing was committed to the store
        assert counts(imported(coordinator, {T0: NodeOffset(40, YEARS_AGO_MS + 1)})) == (1, 0, 0)
        assert coordinator.fetch_offsets("g")[T0].offset == 40
        assert counts(imported(coordinator, {T0: NodeOffset(39, YEARS_AGO_MS - 1)})) == (0, 1, 0)


def test_import_never_sets_back_an_offset_that_was_committed_since(store: Path) -> None:
    clock = FixedClock(NOW_MS)
    with opened(store, clock) as coordinator:
        imported(coordinator, {T0: NodeOffset(42, YEARS_AGO_MS), T1: NodeOffset(42, YEARS_AGO_MS)})
        clock.advance_ms(1000)
        coordinator.commit_offsets("g", {T0: 50, T1: 10})
        assert counts(imported(coordinator, {T0: NodeOffset(45, YEARS_AGO_MS), T1: NodeOffset(45, None)})) == (0, 0, 2)
        later = NOW_MS + 2000
        assert counts(imported(coordinator, {T0: NodeOffset(45, later), T1: NodeOffset(45, later)})) == (1, 0, 1)
        assert {where: each.offset for where, each in coordinator.fetch_offsets("g").items()} == {T0: 50, T1: 45}


def test_commit_of_another_process_right_before_the_append_stays(store: Path) -> None:
    with opened(store) as coordinator, opened(store) as other:
        coordinator.fetch_offsets("g")  # has read the log to its end
        other.commit_offsets("g", {T0: 50})
        assert counts(imported(coordinator, {T0: NodeOffset(45, YEARS_AGO_MS)})) == (0, 0, 1)


def test_group_with_members_is_skipped_and_others_are_imported(store: Path) -> None:
    member = ClassicMember("m", subscription=b"", assignment=b"")
    with opened(store) as coordinator:
        coordinator.store_group(GroupMetadata("active", "consumer", 1, "range", "m", (member,)))
        groups = [GroupNodes(name, {T0: NodeOffset(1, None)}) for name in ("active", "x" * 40_000, "idle")]
        active, long, idle = import_offsets(coordinator, groups)
        assert [each.path for each in active.skipped] == ["/consumers/active"]
        assert "has members" in active.skipped[0].reason
        assert "at most 32767 bytes" in long.skipped[0].reason
        assert [counts(each) for each in (active, long, idle)] == [(0, 0, 0), (0, 0, 0), (1, 0, 0)]
        assert coordinator.describe_groups(["idle"])["idle"].members == []  # type: ignore[union-attr]


def test_group_of_many_partitions_is_imported_by_several_commits(store: Path) -> None:
    offsets = {TopicPartition(f"topic-{number % 7}", number): NodeOffset(number, number) for number in range(2_000)}
    with opened(store) as coordinator:
        assert counts(imported(coordinator, offsets, "a group with a long name" * 20)) == (2_000, 0, 0)


def test_commits_of_a_group_are_as_large_as_they_may_be(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_import, "_MAX_COMMIT_BYTES", 2 * (200 + 4 * len("gt")))
    sizes: list[int] = []
    with opened(store) as coordinator:
        commit = coordinator.commit_offsets_if

        def counted(group_id: str, offsets: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - the original's
            sizes.append(len(offsets))
            return commit(group_id, offsets, *arguments, **options)

        monkeypatch.setattr(coordinator, "commit_offsets_if", counted)
        for number in (5, 4, 0):
            offsets = {TopicPartition("t", each): NodeOffset(each, None) for each in range(number)}
            assert imported(coordinator, offsets, "g").skipped == []
    assert sizes == [2, 2, 1, 2, 2]


@pytest.mark.parametrize(
    ("offset", "modified_ms", "held", "expected"),
    [
        (1, None, None, "import"),
        # committed to the store at 100: only a later commit to ZooKeeper moves it, and only forward
        *[(6, 101, (5, "", 100), "import"), (6, 100, (5, "", 100), "keep"), (6, None, (5, "", 100), "keep")],
        *[(5, 101, (5, "", 100), "keep"), (4, 101, (5, "", 100), "keep")],
        # imported as of 1 s
        *[(4, 1_001, (5, "Z", 9), "import"), (6, 999, (5, "Z", 9), "up to date")],
        *[(5, 1_000, (5, "Z", 9), "up to date"), (4, 1_000, (5, "Z", 9), "import")],
        # without a time in ZooKeeper now or then
        *[(6, None, (5, "Z", 9), "import"), (5, None, (5, "Z", 9), "up to date"), (4, None, (5, "Z", 9), "up to date")],
        *[(6, 7, (5, "zookeeper", 9), "import"), (5, 7, (5, "zookeeper", 9), "up to date")],
        (6, 7, (5, "zookeeper mtime=never", 9), "keep"),  # another program's metadata
    ],
)
def test_decision_about_an_offset(
    offset: int, modified_ms: int | None, held: tuple[int, str, int] | None, expected: str
) -> None:
    found = None
    if held is not None:
        metadata = "zookeeper mtime=1970-01-01T00:00:01Z" if held[1] == "Z" else held[1]
        found = CommittedOffset(0, held[0], None, metadata, held[2], None, None)
    assert decide(NodeOffset(offset, modified_ms), found).value == expected


def test_import_that_ended_early_is_completed_by_the_next_one_and_commits_each_offset_once(store: Path) -> None:
    groups = [GroupNodes(f"g{number}", {T0: NodeOffset(number, YEARS_AGO_MS)}) for number in range(600)]
    with opened(store) as coordinator:
        begun = import_offsets(coordinator, groups)
        assert [next(begun).imported for _ in range(5)] == [1] * 5
    with opened(store) as coordinator:
        before = sum(bool(coordinator.fetch_offsets(each.group_id)) for each in groups)
        assert 5 <= before < 600
        results = list(import_offsets(coordinator, groups))
        assert sum(each.imported for each in results) == 600 - before
        assert [coordinator.fetch_offsets(each.group_id)[T0].offset for each in groups] == list(range(600))
    records = [(row.key, row.value) for rows in log_of(store).values() for row in rows]
    assert len(records) == len({key for key, _ in records}) == 600


def test_command_creates_the_store_and_shows_registered_consumers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = tmp_path / "dump.txt"
    dump.write_text(
        "/consumers/g/offsets/orders/0 42 1457000000000\n/consumers/g/offsets/orders/1 no\n"
        "/consumers/g/ids/g_host-1 {}\n/consumers/g/owners/orders/0 g_host-1-0\n",
        encoding="utf-8",
    )
    command = ["import-zookeeper", "--store", str(tmp_path / "new"), "--dump", str(dump)]
    assert main([*command, "--offsets-partitions", "3", "--format", "json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out) == {
        "group": "g",
        "offsets": 1,
        "imported": 1,
        "up_to_date": 0,
        "kept": 0,
        "skipped": 1,
        "consumer_ids": ["g_host-1"],
        "owners": {"orders-0": "g_host-1-0"},
        "skipped_nodes": [{"path": "/consumers/g/offsets/orders/1", "reason": "'no' is not a number"}],
    }
    assert "skipped /consumers/g/offsets/orders/1: 'no' is not a number" in output.err
    assert "1 offset of 1 group imported" in output.err
    assert main(command) == 0
    assert "0 offsets of 1 group imported" in capsys.readouterr().err
    assert main([*command, "--offsets-partitions", "4"]) == 1
    with opened(tmp_path / "new") as coordinator:
        group = coordinator.get_group("g")
        assert group is not None
        assert (group.state, list(group.members)) == ("Empty", [])  # R25


def test_import_goes_to_the_log_also_where_commits_go_to_zookeeper(tmp_path: Path) -> None:
    (tmp_path / "dump.txt").write_text("/consumers/g/offsets/orders/0 42\n", encoding="utf-8")
    config = tmp_path / "offsets.toml"
    config.write_text('[coordinator]\noffsets_storage = "zookeeper"\n', encoding="utf-8")
    store = str(tmp_path / "new")
    assert (
        main(["import-zookeeper", "--store", store, "--dump", str(tmp_path / "dump.txt"), "--config", str(config)]) == 0
    )
    with opened(store) as coordinator:
        assert coordinator.fetch_offsets("g")[TopicPartition("orders", 0)].offset == 42


def test_command_line_needs_one_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["import-zookeeper", "--store", str(tmp_path / "s")]
    assert main(command) == 2
    assert main([*command, "--dump", "x", "--zookeeper", "h:1"]) == 2
    capsys.readouterr()
    assert main([*command, "--zookeeper", "h:1:2"]) == 2
    assert "it takes HOST:PORT" in capsys.readouterr().err
    assert main([*command, "--dump", "x"]) == 1
    assert not (tmp_path / "s").exists()
