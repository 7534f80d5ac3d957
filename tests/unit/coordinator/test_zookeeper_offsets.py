"""Offsets in the log and in ZooKeeper's nodes. `tests/kafka/test_zookeeper.py` asks a real ZooKeeper and a broker."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.coordinator.appender import Request
from offsets_pipeline.coordinator.handlers import FetchedOffset
from offsets_pipeline.coordinator.requests import MemberOfGroup, OffsetAndMetadata
from offsets_pipeline.coordinator.zookeeper.consumer_nodes import (
    GroupNodes,
    Missing,
    Node,
    NodeOffset,
    SkippedNode,
    delete_group,
    group_ids,
    offset_path,
    read_groups,
    read_offsets,
)
from offsets_pipeline.errors import (
    GroupSubscribedToTopic,
    InvalidGroupId,
    InvalidRequest,
    NonEmptyGroup,
    NoSuchGroup,
    OffsetMetadataTooLarge,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
    ZooKeeperFailed,
)
from offsets_pipeline.repair.offset_reset.group_offsets import owned_group_offsets
from offsets_pipeline.repair.offset_reset.plan import GroupOffsets
from tests.unit.coordinator.groups import stable
from tests.unit.coordinator.states import at, refusal
from tests.unit.coordinator.stores import opened
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from offsets_pipeline.coordinator.coordinator import Coordinator
    from offsets_pipeline.coordinator.owned_log import PreparedAppend
    from offsets_pipeline.store.delta.snapshot import Commit

FORBIDDEN = "the node's ACL does not allow reading it"


class Tree:
    """ZooKeeper's nodes in memory, with the methods of a client. Each node changed last at 7 ms."""

    at = "zoo:2181"

    def __init__(self, **nodes: dict[str, str]) -> None:
        """``nodes``: by group id, the data of nodes by their paths below the group's."""
        self.nodes: dict[str, bytes] = {}
        self.forbidden: set[str] = set()
        self.fails = False
        for group_id, of_group in nodes.items():
            self.write({f"/consumers/{group_id}/{path}": data.encode() for path, data in of_group.items()})

    def write(self, nodes: dict[str, bytes]) -> None:
        if self.fails:
            raise ZooKeeperFailed("it is away")
        for path, data in nodes.items():
            parts = path.split("/")
            self.nodes |= {
                above: b"" for end in range(2, len(parts)) if (above := "/".join(parts[:end])) not in self.nodes
            }
            self.nodes[path] = data

    def below(self, path: str) -> list[str]:
        return sorted(each.rpartition("/")[2] for each in self.nodes if each.rpartition("/")[0] == path)

    def children(self, paths: Iterable[str]) -> Iterator[tuple[str, list[str] | Missing]]:
        for path in paths:
            yield path, self._missing(path) or self.below(path)

    def read(self, paths: Iterable[str]) -> Iterator[tuple[str, Node | Missing]]:
        for path in paths:
            yield path, self._missing(path) or Node(self.nodes[path], 7)

    def delete(self, paths: Iterable[str]) -> int:
        there = [path for path in paths if path in self.nodes and not self.below(path)]
        return sum(self.nodes.pop(path) is not None for path in there)

    def close(self) -> None:
        """End the session."""

    def _missing(self, path: str) -> Missing | None:
        assert not {"", ".", ".."} & set(path.split("/")[1:])  # no server takes it
        if path in self.forbidden:
            return Missing.FORBIDDEN
        return None if path in self.nodes else Missing.ABSENT

    def offsets(self) -> dict[str, bytes]:
        """The nodes of offsets."""
        return {path: data for path, data in self.nodes.items() if path.count("/") == 5}


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch) -> Tree:
    """The tree that coordinators with ZooKeeper get."""
    tree = Tree()
    monkeypatch.setattr("offsets_pipeline.coordinator.zookeeper.client.ZooKeeperClient", lambda _: tree)
    return tree


@pytest.fixture
def dual(store: Path, tree: Tree) -> Iterator[Coordinator]:
    with opened(store, dual_commit_enabled=True) as coordinator:
        yield coordinator


