"""Random requests about groups, which a broker and a coordinator answer alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.coordinator.requests import OffsetAndMetadata
from tests.kafka.script import LIMIT, PLACES, note
from tests.kafka.steps import ANYBODY, Joining, Step, Who

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from tests.kafka.steps import Offsets

CONSUMERS = {"x": "classic", "y": "classic", "z": "modern"}  # y is a static member
GROUPS = ("a", "b", "classic", "modern", "")
PRODUCERS = ("p", "q", "r")
KINDS = {"commit": 8, "delete offsets": 4, "delete group": 2, "send": 9, "end": 5, "begin": 4, "start": 1, "fetch": 2}


def random_requests(chance: random.Random, count: int) -> Iterator[Step]:
    """Members and producers, then this number of requests in no order. The answers of the steps are not known."""
    yield Step("join", lambda on: on.join("classic", Joining("x", ("t",)), Joining("y", ("t",), "i")))
    yield Step("join", lambda on: on.join("modern", Joining("z", ("u",)), protocol="consumer"))
    for producer in PRODUCERS:
        yield _start(producer)
    states = dict.fromkeys(PRODUCERS, "begun")
    for number in range(count):
        (kind,) = chance.choices(list(KINDS), list(KINDS.values()))
        producer = chance.choice(PRODUCERS)
        # a client sends no request to begin, and none to end a transaction in which it has sent nothing
        if (kind, states[producer]) in {("begin", "begun"), ("begin", "sent"), ("end", "begun")}:
            continue
        step, state = _request(chance, kind, producer)
        states[producer] = state or states[producer]
        if kind == "send" and states[producer] == "begun":
            states[producer] = "sent"
        yield Step(f"{number}: {step.what}", step.do)


def _start(producer: str) -> Step:
    return Step(f"start {producer}", lambda on: on.start(producer, f"tx-{producer}", by_hand=True))


def _request(chance: random.Random, kind: str, producer: str) -> tuple[Step, str | None]:
    """A request, and the state of the producer's transaction after it; None: as before."""
    group_id, who, offsets = chance.choice(GROUPS), _who(chance), _offsets(chance)
    if who.consumer is not None and chance.random() < 0.8:
        group_id = CONSUMERS[who.consumer]
    commits = chance.random() < 0.6
    if kind == "fetch" and who.member_id == "":
        who = ANYBODY  # a broker fails at an epoch without a member: UNKNOWN_SERVER_ERROR
    if kind == "send" and group_id == "":
        group_id = "a"
    what = f"{kind} {group_id!r} {who} {producer} {commits} {offsets}"
    steps: dict[str, tuple[Step, str | None]] = {
        "commit": (Step(what, lambda on: on.commit(group_id, offsets, who)), None),
        "delete offsets": (Step(what, lambda on: on.delete_offsets(group_id, offsets)), None),
        "delete group": (Step(what, lambda on: on.delete_group(group_id)), None),
        "fetch": (Step(what, lambda on: on.fetch(group_id, who)), None),
        "send": (Step(what, lambda on: on.send(producer, group_id, offsets, who)), None),
        "end": (Step(what, lambda on: on.end(producer, commit=commits)), "ended"),
        "begin": (Step(what, lambda on: on.begin(producer)), "begun"),
        "start": (_start(producer), "begun"),
    }
    return steps[kind]


def _who(chance: random.Random) -> Who:
    if chance.random() < 0.5:
        return Who(
            chance.choice(list(CONSUMERS)),
            later=chance.choice([0, 0, 0, 0, 1, -1]),
            generation=chance.choice([None] * 5 + [-1, 0]),
            member_id=chance.choice([None] * 5 + ["", "m"]),
            instance_id=chance.choice([None] * 6 + ["i", "j"]),
        )
    if chance.random() < 0.3:
        return Who(
            generation=chance.choice([-1, 0, 1]),
            member_id=chance.choice(["", "m"]),
            instance_id=chance.choice([None, "i"]),
        )
    return ANYBODY


def _offsets(chance: random.Random) -> Offsets:
    """Offsets of some partitions, sometimes one of them with a note that is too long: never all of them."""
    offsets = {
        place: OffsetAndMetadata(chance.randrange(100), chance.choice([None, 0, 3]), chance.choice(["", "m", "é"]))
        for place in chance.sample(PLACES, chance.randint(1, 3))
    }
    if chance.random() < 0.1 and len(offsets) > 1:
        offsets[next(iter(offsets))] = note(LIMIT + 1)
    return offsets
