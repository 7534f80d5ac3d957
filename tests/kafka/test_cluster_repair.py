"""Repairs of groups in a live cluster, beside those of kafka-consumer-groups, and their undoing.

Each test makes a group for this program and one for Kafka's tool, alike, and compares what the broker then answers. One
broker serves all tests.
"""

from __future__ import annotations

import errno
import shlex
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.delta.store_folder import create_tables
from tests.kafka.live import SASL, LiveBroker, live_broker, wait_until
from tests.unit.lag.stores import folded_segments

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from offsets_pipeline.common.config import Settings
    from tests.kafka.brokers import KafkaJvm

Offsets = dict[tuple[str, int], int]
COMMITTED: Offsets = {("orders", 0): 3, ("orders", 1): 4, ("payments", 0): 5}
#: The groups of this program and of the tool, each with COMMITTED, by what is done to them.
DONE = (
    "deleted",
    "some-deleted",
    "to-earliest",
    "to-latest",
    "to-offset",
    "shift-by",
    "to-current",
    "topic",
    "rights",
    "full",
)
SCENARIOS = {
    "to-earliest": "--all-topics --to-earliest",
    "to-latest": "--all-topics --to-latest",
    "to-offset": "--all-topics --to-offset 6",
    "shift-by": "--all-topics --shift-by -4",
    "to-current": "--all-topics --to-current",
    "topic": "--topic orders:1 --to-offset 1000",
}
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
LOGIN = (
    "sasl.mechanism=PLAIN",
    "security.protocol=SASL_PLAINTEXT",
    f'sasl.jaas.config={PLAIN} required username="me" password="open-sesame";',
)


@dataclass
class Repaired:
    """A broker, and a store with its log up to before each repair."""

    broker: LiveBroker
    store: Path

    def command(self, name: str, *more: str) -> list[str]:
        return [name, "--store", str(self.store), "--bootstrap-server", self.broker.address, *more]

    def answers(self, group_id: str) -> dict[tuple[object, object], tuple[object, object]]:
        """The broker's own answer: offset and metadata by topic and partition."""
        of_group = self.broker.answers.offsets([group_id])[group_id]
        return {(each["topic"], each["partition"]): (each["offset"], each["metadata"]) for each in of_group}

    def groups(self) -> set[str]:
        return set(self.broker.tool("--list").split())


@pytest.fixture(scope="module")
def repaired(kafka: KafkaJvm, settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repaired]:
    folder = tmp_path_factory.mktemp("repair")
    with live_broker(kafka, folder / "broker", more=SASL) as broker:
        for topic in ("orders", "payments"):
            broker.create_topic(topic, 2)
            for partition in range(2):
                broker.produce(topic, partition, 10)
        broker.delete_records("orders", 0, 2)
        for group_id in (f"{of}-{each}" for each in DONE for of in ("ours", "kafkas")):
            broker.commit(group_id, COMMITTED, "a note")
        member = broker.consumer("active", ["orders"])
        member.join(2)
        member.commit({("orders", 0): 7})
        then = time.time()
        store = folded_segments(broker.folder, folder / "store", 5, settings)
        wait_until(lambda: time.time() > then + 0.01, "the clock stands")
        yield Repaired(broker, store)


def undo(err: str) -> list[str]:
    """The command line that undoes a repair, as its output says."""
    (line,) = [each for each in err.splitlines() if each.startswith("offsets: to undo this, ")]
    program, *words = shlex.split(line.partition("now: ")[2])
    assert program == "offsets"
    return words


def assert_undone(repaired: Repaired, err: str, group_id: str) -> None:
    assert main([*undo(err), "--execute"]) == 0
    assert repaired.answers(group_id) == {where: (offset, "a note") for where, offset in COMMITTED.items()}


def test_group_is_deleted_as_by_kafkas_tool_and_comes_back(
    repaired: Repaired, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, kafkas = "ours-deleted", "kafkas-deleted"
    assert main(repaired.command("delete-group", "--group", ours, "--format", "csv")) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "group,topic,partition,committed_offset",
        f"{ours},orders,0,3",
        f"{ours},orders,1,4",
        f"{ours},payments,0,5",
    ]
    assert err.splitlines()[-1] == "offsets: nothing is changed: this is the plan; --execute deletes"
    assert ours in repaired.groups()
    assert main(repaired.command("delete-group", "--group", ours, "--execute")) == 0
    err = capsys.readouterr().err
    assert f"offsets: group {ours} deleted from {repaired.broker.address}\n" in err
    assert "was successful" in repaired.broker.tool("--delete", "--group", kafkas)
    assert not {ours, kafkas} & repaired.groups()
    assert repaired.answers(ours) == repaired.answers(kafkas) == {}
    assert_undone(repaired, err, ours)