def test_nodes_of_groups_are_their_offsets_registrations_and_what_is_skipped() -> None:
    tree = Tree(
        a={
            "offsets/t/0": "5",
            "offsets/t/1": "x",
            "offsets/u/0": "6",
            "ids/c2": "{}",
            "ids/c1": "{}",
            "owners/t/0": "c1",
        },
        b={"offsets/t/0": "1", "offsets/u/0": "2", "owners/u/3": "c3", "owners/t/0": "c4"},
        c={"ids": ""},
    )
    tree.forbidden = {
        "/consumers/b/offsets/t",
        "/consumers/b/offsets/u/0",
        "/consumers/b/owners/t/0",
        "/consumers/b/ids",
    }
    a = GroupNodes(
        "a",
        {at("t", 0): NodeOffset(5, 7), at("u", 0): NodeOffset(6, 7)},
        [SkippedNode("/consumers/a/offsets/t/1", "'x' is not a number")],
        ["c1", "c2"],
        {"t-0": "c1"},
    )
    skipped = [SkippedNode(f"/consumers/b/offsets/{each}", FORBIDDEN) for each in ("t", "u/0")]
    assert list(read_groups(tree, ["a", "b", "c", "d"])) == [  # type: ignore[arg-type]
        a,
        GroupNodes("b", {}, skipped, [], {"u-3": "c3"}),
        GroupNodes("c"),
        GroupNodes("d"),
    ]
    assert read_offsets(tree, "a") == GroupNodes("a", a.offsets, a.skipped)  # type: ignore[arg-type]
    chosen = [at("u", 0), at("u", 1), at("no/node", 0)]
    assert read_offsets(tree, "a", chosen) == GroupNodes("a", {at("u", 0): NodeOffset(6, 7)})  # type: ignore[arg-type]
    assert read_offsets(tree, "..") == GroupNodes("..")  # type: ignore[arg-type]


def test_groups_are_those_below_the_root_which_may_be_missing_or_forbidden() -> None:
    tree = Tree(b={"ids": ""}, a={"ids": ""})
    assert group_ids(tree) == group_ids(tree, must_exist=True) == ["a", "b"]  # type: ignore[arg-type]
    tree.forbidden = {"/consumers"}
    with pytest.raises(ZooKeeperFailed, match="at zoo:2181 does not allow reading /consumers: set digest"):
        group_ids(tree)  # type: ignore[arg-type]
    assert group_ids(Tree()) == []  # type: ignore[arg-type]
    with pytest.raises(ZooKeeperFailed, match="at zoo:2181 has no node /consumers: add Kafka's chroot"):
        group_ids(Tree(), must_exist=True)  # type: ignore[arg-type]


def test_deleted_group_has_no_nodes_and_its_offsets_are_counted() -> None:
    tree = Tree(a={"offsets/t/0": "5", "offsets/t/1": "x", "owners/t/0": "c", "ids/c": ""}, b={"offsets/t/0": "5"})
    assert delete_group(tree, "a") == 2  # type: ignore[arg-type]
    assert (tree.below("/consumers"), tree.offsets()) == (["b"], {"/consumers/b/offsets/t/0": b"5"})
    assert delete_group(tree, "..") is delete_group(tree, "none") is None  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0", "\x7f", "\ue000", "\uffff"])
def test_a_name_that_no_node_can_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidGroupId, match="no node can have this name"):
        offset_path(name, at())
    with pytest.raises(UnknownTopicOrPartition, match="no node can have this name"):
        offset_path("g", at(name))


def test_a_commit_to_both_is_answered_by_the_higher_offset(dual: Coordinator, store: Path, tree: Tree) -> None:
    dual.commit_offsets("g", {at("t", 0): OffsetAndMetadata(10, metadata="mine"), at("t", 1): OffsetAndMetadata(3)})
    assert tree.offsets() == {"/consumers/g/offsets/t/0": b"10", "/consumers/g/offsets/t/1": b"3"}
    of_log = {at("t", 0): FetchedOffset(10, metadata="mine"), at("t", 1): FetchedOffset(3)}
    assert dual.fetch_offsets("g") == of_log
    for path, data in (("g/offsets/t/0", b"9"), ("g/offsets/t/1", b"4"), ("g/offsets/t/2", b"no"), ("new/ids", b"")):
        tree.write({f"/consumers/{path}": data})
    found = dual.fetch_offsets("g")
    assert str(found[at("t", 2)].error) == (
        "cannot read the offset in node /consumers/g/offsets/t/2 of ZooKeeper: 'no' is not a number"
    )
    higher = {at("t", 0): FetchedOffset(10, metadata="mine"), at("t", 1): FetchedOffset(4)}
    assert {where: each for where, each in found.items() if each.error is None} == higher
    assert dual.fetch_offsets("g", [("t", 1), ("t", 9)]) == {
        at("t", 1): FetchedOffset(4),
        at("t", 9): FetchedOffset(None),
    }
    tree.write({"/consumers/g/offsets/t/2": b"0", "/consumers/g/offsets/t/no": b"1"})
    assert dual.fetch_all_offsets() == {"g": higher | {at("t", 2): FetchedOffset(0)}}
    with opened(store, partitions=[(dual.partition_for("g") + 1) % 3], dual_commit_enabled=True) as other:
        assert other.fetch_all_offsets() == {}
    with opened(store) as log:
        assert log.fetch_offsets("g") == of_log


