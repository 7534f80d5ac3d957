"""The systemd unit of `follow`: its command line runs, and its stop loses nothing.

A stop by signal needs a process, and `follow` needs a broker.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from configparser import RawConfigParser
from typing import TYPE_CHECKING

import pytest

from tests.kafka.live import live_broker, wait_until
from tests.programs import OFFSETS, QUICK, assert_said, in_process
from tests.spark.stores import differences, log_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.kafka.brokers import KafkaJvm
    from tests.kafka.live import LiveBroker
    from tests.spark.stores import Workbench

UNIT = "conf/systemd/offsets-follow.service"
PROGRAM = "/opt/offsets-pipeline/.venv/bin/offsets"
PARTITIONS = 3
CONFIG = """
[topic]
trigger_interval_ms = 200
watch_interval_ms = 300
[fold]
trigger_interval_ms = 200
upkeep_interval_ms = 300
"""
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


def test_systemd_accepts_the_unit(root: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze")
    unit = tmp_path / "offsets-follow.service"
    unit.write_text((root / UNIT).read_text().replace(PROGRAM, str(OFFSETS)))
    done = subprocess.run([analyze, "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, said) == (0, [])


def clients_commit(broker: LiveBroker, round_: int) -> None:
    for number in range(20):
        broker.commit(f"g{number}", {("t", 0): 100 * round_ + number})


@pytest.mark.process
@pytest.mark.streaming
@pytest.mark.slow
def test_service_that_is_stopped_while_it_follows_ends_well_and_goes_on_without_loss(
    kafka: KafkaJvm, workbench: Workbench, service: Mapping[str, str], root: Path, tmp_path: Path
) -> None:
    store, config = tmp_path / "store", tmp_path / "offsets.toml"
    config.write_text(CONFIG)
    with live_broker(kafka, tmp_path / "broker", PARTITIONS) as broker:
        broker.create_topic("t", 1)
        clients_commit(broker, 1)
        environment = {"STORE": str(store), "BOOTSTRAP_SERVER": broker.address, "OPTIONS": f"--config '{config}'"}
        arguments = command_line(service, environment)
        err = (tmp_path / "err").open("w+")
        process = subprocess.Popen(
            [OFFSETS, *arguments],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            start_new_session=True,
            env={**os.environ, **QUICK},
        )

        def lines() -> list[str]:
            return (tmp_path / "err").read_text().splitlines()

        try:
            wait_until(
                lambda: any("caught up" in each for each in lines()), "it reads nothing", say=lambda: str(lines())
            )

            def is_maintained() -> bool:
                broker.commit("g", {("t", 0): len(lines())})  # one append more
                return any("upkeep done" in each for each in lines())

            wait_until(is_maintained, "no upkeep", say=lambda: str(lines()))
            clients_commit(broker, 2)
            clients_commit(broker, 3)  # it has hardly read the last ones
            assert service["KillMode"] == "mixed"  # so the signal goes to the main process only
            process.send_signal(signal.Signals[service["KillSignal"]])
            out, _ = process.communicate(timeout=float(service["TimeoutStopSec"]))
            assert process.returncode == 0
        finally:
            process.kill()
            process.communicate()
            err.close()

        records = broker.log_places()
        added = len(log_of(store))
        said = re.fullmatch(rf"{added} records added to {re.escape(str(store))}, (\d+) folded\n", out)
        assert said is not None, out
        state = workbench.verify(store)
        assert (state.equal, state.records) == (True, int(said[1]))
        told = [re.sub(rf"^{TIME} ", "", line) for line in lines()]
        assert re.fullmatch(rf"offsets: connected to {broker.address}, cluster [\w-]+", told[0])
        assert re.fullmatch(
            rf"offsets: reading topic __consumer_offsets: {PARTITIONS} log partitions, log incarnation 0, "
            r"\d+ record offsets behind",
            told[1],
        )
        others = {re.sub(r"\d+", "N", line) for line in told[2:]}
        assert others == {
            "offsets: caught up with topic __consumer_offsets",
            "offsets: upkeep done: N files before, N after; N old files removed",
        }

        done = in_process(root, *arguments, "--available-now")
        assert_said(done, f"{len(records) - added} records added to {store}, {len(records) - state.records} folded")
        assert [(row.log_partition, row.record_offset) for row in log_of(store)] == records
        assert differences(store, broker.answers.groups()) == []