def test_a_change_is_said_and_undone_if_stdout_is_a_full_disk(
    repaired: Repaired, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for module in ("repair_commands", "restore_command"):
        monkeypatch.setattr(f"offsets_pipeline.cli.{module}.write_rows", full)
    assert main(repaired.command("delete-group", "--group", "ours-full", "--execute")) == 1
    err = capsys.readouterr().err
    assert f"offsets: group ours-full deleted from {repaired.broker.address}\n" in err
    assert "No space left on device" in err.splitlines()[-1]
    assert repaired.answers("ours-full") == {}
    assert main([*undo(err), "--execute"]) == 1
    assert f"offsets: 3 offsets committed to {repaired.broker.address}\n" in capsys.readouterr().err
    assert repaired.answers("ours-full") == {where: (offset, "a note") for where, offset in COMMITTED.items()}
    reset = repaired.command("reset-offsets", "--group", "ours-full", "--all-topics", "--to-offset", "6", "--execute")
    assert main(reset) == 1
    err = capsys.readouterr().err
    assert f"offsets: 3 offsets of group ours-full committed in {repaired.broker.address}\n" in err
    assert undo(err)[-2:] == ["--group", "ours-full"]


def test_offsets_are_deleted_as_by_kafkas_tool_and_come_back(
    repaired: Repaired, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, kafkas = "ours-some-deleted", "kafkas-some-deleted"
    command = repaired.command("delete-offsets", "--group", ours, "orders:1", "payments", "orders:1", "none:0")
    assert main([*command, "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [f"{ours},orders,1,4", f"{ours},payments,0,5"]
    assert repaired.answers(ours).keys() == COMMITTED.keys()
    assert main([*command, "--execute"]) == 0
    err = capsys.readouterr().err
    assert f"offsets: 2 offsets of group {ours} deleted from {repaired.broker.address}\n" in err
    said = repaired.broker.tool(
        "--delete-offsets", "--group", kafkas, "--topic", "orders:1", "--topic", "payments", "--timeout", "60000"
    )
    assert "Request succeed" in said
    assert repaired.answers(ours) == repaired.answers(kafkas) == {("orders", 0): (3, "a note")}
    assert_undone(repaired, err, ours)
    capsys.readouterr()
    assert main(repaired.command("delete-offsets", "--group", ours, "none", "--execute")) == 0
    assert f"group {ours} has no such offset: nothing to delete" in capsys.readouterr().err


@pytest.mark.parametrize("named", [["payments"], ["payments:1"]])
def test_a_commit_that_is_pending_alone_is_deleted_as_by_kafkas_tool(
    repaired: Repaired, capsys: pytest.CaptureFixture[str], named: list[str]
) -> None:  # R12
    ours, kafkas = (f"{of}-pending-{named[0]}" for of in ("ours", "kafkas"))
    open_ones = [repaired.broker.transaction(each) for each in (ours, kafkas)]
    for transaction, group_id in zip(open_ones, (ours, kafkas), strict=True):
        transaction.begin(group_id, {("payments", 1): 7, ("orders", 1): 8})
    command = repaired.command("delete-offsets", "--group", ours, *named, "--format", "csv")
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [f"{ours},payments,1,"]
    assert main([*command, "--execute"]) == 0
    err = capsys.readouterr().err
    assert f"offsets: 1 offset of group {ours} deleted from {repaired.broker.address}\n" in err
    assert "to undo" not in err
    assert "Request succeed" in repaired.broker.tool("--delete-offsets", "--group", kafkas, "--topic", *named)
    for transaction in open_ones:
        transaction.commit()
    repaired.broker.wait_for_markers()
    assert repaired.answers(ours) == repaired.answers(kafkas) == {("orders", 1): (8, "")}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_offsets_are_reset_as_by_kafkas_tool_and_come_back(
    repaired: Repaired, capsys: pytest.CaptureFixture[str], scenario: str
) -> None:
    ours, kafkas = f"ours-{scenario}", f"kafkas-{scenario}"
    options = SCENARIOS[scenario].split()
    before = repaired.answers(ours)
    assert main(repaired.command("reset-offsets", "--group", ours, *options)) == 0
    assert "this is the plan; --execute commits it" in capsys.readouterr().err
    assert repaired.answers(ours) == before
    assert main(repaired.command("reset-offsets", "--group", ours, *options, "--execute")) == 0
    err = capsys.readouterr().err
    repaired.broker.tool("--reset-offsets", "--group", kafkas, *options, "--execute")
    found = repaired.answers(ours)
    assert found == repaired.answers(kafkas)
    assert found != before
    assert_undone(repaired, err, ours)


def test_groups_with_members_and_unknown_groups_are_refused_as_by_kafkas_tool(
    repaired: Repaired, capsys: pytest.CaptureFixture[str]
) -> None:
    before = repaired.answers("active")
    reset = ["--all-topics", "--to-earliest"]
    for name, more, tool, kafkas in (
        ("delete-group", [], ["--delete"], "GroupNotEmptyException"),
        ("delete-offsets", ["orders"], ["--delete-offsets", "--topic", "orders"], "GroupSubscribedToTopicException"),
        ("reset-offsets", reset, ["--reset-offsets", *reset], "is inactive, but the current state is Stable"),
    ):
        assert main(repaired.command(name, "--group", "active", *more, "--execute")) == 1
        err = capsys.readouterr().err
        assert err.endswith("groups with members: 'active' is Stable; stop the members first\n")
        assert "to undo" not in err
        execute = ["--execute"] if name == "reset-offsets" else []
        assert kafkas in repaired.broker.tool(*tool, "--group", "active", *execute).replace("\n", " ")
    assert repaired.answers("active") == before
    assert main(repaired.command("delete-group", "--group", "nobody", "--execute")) == 1
    assert capsys.readouterr().err == (
        f"offsets: error: no group 'nobody' in {repaired.broker.address} (GROUP_ID_NOT_FOUND)\n"
    )
    assert "GroupIdNotFoundException" in repaired.broker.tool("--delete", "--group", "nobody")


def test_a_brokers_error_is_one_line(repaired: Repaired, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broker, group = repaired.broker, "ours-rights"
    broker.allow("me", "GROUP", group, "DESCRIBE")
    broker.allow("me", "TOPIC", "orders", "DESCRIBE")
    properties = tmp_path / "client.properties"
    properties.write_text("\n".join(LOGIN), encoding="utf-8")
    server = f"127.0.0.1:{broker.sasl_port}"
    at = ["--store", str(repaired.store), "--bootstrap-server", server, "--group", group, "--execute"]
    for command, needed in (
        (["delete-group"], "DELETE on the group"),
        (["delete-offsets", "orders"], "DELETE on the group and READ on the topic"),
        (["reset-offsets", "--topic", "orders", "--to-earliest"], "READ on the group and the topic"),
    ):
        for login in (["--command-config", str(properties)], [f"--option={each}" for each in LOGIN]):
            name, *more = command
            assert main([name, *at, *login, *more]) == 1
            said = capsys.readouterr().err.splitlines()
            assert said[-1].startswith("offsets: error: 127.0.0.1:")
            assert said[-1].endswith(f"(GROUP_AUTHORIZATION_FAILED); grant {needed}")
            assert not [line for line in said if "to undo" in line]
    assert repaired.answers(group).keys() == COMMITTED.keys()


def test_an_owned_store_and_that_of_another_cluster_are_refused(
    repaired: Repaired, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    owned = OwnedStore.create(tmp_path / "owned", 3)
    at = ["--bootstrap-server", repaired.broker.address, "--group", "ours-rights", "--execute"]
    assert main(["delete-group", "--store", owned.location, *at]) == 1
    assert "is an owned store, which has no brokers to ask" in capsys.readouterr().err
    other = tmp_path / "other"
    create_tables(str(other), StoreProperties(MIRRORED, 5, cluster_id="another"))
    assert main(["delete-group", "--store", str(other), *at]) == 1
    assert f"{other} has the log of cluster another; name brokers of that cluster" in capsys.readouterr().err
    assert "ours-rights" in repaired.groups()