def test_what_the_log_refuses_is_not_in_zookeeper(dual: Coordinator, tree: Tree) -> None:
    long = OffsetAndMetadata(1, metadata="x" * 5_000)
    with pytest.raises(OffsetMetadataTooLarge):
        dual.commit_offsets("g", {at("t", 0): long, at("t", 1): OffsetAndMetadata(2)})
    with pytest.raises(OffsetMetadataTooLarge):
        dual.commit_offsets("g", {at("t", 0): long})
    with pytest.raises(OffsetOutOfRange):
        dual.commit_offsets("g", {("t", 1): -1})
    assert tree.offsets() == {"/consumers/g/offsets/t/1": b"2"}
    assert dual.fetch_offsets("g") == {at("t", 1): FetchedOffset(2)}
    dual.begin_transaction(1, 0)
    with pytest.raises(InvalidRequest, match="cannot commit offsets in a transaction to ZooKeeper"):
        dual.txn_commit_offsets(1, 0, "g", {("t", 1): 1})


def test_an_open_transaction_is_the_answer_whatever_zookeeper_has(dual: Coordinator, store: Path, tree: Tree) -> None:
    with opened(store) as log:
        log.begin_transaction(1, 0)
        log.txn_commit_offsets(1, 0, "g", {("t", 0): 1})
    tree.write({"/consumers/g/offsets/t/0": b"5"})
    (answer,) = dual.fetch_offsets("g", [("t", 0)], require_stable=True).values()
    assert isinstance(answer.error, UnstableOffsetCommit)


def test_a_commit_to_zookeeper_alone_lowers_the_offset_of_the_log(store: Path, tree: Tree) -> None:
    with opened(store) as log, opened(store, offsets_storage="zookeeper") as zookeeper:
        log.commit_offsets("g", {("t", 0): 20, ("t", 1): 20, ("t", 2): 20})
        zookeeper.commit_offsets("g", {("t", 0): 15, ("t", 1): 20, ("t", 2): 25, ("t", 3): 1})
        assert {where.partition: each.offset for where, each in log.fetch_offsets("g").items()} == {0: 15, 1: 20, 2: 20}
        assert sorted(tree.offsets().values()) == [b"1", b"15", b"20", b"25"]


