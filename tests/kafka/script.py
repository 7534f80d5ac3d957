"""The script that a broker and a coordinator both carry out, and how both answer."""

from __future__ import annotations

from offsets_pipeline.coordinator.requests import OffsetAndMetadata
from tests.kafka.steps import Joining, Step, Who, commits

TOPICS = {"t": 4, "u": 2}
PLACES = [(topic, partition) for topic, partitions in TOPICS.items() for partition in range(partitions)]
LIMIT = 4096  # offset.metadata.max.bytes


def note(count: int, letter: str = "x") -> OffsetAndMetadata:
    """An offset with metadata of this length."""
    return OffsetAndMetadata(1, metadata=letter * count)


def refused(group_id: str, who: Who, error: str) -> Step:
    """A commit that is refused."""
    return Step(f"commit of {who}", lambda on: on.commit(group_id, commits("t", 99), who), (error,))


def refused_in_transaction(producer: str, group_id: str, who: Who, error: str) -> Step:
    """A commit that is refused, in a transaction."""
    return Step(f"{producer}: {who}", lambda on: on.send(producer, group_id, commits("t", 99), who), (error,))


def beside_it(group_id: str) -> Step:
    """Write a record of a group, because a broker keeps an empty group that it has no record of."""
    return Step(
        f"what is written beside it, {group_id}",
        lambda on: on.commit(group_id, commits("t", 1)),
        because="ADR 13: a broker lists the group, until it loads its log again",
        apart=frozenset({"ghost"}),
    )


SIMPLE_GROUPS = [
    Step("offsets of an unknown group", lambda on: on.fetch("none")),
    Step("an unknown group is described", lambda on: on.describe("none"), ("GROUP_ID_NOT_FOUND",)),
    Step("an unknown group is deleted", lambda on: on.delete_group("none"), ("GROUP_ID_NOT_FOUND",)),
    Step(
        "offsets of an unknown group are deleted",
        lambda on: on.delete_offsets("none", [("t", 0)]),
        ("GROUP_ID_NOT_FOUND",),
    ),
    Step(
        "a member commits for an unknown group",
        lambda on: on.commit("none", commits("t", 1), Who(generation=0, member_id="m")),
        ("GROUP_ID_NOT_FOUND",),
    ),
    Step("Admin commits", lambda on: on.alter("simple", commits("t", OffsetAndMetadata(5, 7, "note"), 0))),
    Step("a consumer alone commits", lambda on: on.commit_alone("simple", commits("t", 6))),
    Step("another topic", lambda on: on.commit_alone("simple", commits("u", OffsetAndMetadata(2, 0, "größe €")))),
    Step("a lower offset is as good", lambda on: on.commit("simple", commits("t", 3))),
    Step("a member of an empty group", lambda on: on.commit("simple", commits("t", 4), Who(member_id="m"))),
    Step(
        "a generation of an empty group",
        lambda on: on.commit("simple", commits("t", 4), Who(generation=0, member_id="m")),
        ("UNKNOWN_MEMBER_ID",),
    ),
    Step("an hour of retention", lambda on: on.commit("kept", commits("t", 1, 2), retention_time_ms=3_600_000)),
    Step("a note of 4096", lambda on: on.commit("simple", commits("t", note(LIMIT)))),
    Step(
        "a note of 4097, another offset is committed",
        lambda on: on.commit("simple", commits("t", note(LIMIT + 1), 9)),
        ("OFFSET_METADATA_TOO_LARGE",),
    ),
    Step(
        "a note of 4097 to Admin",
        lambda on: on.alter("simple", commits("t", note(LIMIT + 1))),
        ("OFFSET_METADATA_TOO_LARGE",),
    ),
    Step(
        "a note of 4096 letters of two bytes",
        lambda on: on.commit("simple", commits("t", note(LIMIT, "ü"))),
        store=("OFFSET_METADATA_TOO_LARGE",),
        because="ADR 13: bytes are bytes, where a broker counts letters",
        apart=frozenset({"simple"}),
    ),
    Step("the same again", lambda on: on.commit("simple", commits("t", 1))),
    Step(
        "a negative offset",
        lambda on: on.commit("simple", {("t", 3): OffsetAndMetadata(-5)}),
        store=("OFFSET_OUT_OF_RANGE",),
        because="ADR 13: a negative offset is refused",
        apart=frozenset({"simple"}),
    ),
    Step("its last offset is deleted", lambda on: on.delete_offsets("simple", [("t", 3)])),
    Step(
        "a topic that is none",
        lambda on: on.commit("simple", commits("nowhere", 1)),
        ("UNKNOWN_TOPIC_OR_PARTITION",),
        store=(),
        because="ADR 13: which topics there are an owned store does not know",
        apart=frozenset({"simple"}),
    ),
    Step(
        "the offset of a topic that does not exist is deleted",
        lambda on: on.delete_offsets("simple", [("nowhere", 0)]),
        ("UNKNOWN_TOPIC_OR_PARTITION",),
        store=(),
        because="ADR 13: which topics there are an owned store does not know",
    ),
    Step("offsets are deleted, some there and some not", lambda on: on.delete_offsets("simple", PLACES[:3])),
    Step("an offset is deleted again", lambda on: on.delete_offsets("simple", PLACES[:1])),
    Step("the empty group id", lambda on: on.commit("", commits("t", 1))),
    Step("the empty group id is asked for", lambda on: on.fetch("")),
    Step("the empty group id's offsets are deleted", lambda on: on.delete_offsets("", PLACES), ("INVALID_GROUP_ID",)),
    Step("the empty group id is deleted", lambda on: on.delete_group("")),
    Step("the group is deleted", lambda on: on.delete_group("simple")),
    Step("the group is deleted again", lambda on: on.delete_group("simple"), ("GROUP_ID_NOT_FOUND",)),
    Step("and comes back with less", lambda on: on.commit("simple", commits("u", 1))),
]

