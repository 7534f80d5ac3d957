"""The systemd unit of `follow`: its command line runs, and neither a kill nor a stop loses or repeats a record.

A kill takes a process, and so does a stop by a signal to all processes of a group; `follow` needs a broker.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from configparser import RawConfigParser
from typing import TYPE_CHECKING

import pytest

from tests.kafka.live import live_broker, wait_until
from tests.kafka.test_follow_killed import CONFIG, assert_each_is_there_once, clients_commit, version
from tests.programs import OFFSETS, QUICK, assert_said, in_process
from tests.spark.stores import differences, folded_in, log_of
from tests.streaming.test_kill import kill

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping
    from pathlib import Path

    from tests.kafka.brokers import KafkaJvm
    from tests.spark.stores import Workbench

UNIT = "deploy/systemd/offsets-follow.service"
PROGRAM = "/opt/offsets-pipeline/.venv/bin/offsets"
PARTITIONS = 5
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture
def service(root: Path) -> Mapping[str, str]:
    """Section [Service] of the unit."""
    parser = RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(root / UNIT)
    return parser["Service"]


def command_line(service: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """The words of ExecStart as systemd makes them: ${X} is one word, $X is split."""
    words: list[str] = []
    for word in service["ExecStart"].split():
        if word.startswith("$") and not word.startswith("${"):
            words += shlex.split(environment[word[1:]])
        else:
            words.append(re.sub(r"\$\{(\w+)\}", lambda found: environment[found[1]], word))
    assert words[0] == PROGRAM
    return words[1:]


@pytest.mark.process
@pytest.mark.streaming
@pytest.mark.slow
def test_service_that_is_killed_restarted_and_stopped_has_appended_and_folded_each_record_once(
    kafka: KafkaJvm,
    workbench: Workbench,
    chance: random.Random,
    service: Mapping[str, str],
    root: Path,
    tmp_path: Path,
) -> None:
    store, config = tmp_path / "store", tmp_path / "offsets.toml"
    config.write_text(CONFIG)

    def started(number: int) -> subprocess.Popen[str]:
        with (tmp_path / f"err-{number}").open("w") as err:
            return subprocess.Popen(
                [OFFSETS, *arguments],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                start_new_session=True,
                env={**os.environ, **QUICK},
            )

    def lines(number: int) -> list[str]:
        return (tmp_path / f"err-{number}").read_text().splitlines()

    def is_maintained() -> bool:
        broker.commit("g", {("t", 0): len(lines(2))})  # one append more
        return any("upkeep done" in each for each in lines(2))

    with live_broker(kafka, tmp_path / "broker", PARTITIONS) as broker:
        broker.create_topic("t", 2)
        clients_commit(broker, 0)
        environment = {"STORE": str(store), "BOOTSTRAP_SERVER": broker.address, "OPTIONS": f"--config '{config}'"}
        arguments = command_line(service, environment)
        process = started(1)
        try:
            for round_, grows in enumerate(("fold_progress", "log"), 1):
                before = version(store, grows)
                clients_commit(broker, round_)
                wait_until(
                    lambda: version(store, grows) > max(before, 0) or process.poll() is not None,  # noqa: B023
                    f"{grows} stands still",
                )
                assert process.poll() is None, lines(1)
            clients_commit(broker, 3)
            time.sleep(chance.uniform(0, 1))  # anywhere in a batch of either query, or between two
        finally:
            kill(process)
        assert "Traceback" not in "".join(lines(1))

        clients_commit(broker, 4)
        landed, folded = len(log_of(store)), folded_in(store)
        process = started(2)
        try:
            wait_until(
                lambda: any("caught up" in each for each in lines(2)) or process.poll() is not None,
                "it reads nothing",
                say=lambda: str(lines(2)),
            )
            wait_until(is_maintained, "no upkeep", say=lambda: str(lines(2)))
            clients_commit(broker, 5)
            clients_commit(broker, 6)  # it has hardly read the last ones
            # to the JVM and the tasks too, as a service manager does where the unit does not say KillMode=mixed
            assert service["KillMode"] == "mixed"
            os.killpg(process.pid, signal.Signals[service["KillSignal"]])
            out, _ = process.communicate(timeout=float(service["TimeoutStopSec"]))
            assert process.returncode == 0
        finally:
            if process.poll() is None:
                kill(process)

        records = broker.log_places()
        in_log, state = len(log_of(store)), workbench.verify(store)
        said = f"{in_log - landed} records added to {store}, {state.records - folded} folded\n"
        assert (out, state.equal) == (said, True)
        told = [re.sub(rf"^{TIME} ", "", line) for line in lines(2)]
        others = {
            "offsets: caught up with topic __consumer_offsets",
            "offsets: upkeep done: N files before, N after; N old files removed, N files on disk",
        }
        said_once = [line for line in told if re.sub(r"\d+", "N", line) not in others]
        assert len(said_once) == 2, said_once
        connected, reading = said_once
        assert re.fullmatch(rf"offsets: connected to {broker.address}, cluster [\w-]+", connected)
        assert re.fullmatch(
            rf"offsets: reading topic __consumer_offsets: {PARTITIONS} log partitions, log incarnation 0, "
            r"\d+ record offsets behind",
            reading,
        )

        done = in_process(root, *arguments, "--available-now")
        assert_said(done, f"{len(records) - in_log} records added to {store}, {len(records) - state.records} folded")
        assert differences(store, broker.answers.groups()) == []
        assert_each_is_there_once(store, broker)
    assert workbench.verify(store).equal