def test_a_failure_of_zookeeper_is_the_answer_and_the_log_has_the_commit(
    dual: Coordinator, store: Path, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.fails = True
    with pytest.raises(ZooKeeperFailed) as failed:
        dual.commit_offsets("g", {("t", 0): 1})
    assert str(failed.value) == "commit of group 'g': not all of it is in ZooKeeper: it is away; commit again"
    with opened(store) as log:
        assert log.fetch_offsets("g") == {at(): FetchedOffset(1)}
    tree.fails = False
    monkeypatch.setattr(Request, "seconds_left", lambda _: 0.0)  # the time is over before its turn comes
    with pytest.raises(ZooKeeperFailed, match="ZooKeeper did not take earlier commits in time; commit again"):
        dual.commit_offsets_async("g", {("t", 0): 1}).result(10)
    assert (tree.offsets(), dual.gauges().commits) == ({}, 0)


def test_deleted_offsets_and_groups_are_gone_from_both(dual: Coordinator, tree: Tree) -> None:
    dual.commit_offsets("g", {("t", 0): 1, ("t", 1): 1})
    for path in ("g/offsets/t/2", "there/offsets/t/0", "there/offsets/t/1", "odd/offsets/t/0"):
        tree.write({f"/consumers/{path}": b"" if path.startswith("odd") else b"2"})
    assert dual.delete_offsets("g", [("t", 0), ("t", 2)]) == 2  # ZooKeeper had both
    assert dual.delete_offsets("there", [("t", 0)]) == 1
    assert dual.delete_offsets("odd", [("t", 0)]) == 1
    assert tree.offsets() == {"/consumers/g/offsets/t/1": b"1", "/consumers/there/offsets/t/1": b"2"}
    tree.write({"/consumers/g/ids/c": b""})
    with pytest.raises(NonEmptyGroup, match="group 'g' has 1 consumers in ZooKeeper; stop them first"):
        dual.remove_group("g")
    tree.delete(["/consumers/g/ids/c"])
    tree.write({"/consumers/bare/owners/t": b""})
    assert [dual.remove_group(each) for each in ("g", "there", "bare")] == [1, 1, 0]
    with pytest.raises(NoSuchGroup):
        dual.remove_group("none")
    assert (tree.below("/consumers"), dual.fetch_all_offsets()) == (["odd"], {})


def test_offsets_of_a_topic_are_deleted_from_both(dual: Coordinator, tree: Tree) -> None:
    dual.commit_offsets("g", {("t", 0): 1, ("t", 1): 1, ("u", 0): 1})
    tree.write({"/consumers/g/offsets/t/2": b"2", "/consumers/g/offsets/t/3": b"no offset"})
    assert dual.delete_offsets("g", [("t", None), ("t", 0)]) == 4
    assert tree.offsets() == {"/consumers/g/offsets/u/0": b"1"}
    assert dual.fetch_offsets("g").keys() == {at("u")}


@pytest.mark.parametrize("of_log", [True, False])
def test_a_callback_may_close_and_the_requests_behind_it_are_answered(
    dual: Coordinator, tree: Tree, monkeypatch: pytest.MonkeyPatch, *, of_log: bool
) -> None:
    begun, goes_on, write = threading.Event(), threading.Event(), dual._core.log.write

    def late(append: PreparedAppend, *, durable: bool) -> list[Commit]:
        begun.set()
        assert goes_on.wait(10)
        return write(append, durable=durable)

    monkeypatch.setattr(dual._core.log, "write", late)
    offsets, closed = {("t", 0): 1}, threading.Event()

    def close(_: object) -> None:
        dual.close()
        closed.set()

    first: Future[Any] = (
        dual.commit_offsets_if("g", offsets, lambda *_: True) if of_log else dual.commit_offsets_async("g", offsets)
    )
    first.add_done_callback(close)
    assert begun.wait(10)
    behind = dual.commit_offsets_async("h", offsets)
    goes_on.set()
    assert closed.wait(10)
    if of_log:  # the thread of the log's requests closes, and appends this one afterwards
        with pytest.raises(ZooKeeperFailed, match="closed before it was in ZooKeeper; ask another coordinator"):
            behind.result(10)
    else:
        behind.result(10)
        assert sorted(tree.offsets()) == ["/consumers/g/offsets/t/0", "/consumers/h/offsets/t/0"]


def test_offsets_of_subscribed_topics_stay_in_both(dual: Coordinator, tree: Tree) -> None:
    dual.store_group(stable(generation=3))
    dual.commit_offsets("g", {("t", 0): 1, ("x", 0): 1}, member=MemberOfGroup("m", 3))
    with pytest.raises(GroupSubscribedToTopic):
        dual.delete_offsets("g", [("t", 0), ("x", 0)])
    assert tree.offsets() == {"/consumers/g/offsets/t/0": b"1"}


@pytest.mark.parametrize("acks", [-1, 0])
def test_a_deletion_is_written_behind_the_commits_before_it(dual: Coordinator, tree: Tree, acks: int) -> None:
    """The commits are in the log, and wait for ZooKeeper."""
    goes_on, write = threading.Event(), tree.write

    def late(nodes: dict[str, bytes]) -> None:
        assert goes_on.wait(10)
        write(nodes)

    tree.write = late  # type: ignore[method-assign]
    with ThreadPoolExecutor(2) as threads:
        commits = [threads.submit(dual.commit_offsets, each, {("t", 0): 7}, acks=acks) for each in ("g", "h")]
        wait_until("both commits are in the log", lambda: dual.gauges().appended_records == 2)
        deletions = [threads.submit(dual.delete_offsets, "g", [("t", 0)]), threads.submit(dual.remove_group, "h")]
        if acks == 0:
            wait_until("both deletions are in the log", lambda: dual.gauges().appended_records > 3)
        goes_on.set()
        assert [each.result(10) for each in commits] == [None, None]
        assert [each.result(10) for each in deletions] == [1, 1]
    assert (tree.offsets(), dual.fetch_all_offsets()) == ({}, {})


def test_what_may_not_be_read_is_an_error_and_nothing_is_deleted(dual: Coordinator, tree: Tree) -> None:
    dual.commit_offsets("g", {("t", 0): 5, ("u", 0): 6})
    offsets = tree.offsets()
    for path in ("offsets", "offsets/t"):
        tree.forbidden = {f"/consumers/g/{path}"}
        for fetch in (partial(dual.fetch_offsets, "g"), dual.fetch_all_offsets):
            with pytest.raises(ZooKeeperFailed, match=f"cannot read the offset in node /consumers/g/{path} of"):
                fetch()
    tree.forbidden = {"/consumers/g/ids"}
    tree.write({"/consumers/g/ids/live": b"{}"})
    with pytest.raises(ZooKeeperFailed, match="does not allow reading /consumers/g/ids: check its ACL"):
        dual.remove_group("g")
    assert dual.get_group("g") is not None
    tree.delete(["/consumers/g/ids/live", "/consumers/g/ids"])
    tree.forbidden = {"/consumers/g/offsets/t"}
    with pytest.raises(ZooKeeperFailed, match="does not allow reading /consumers/g/offsets/t: check its ACL"):
        dual.remove_group("g")
    assert tree.offsets() == offsets


def test_a_group_that_gets_nodes_while_it_is_deleted_is_an_error(tree: Tree) -> None:
    tree.write({"/consumers/g/offsets/t/0": b"5"})
    delete = tree.delete
    tree.delete = lambda paths: delete(path for path in paths if path != "/consumers/g/offsets")  # type: ignore[method-assign]
    with pytest.raises(ZooKeeperFailed, match="has new nodes below /consumers/g: delete the group again"):
        delete_group(tree, "g")  # type: ignore[arg-type]


def test_a_negative_number_is_no_offset(dual: Coordinator, tree: Tree) -> None:
    """A broker of 0.10 answers -1, which means that there is none."""
    dual.commit_offsets("g", {("t", 0): 42})
    tree.write({f"/consumers/g/offsets/t/{partition}": b"-1" for partition in range(2)})
    assert dual.fetch_offsets("g", [("t", 0), ("t", 1)]) == {
        at("t", 0): FetchedOffset(42),
        at("t", 1): FetchedOffset(None),
    }
    nodes = next(read_groups(tree, ["g"]))  # type: ignore[arg-type]
    assert nodes.skipped == [SkippedNode(f"/consumers/g/offsets/t/{each}", "'-1' is negative") for each in range(2)]


def test_a_callback_cannot_wait_for_another_commit(dual: Coordinator) -> None:
    refused, called = [], threading.Event()

    def call(_: object) -> None:
        refused.append(refusal(dual.commit_offsets, "h", {("t", 0): 1}))
        refused.append(refusal(dual.delete_offsets, "g", [("t", 0)]))
        dual.commit_offsets_async("k", {("t", 0): 1}).add_done_callback(lambda _: called.set())

    dual.commit_offsets_async("g", {("t", 0): 1}).add_done_callback(call)
    assert called.wait(10)
    assert refused == ["INVALID_REQUEST", "INVALID_REQUEST"]


def test_a_reset_covers_what_zookeeper_alone_has_and_refuses_what_it_cannot_read(dual: Coordinator, tree: Tree) -> None:
    tree.write({"/consumers/old/offsets/t/0": b"5"})
    assert owned_group_offsets(dual, ["old", "none"]) == {
        "old": GroupOffsets("Empty", {at("t", 0): 5}),
        "none": GroupOffsets(None, {}),
    }
    tree.write({"/consumers/old/offsets/t/1": b"x"})
    with pytest.raises(ZooKeeperFailed, match="cannot read the offset in node /consumers/old/offsets/t/1 of ZooKeeper"):
        owned_group_offsets(dual, ["old"])