CLASSIC_GROUPS = [
    Step("there are offsets first", lambda on: on.commit("active", {**commits("t", 1), **commits("u", 1, 2)})),
    Step("two members join", lambda on: on.join("active", Joining("a", ("t",)), Joining("b", ("t",), "i"))),
    Step("one commits", lambda on: on.commit_sync("a", commits("t", 10))),
    Step("the static one commits", lambda on: on.commit_sync("b", commits("t", OffsetAndMetadata(11, 3, "b"), 12))),
    Step("one commits by hand", lambda on: on.commit("active", commits("t", 13), Who("a"))),
    Step("the static one without its instance", lambda on: on.commit("active", commits("t", 14), Who("b"))),
    *(
        refused("active", who, error)
        for who, error in (
            (Who(), "UNKNOWN_MEMBER_ID"),
            (Who("a", member_id="x"), "UNKNOWN_MEMBER_ID"),
            (Who("a", member_id=""), "UNKNOWN_MEMBER_ID"),
            (Who("a", instance_id="j"), "UNKNOWN_MEMBER_ID"),
            (Who("a", instance_id="i"), "FENCED_INSTANCE_ID"),
            (Who("a", later=1), "ILLEGAL_GENERATION"),
            (Who("a", generation=0), "ILLEGAL_GENERATION"),
            (Who("a", generation=-1), "ILLEGAL_GENERATION"),
            (Who("b", later=1), "ILLEGAL_GENERATION"),
            (Who("b", member_id="x"), "FENCED_INSTANCE_ID"),
        )
    ),
    Step("Admin may not", lambda on: on.alter("active", commits("t", 99)), ("UNKNOWN_MEMBER_ID",)),
    Step("anybody may ask", lambda on: on.fetch("active", Who("a", later=3, member_id="x"))),
    Step("an active group is not deleted", lambda on: on.delete_group("active"), ("NON_EMPTY_GROUP",)),
    Step(
        "nor offsets of its topic", lambda on: on.delete_offsets("active", [("t", 0)]), ("GROUP_SUBSCRIBED_TO_TOPIC",)
    ),
    Step(
        "but others beside them",
        lambda on: on.delete_offsets("active", [("t", 0), ("u", 0)]),
        ("GROUP_SUBSCRIBED_TO_TOPIC",),
    ),
    Step("a producer starts", lambda on: on.start("of members", "tx-members", by_hand=True)),
    Step("it commits for a member", lambda on: on.send("of members", "active", commits("t", 20), Who("a"))),
    Step("for the static one", lambda on: on.send("of members", "active", commits("t", 20, 21), Who("b"))),
    Step("and without a member", lambda on: on.send("of members", "active", {("t", 2): OffsetAndMetadata(22)})),
    *(
        refused_in_transaction("of members", "active", who, error)
        for who, error in (
            (Who("a", member_id="x"), "UNKNOWN_MEMBER_ID"),
            (Who("a", member_id=""), "UNKNOWN_MEMBER_ID"),
            (Who("b", member_id="x"), "FENCED_INSTANCE_ID"),
            (Who("a", later=1), "ILLEGAL_GENERATION"),
            (Who("a", generation=-1), "ILLEGAL_GENERATION"),
        )
    ),
    Step("the rest of it shows", lambda on: on.end("of members", commit=True)),
    Step("the static member starts again", lambda on: on.join("active", Joining("c", ("t",), "i"))),
    Step("it commits", lambda on: on.commit_sync("c", commits("t", 30))),
    Step("who it was is fenced", lambda on: on.commit("active", commits("t", 99), Who("b")), ("FENCED_INSTANCE_ID",)),
    Step(
        "who it was is unknown without its instance",
        lambda on: on.commit("active", commits("t", 99), Who("b", instance_id="")),
        ("UNKNOWN_MEMBER_ID",),
    ),
    Step("a third joins, for another topic", lambda on: on.join("active", Joining("d", ("u",)))),
    Step(
        "an earlier generation",
        lambda on: on.commit("active", commits("t", 99), Who("a", later=-1)),
        ("ILLEGAL_GENERATION",),
    ),
    Step("its topic is kept too", lambda on: on.delete_offsets("active", [("u", 1)]), ("GROUP_SUBSCRIBED_TO_TOPIC",)),
    Step("it commits its topic", lambda on: on.commit_sync("d", commits("u", 40))),
    Step("it leaves", lambda on: on.leave("active", "d")),
    Step("one leaves", lambda on: on.leave("active", "a")),
    Step("and is unknown", lambda on: on.commit("active", commits("t", 99), Who("a")), ("UNKNOWN_MEMBER_ID",)),
    Step("nothing keeps the other topic", lambda on: on.delete_offsets("active", [("u", 0)])),
    Step("the last one leaves", lambda on: on.leave("active", "c")),
    Step("the last one is unknown", lambda on: on.commit("active", commits("t", 99), Who("c")), ("UNKNOWN_MEMBER_ID",)),
    Step("Admin may now", lambda on: on.alter("active", commits("t", 50))),
    Step("now offsets are deleted", lambda on: on.delete_offsets("active", [("t", 1), ("u", 1)])),
    Step("it is joined again", lambda on: on.join("active", Joining("e", ("t", "u")))),
    Step("and commits", lambda on: on.commit_sync("e", commits("u", 60))),
    Step("and leaves", lambda on: on.leave("active", "e")),
    Step("now it is deleted", lambda on: on.delete_group("active")),
]

