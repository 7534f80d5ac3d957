"""Every command and every line of Python in the README and the guides runs, in the order in which a reader meets them.

`make run` runs as a user runs it: it starts the installed program and spark-submit as processes. All other commands and
programs run in this process, beside one session of Spark: they need not start a JVM each.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.broker import free_ports
from tests.kafka.live import LiveBroker, live_broker
from tests.logs import capture_rows, oracle
from tests.programs import PROPERTIES, Done, in_process, job_in_process, python_in_process, start
from tests.spark.stores import differences

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.kafka.brokers import KafkaJvm

LINKED = (
    ".venv",
    "Makefile",
    "conf",
    "examples",
    "jobs",
    "scripts",
    "tests",
    "pyproject.toml",
    "requirements.lock",
    "offsets_pipeline",
)
#: The README and its guides, in an order in which a reader may run all of them.
DOCUMENTS = (
    "README.md",
    "docs/sources.md",
    "docs/questions.md",
    "docs/history.md",
    "docs/lag.md",
    "docs/report.md",
    "docs/operations.md",
    "docs/coordinator.md",
    "docs/connect.md",
    "docs/checkpoints.md",
)
OFFSETS = ".venv/bin/offsets"
READERS_BROKER = "localhost:9092"
READERS_S3 = "5000"  # the port
MAKE_RUN = "make run\n"
#: The recorded log that `make run` takes in.
CAPTURE = "4.2.0-kip848"
SUBMIT = [".venv/bin/spark-submit", *PROPERTIES]


def blocks(root: Path) -> list[tuple[str, str]]:
    return re.findall(r"^```(sh|python)\n(.*?)^```$", text_of(root), re.MULTILINE | re.DOTALL)


def text_of(root: Path) -> str:
    return "".join((root / name).read_text(encoding="utf-8") for name in DOCUMENTS)


def commands(block: str) -> list[str]:
    """The commands of a block: one per line, with its here-document if it has one.

    A block that starts a server is one command: its commands share a shell.
    """
    if " &\n" in block:
        return [block]
    return re.findall(r"^.*<<END\n(?:.*\n)*?END\n|^.+\n", block, re.MULTILINE)


def words_of(command: str) -> list[str] | None:
    """The words of a command of ours; None if it takes a shell to run it."""
    words = shlex.split(command)
    lexer = shlex.shlex(command, punctuation_chars="();<>|&$`")
    lexer.whitespace_split = True
    for_a_shell = any(set(token) <= set(lexer.punctuation_chars) for token in lexer)
    ours = words[0] == OFFSETS or words[: len(SUBMIT)] == SUBMIT
    return words if ours and not for_a_shell else None


def run(clone: Path, command: str) -> Done:
    words = words_of(command)
    if words is None:
        ended = f"trap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n{command}"
        return start(clone, "bash", "-euo", "pipefail", "-c", ended)
    if words[0] == OFFSETS:
        return in_process(clone, *words[1:])
    job, *arguments = words[len(SUBMIT) :]
    assert Path(job).parent == Path("jobs")
    return job_in_process(clone, Path(job).stem, *arguments)


@pytest.fixture(scope="module")
def clone(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like the project's, so that the store is not made in the project itself."""
    folder = tmp_path_factory.mktemp("clone")
    for name in LINKED:
        (folder / name).symlink_to(root / name)
    return folder


def test_every_block_is_of_a_language_that_is_run(root: Path) -> None:
    fences = re.findall(r"^```(\w+)$", text_of(root), re.MULTILINE)
    assert fences == [language for language, _ in blocks(root)]
    assert {"sh", "python"} == set(fences)