_NO_REBALANCE = "ADR 13: of a rebalance the log tells nothing, so the state is another"
REBALANCES = [
    Step(
        "one has joined",
        lambda on: on.half_join("half", "h", "consumer", ("t",)),
        because=_NO_REBALANCE,
        apart=frozenset({"half"}),
    ),
    *(
        Step(what, do, answer, because=_NO_REBALANCE, apart=frozenset({"half"}))
        for what, do, answer in (
            (
                "nothing is agreed upon",
                lambda on: on.commit("half", commits("t", 1), Who("h")),
                ("REBALANCE_IN_PROGRESS",),
            ),
            (
                "not in that generation",
                lambda on: on.commit("half", commits("t", 1), Who("h", later=1)),
                ("ILLEGAL_GENERATION",),
            ),
            ("not by anybody", lambda on: on.commit("half", commits("t", 1)), ("UNKNOWN_MEMBER_ID",)),
            ("it is not empty", lambda on: on.delete_group("half"), ("NON_EMPTY_GROUP",)),
            (
                "it subscribes",
                lambda on: on.delete_offsets("half", [("t", 0)]),
                ("GROUP_SUBSCRIBED_TO_TOPIC",),
            ),
            ("a producer starts", lambda on: on.start("of half", "tx-half", by_hand=True), ()),
            (
                "a transaction does not mind",
                lambda on: on.send("of half", "half", commits("t", 2), Who("h")),
                (),
            ),
        )
    ),
    Step("it is agreed upon", lambda on: on.sync("half", "h")),
    Step("the transaction ends", lambda on: on.end("of half", commit=True)),
    Step("the member commits", lambda on: on.commit("half", commits("t", 3), Who("h"))),
    Step("it leaves", lambda on: on.leave("half", "h")),
    Step(
        "a member of another protocol",
        lambda on: on.half_join("other", "o", "other", ()),
        because=_NO_REBALANCE,
        apart=frozenset({"other"}),
    ),
    Step("is agreed upon", lambda on: on.sync("other", "o")),
    Step("it commits", lambda on: on.commit("other", {**commits("t", 1), **commits("u", 2)}, Who("o"))),
    Step("its offsets are kept", lambda on: on.delete_offsets("other", [("t", 0)]), ("NON_EMPTY_GROUP",)),
    Step("it leaves them", lambda on: on.leave("other", "o")),
    Step("and they are deleted", lambda on: on.delete_offsets("other", [("t", 0)])),
]

CONSUMER_GROUPS = [
    Step("offsets that are there first", lambda on: on.commit("modern", {**commits("t", 1), **commits("u", 1)})),
    Step("a consumer joins", lambda on: on.join("modern", Joining("k", ("t",)), protocol="consumer")),
    Step("the consumer commits", lambda on: on.commit_sync("k", commits("t", OffsetAndMetadata(2, 1, "k")))),
    *(
        refused("modern", who, error)
        for who, error in (
            (Who(), "UNKNOWN_MEMBER_ID"),
            (Who("k", member_id="x"), "UNKNOWN_MEMBER_ID"),
            (Who("k", later=1), "STALE_MEMBER_EPOCH"),
            (Who("k", generation=0), "STALE_MEMBER_EPOCH"),
            (Who("k", generation=-1), "STALE_MEMBER_EPOCH"),
        )
    ),
    Step("it asks", lambda on: on.fetch("modern", Who("k"))),
    Step("anybody asks", lambda on: on.fetch("modern")),
    Step("a stranger asks", lambda on: on.fetch("modern", Who("k", member_id="x")), ("UNKNOWN_MEMBER_ID",)),
    Step("of a later epoch", lambda on: on.fetch("modern", Who("k", later=1)), ("STALE_MEMBER_EPOCH",)),
    Step("a consumer group is not deleted", lambda on: on.delete_group("modern"), ("NON_EMPTY_GROUP",)),
    Step(
        "nor what it subscribes to",
        lambda on: on.delete_offsets("modern", [("t", 0), ("u", 0)]),
        ("GROUP_SUBSCRIBED_TO_TOPIC",),
    ),
    Step("a producer of its own", lambda on: on.start("of epoch", "tx-epoch", by_hand=True)),
    Step("commits in its epoch", lambda on: on.send("of epoch", "modern", commits("t", 3), Who("k"))),
    Step("or in none", lambda on: on.send("of epoch", "modern", commits("u", 3))),
    *(
        refused_in_transaction("of epoch", "modern", who, error)
        for who, error in (
            (Who("k", later=1), "ILLEGAL_GENERATION"),
            (Who("k", member_id="x"), "UNKNOWN_MEMBER_ID"),
        )
    ),
    Step("what it sent shows", lambda on: on.end("of epoch", commit=True)),
    Step("another consumer joins", lambda on: on.join("modern", Joining("l", ("t", "u")), protocol="consumer")),
    Step(
        "in an epoch before",
        lambda on: on.commit("modern", commits("t", 99), Who("k", later=-1)),
        ("STALE_MEMBER_EPOCH",),
    ),
    Step("in its epoch", lambda on: on.commit("modern", commits("t", 4), Who("k"))),
    Step("a consumer leaves", lambda on: on.leave("modern", "k")),
    Step("it is a stranger", lambda on: on.commit("modern", commits("t", 99), Who("k")), ("UNKNOWN_MEMBER_ID",)),
    Step("the last consumer leaves", lambda on: on.leave("modern", "l")),
    Step(
        "the member that left commits",
        lambda on: on.commit("modern", commits("t", 99), Who("l")),
        ("UNKNOWN_MEMBER_ID",),
    ),
    Step("but Admin", lambda on: on.alter("modern", commits("t", 5))),
    Step("its topic is free", lambda on: on.delete_offsets("modern", [("t", 0)])),
    Step("the consumer group is deleted", lambda on: on.delete_group("modern")),
]