@pytest.fixture(scope="module")
def broker(kafka: KafkaJvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    """The broker that a reader has, on a free port."""
    with live_broker(kafka, tmp_path_factory.mktemp("readme") / "broker") as running:
        running.create_topic("orders", 2)
        running.commit("billing", {("orders", 0): 42, ("orders", 1): 17})
        yield running


@pytest.fixture(scope="module")
def made(set_up: None, clone: Path) -> Done:
    """`make run` in the clone."""
    return run(clone, MAKE_RUN)


def lines_of(shown: str) -> list[str]:
    """The output of `make run`, without its titles."""
    return [line for line in shown.splitlines() if not line.startswith("run ")]


@pytest.mark.usefixtures("spark")  # of commands that run in this process
@pytest.mark.process
def test_make_run_takes_a_log_in_and_answers_as_its_broker(made: Done, clone: Path) -> None:
    records = sum(map(len, capture_rows(CAPTURE).values()))
    # Java itself says this of a JVM that spark-submit starts, before anything of ours runs
    assert [line for line in made.stderr.splitlines() if "Using incubator modules" not in line] == []
    assert made.returncode == 0
    lines = lines_of(made.stdout)
    assert lines[:2] == [
        f"{records} records added to store from 5 segment files (5 log partitions)",
        f"{records} records folded in store",
    ]
    described = in_process(clone, "describe", "--store", "store", "--all-groups")
    assert [*lines[2:], ""] == described.stdout.split("\n")
    assert differences(clone / "store", oracle(CAPTURE)) == []
    assert {each.name for each in clone.iterdir()} == {*LINKED, "store"}


@pytest.mark.slow  # thirty commands
def test_readers_commands_run(root: Path, clone: Path, broker: LiveBroker, spark: SparkSession, made: Done) -> None:
    shown: dict[str, str] = {}
    (port,) = free_ports(1)
    for language, block in blocks(root):
        here = block.replace(READERS_BROKER, f"localhost:{broker.port}").replace(READERS_S3, str(port))
        if language == "sh":
            all_done = [made if command == MAKE_RUN else run(clone, command) for command in commands(here)]
        else:
            all_done = [python_in_process(clone, here)]
        for done in all_done:
            assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}"
        shown[block] = "".join(done.stdout for done in all_done)

    def output_of(words: str) -> str:
        (found,) = (output for block, output in shown.items() if words in block)
        return found

    # what the capture's broker answered for this group
    assert re.search(r"^k-reset +t1 +3 +0 ", output_of(MAKE_RUN), re.MULTILINE)
    local, on_s3 = lines_of(made.stdout), lines_of(output_of("make run STORE=s3://"))
    assert [line.replace("s3://bucket/store", "store") for line in on_s3[: len(local)]] == local
    assert [line.split(",")[0] for line in on_s3].count("k-stable") == 6
    assert re.search(r"^k-stable +6$", "\n".join(on_s3), re.MULTILINE)
    assert "0 records added" in output_of("ingest-segments --store store")
    assert re.search(r"^2 records added to live, 2 folded$", output_of("offsets follow"), re.MULTILINE)
    assert re.search(r"^billing +orders +0 +0 .* 42 +0 +0 ", output_of("offsets follow"), re.MULTILINE)
    assert "COMPLETE-SINCE" in output_of("offsets follow")
    assert "equal: " in output_of("verify")
    assert re.search(r"^log +\d+ +\d+ +1 ", output_of("offsets maintain"), re.MULTILINE)
    assert output_of("offsets maintain").startswith("TABLE ")  # and nothing that Delta says
    assert re.findall(r"^(k-\w+): the group is Dead$", output_of("alerts-checkpoint"), re.MULTILINE) == ["k-deleted"]
    assert re.search(r"^k-deloff: t1-\d was deleted$", output_of("alerts-checkpoint"), re.MULTILINE)
    described = output_of("describe --store store --group k-stable\n")
    assert len(re.findall(r"^k-stable +t[12] +\d +20 ", described, re.MULTILINE)) == 6
    assert "k-stable" in output_of("AS consumed FROM current_offsets")
    # the recorded script reset one group and deleted offsets of another
    assert re.search(r" rewind +t1 +3 +0 +-20 ", output_of("FROM log_records WHERE group_id"))
    assert "deleted at 2026-11-20T19:07:30.441Z by a request that deletes offsets" in output_of("k-deloff")
    # of the 350 records of that capture
    assert output_of("export-segments").startswith("180 records of 5 log partitions written to segments-then, in 5 ")
    assert output_of("export-segments").endswith(", as of 2026-11-20T19:07:40.000Z\n")
    assert (clone / "segments-then" / "__consumer_offsets-4" / f"{0:020}.log").stat().st_size > 0
    assert "FetchedOffset(offset=42," in output_of("commit_offsets")
    assert output_of("offsets commit").splitlines() == [
        "1 offset of group billing committed in owned",
        "1 offset of group billing deleted from owned",
        "group billing deleted from owned",
    ]
    expired, header, *forecast = output_of("expire-offsets").splitlines()
    assert expired == "0 offsets and 0 groups expired in owned"
    assert header.split() == ["WHEN", "EXPIRES", "GROUP", "TOPIC", "PARTITION", "RULE", "REASON"]
    assert any(" k-reset " in line and " R18d " in line for line in forecast)
    assert output_of("offsets reset-offsets").splitlines() == [
        "GROUP   TOPIC   PARTITION  NEW-OFFSET",
        "replay  orders          0          60",
        "replay  orders          1          80",
        "GROUP   TOPIC   PARTITION  NEW-OFFSET  CURRENT-OFFSET",
        "replay  orders          0          50              60",
        "replay  orders          1          70              80",
        "t2,0,19",
        "t2,1,19",
    ]
    assert output_of("register_views").count("k-stable") == 6
    assert '{"offsets": [{"partition": {"filename": "/no/such é.txt"}, "offset": {"position": 3}}' in output_of(
        "file-c"
    )
    assert '"offset": {"position": 8}' in output_of("--connector inbox")
    assert output_of("altered.json").splitlines() == [
        "connector files is STOPPED in owned-connect",
        "The offsets for this connector have been altered successfully",
        "connector files is RUNNING in owned-connect",
    ]


def test_commands_of_a_block_are_separated_from_shell_syntax() -> None:
    written = "cat > a <<END\n.venv/bin/offsets x\nEND\n"
    quoted = ".venv/bin/offsets sql --store s \"SELECT 'a' > b\"\n"
    shell = [f".venv/bin/offsets x {more}\n" for more in ("> y", ">y", "| less", "$HOME", "&& ls")]
    assert commands(written + quoted + "".join(shell)) == [written, quoted, *shell]
    assert words_of(quoted) == [".venv/bin/offsets", "sql", "--store", "s", "SELECT 'a' > b"]
    assert [each for each in (written, "make run\n", *shell) if words_of(each) is not None] == []


def test_spark_submit_is_called_in_the_guides_as_make_run_calls_it(root: Path) -> None:
    submits = [
        words
        for language, block in blocks(root)
        if language == "sh"
        for command in commands(block)
        if "spark-submit" in (words := shlex.split(command))[0]
    ]
    assert len(submits) > 1
    assert [words[: len(SUBMIT)] for words in submits] == [SUBMIT] * len(submits)
    made = (root / "Makefile").read_text(encoding="utf-8").replace("$(BIN)", ".venv/bin").replace("$$STORE", "store")
    assert submits[0] in [shlex.split(line) for line in made.splitlines() if "bin/spark-submit" in line]


def test_make_test_and_make_run_are_targets(root: Path) -> None:
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^test: .*##", makefile, re.MULTILINE)
    assert re.search(r"^run: .*##", makefile, re.MULTILINE)