SHARE_GROUPS = [
    Step("somebody shared", lambda on: on.share("share", ("t",))),
    Step("a share group has no commits", lambda on: on.commit("share", commits("t", 1)), ("GROUP_ID_NOT_FOUND",)),
    Step("a fetch finds none", lambda on: on.fetch("share")),
    Step("nor offsets to delete", lambda on: on.delete_offsets("share", [("t", 0)]), ("GROUP_ID_NOT_FOUND",)),
    Step("a producer for it", lambda on: on.start("of share", "tx-share", by_hand=True)),
    Step("has none either", lambda on: on.send("of share", "share", commits("t", 1)), ("GROUP_ID_NOT_FOUND",)),
    Step("it ends", lambda on: on.end("of share", commit=False)),
]

TRANSACTIONS = [
    Step("a transaction begins", lambda on: on.start("p", "tx")),
    Step("it makes a group", lambda on: on.send("p", "txn", commits("t", 1, OffsetAndMetadata(2, 3, "note")))),
    Step("it shows", lambda on: on.end("p", commit=True)),
    Step("the next begins", lambda on: on.begin("p")),
    Step("it holds an offset that is there", lambda on: on.send("p", "txn", commits("t", 99))),
    Step("and a new one, of two groups", lambda on: on.send("p", "txn of more", commits("u", 99))),
    Step("it never shows", lambda on: on.end("p", commit=False)),
    Step("one more begins", lambda on: on.begin("p")),
    Step("it commits", lambda on: on.send("p", "txn", commits("t", 5, 5))),
    Step("and somebody else, later", lambda on: on.commit("txn", commits("t", 4))),
    Step("who is later wins", lambda on: on.end("p", commit=True)),
    Step("two begin: one", lambda on: on.begin("p")),
    Step("two begin: two", lambda on: on.start("q", "tx-2")),
    Step("one commits", lambda on: on.send("p", "txn", commits("t", 6))),
    Step("two commits, later", lambda on: on.send("q", "txn", commits("t", 7))),
    Step("two shows", lambda on: on.end("q", commit=True)),
    Step("one does not any more", lambda on: on.end("p", commit=True)),
    Step("what is held may be deleted", lambda on: on.begin("p")),
    Step("it is held", lambda on: on.send("p", "txn", commits("t", 8, 8))),
    Step("it is deleted", lambda on: on.delete_offsets("txn", [("t", 0)])),
    Step("and does not come back", lambda on: on.end("p", commit=True)),
    Step("a group may be deleted", lambda on: on.begin("p")),
    Step("while it has something open", lambda on: on.send("p", "txn", commits("t", 9, 9))),
    Step("it goes", lambda on: on.delete_group("txn")),
    Step("and does not come back either", lambda on: on.end("p", commit=True)),
    Step("who is replaced has something open", lambda on: on.begin("p")),
    Step("of a new group", lambda on: on.send("p", "txn", commits("t", 10))),
    Step("it is replaced, what it had is aborted", lambda on: on.start("r", "tx")),
    Step("and is fenced", lambda on: on.send("p", "txn", commits("t", 99)), ("INVALID_PRODUCER_EPOCH",)),
    Step("in every way", lambda on: on.end("p", commit=True), ("INVALID_PRODUCER_EPOCH",)),
    Step("the new one goes on", lambda on: on.send("r", "txn", commits("t", 11))),
    Step("and shows", lambda on: on.end("r", commit=True)),
    Step("one that hangs", lambda on: on.start("h", "tx-hanging", timeout_ms=1_000)),
    Step("another that hangs", lambda on: on.start("i", "tx-hanging-too", timeout_ms=2_000, by_hand=True)),
    Step("holds an offset", lambda on: on.send("h", "txn", commits("t", 99))),
    Step("the other too", lambda on: on.send("i", "txn", commits("t", 99))),
    Step("until its time is over", lambda on: on.wait_for_abort("h")),
    Step("and the other's", lambda on: on.wait_for_abort("i")),
    Step("who hung is fenced", lambda on: on.send("i", "txn", commits("t", 99)), ("INVALID_PRODUCER_EPOCH",)),
    Step("in every way too", lambda on: on.end("i", commit=True), ("INVALID_PRODUCER_EPOCH",)),
    Step(
        "a client since KIP-890",
        lambda on: on.end("h", commit=True),
        ("INVALID_TXN_STATE",),
        store=("INVALID_PRODUCER_EPOCH",),
        because="ADR 13: of an epoch that ended so, newer clients are told otherwise",
    ),
    Step("by hand: one begins", lambda on: on.start("x", "tx-hand", by_hand=True)),
    Step(
        "a generation of no group",
        lambda on: on.send("x", "none", commits("t", 1), Who(generation=0, member_id="m")),
        ("ILLEGAL_GENERATION",),
    ),
    Step(
        "a note that is too long",
        lambda on: on.send("x", "txn", commits("t", note(LIMIT + 1), 12)),
        ("OFFSET_METADATA_TOO_LARGE",),
    ),
    Step("the empty group id is none", lambda on: on.send("x", "", commits("t", 1)), ("INVALID_GROUP_ID",)),
    Step("the rest shows", lambda on: on.end("x", commit=True)),
    Step("nothing has begun", lambda on: on.send("x", "txn", commits("t", 99)), ("INVALID_TXN_STATE",)),
    Step("ended it is already", lambda on: on.end("x", commit=True)),
    Step("otherwise it cannot end", lambda on: on.end("x", commit=False), ("INVALID_TXN_STATE",)),
    Step("by hand: it begins again", lambda on: on.begin("x")),
    Step("it commits by hand", lambda on: on.send("x", "txn", commits("t", 13))),
    Step("by hand: it is replaced", lambda on: on.start("y", "tx-hand", by_hand=True)),
    Step("by hand: it is fenced", lambda on: on.send("x", "txn", commits("t", 99)), ("INVALID_PRODUCER_EPOCH",)),
    Step("by hand: in every way", lambda on: on.end("x", commit=False), ("INVALID_PRODUCER_EPOCH",)),
    Step("what is left open", lambda on: on.send("y", "txn", commits("t", 14, 14))),
]

NOTHING_COMMITTED = [
    Step(
        "a new group with a note that is too long",
        lambda on: on.commit("ghost", commits("t", note(LIMIT + 1))),
        ("OFFSET_METADATA_TOO_LARGE",),
    ),
    *(beside_it(group_id) for group_id in ("a", "b", "c")),
]

SCRIPT = [
    *SIMPLE_GROUPS,
    *CLASSIC_GROUPS,
    *REBALANCES,
    *CONSUMER_GROUPS,
    *SHARE_GROUPS,
    *TRANSACTIONS,
    *NOTHING_COMMITTED,
]

#: In the order of their becoming due, so that who stays stays longer than the last that goes.
RETENTION = [
    Step("an hour of its own", lambda on: on.commit("an hour", commits("t", 1), retention_time_ms=3_600_000)),
    Step("offsets of two topics", lambda on: on.commit("active", {**commits("t", 1), **commits("u", 1)})),
    Step("the classic group subscribes to one of them", lambda on: on.join("active", Joining("a", ("t",)))),
    Step("two topics more", lambda on: on.commit("modern", {**commits("t", 1), **commits("u", 1)})),
    Step(
        "the modern group subscribes to one of them",
        lambda on: on.join("modern", Joining("k", ("t",)), protocol="consumer"),
    ),
    Step("two offsets", lambda on: on.commit("open", commits("t", 1, 1))),
    Step("a transaction that stays open", lambda on: on.start("p", "tx", timeout_ms=900_000)),
    Step("holds one of them", lambda on: on.send("p", "open", commits("t", 2))),
    Step("and a group of nothing", lambda on: on.send("p", "only open", commits("t", 2))),
    Step("a group that is left", lambda on: on.join("left", Joining("l", ("t",)))),
    Step("commits", lambda on: on.commit_sync("l", commits("t", 1))),
    Step("and is left", lambda on: on.leave("left", "l")),
    Step("a simple group", lambda on: on.commit("simple", commits("t", 1))),
]
SOON = [
    Step("a second of its own", lambda on: on.commit("a second", commits("t", 1), retention_time_ms=1_000)),
    Step("a second of one of two", lambda on: on.commit("simple", commits("u", 1), retention_time_ms=1_000)),
    Step("a group of what is held", lambda on: on.send("p", "open of nothing", commits("t", 2))),
    Step("and deleted", lambda on: on.delete_offsets("open of nothing", [("t", 0)])),
    Step("two offsets, soon none", lambda on: on.commit("emptied", commits("t", 1, 1))),
    Step("none", lambda on: on.delete_offsets("emptied", [("t", 0), ("t", 1)])),
]
