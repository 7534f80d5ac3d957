"""A wrong command line: status 2, one line with the nearest right word, and nothing written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.cli.program import offsets

if TYPE_CHECKING:
    from pathlib import Path

SAID = {
    "": "missing command. See `offsets --help`.",
    "ingest-segments|--store|{store}|segments|--offsets-partitions|x": (
        "invalid value for '--offsets-partitions' / '--offsets-topic-num-partitions' / "
    ),
    "ingest-segments|--store|{store}": ("missing argument 'PATH...'"),
    "ingest-topic|--store|{store}": ("missing option '--bootstrap-server'"),
    "follow|--store|{store}|--bootstrap-server|127.0.0.1:1|--metrics-port|x": (
        "invalid value for '--metrics-port': 'x' is not an address: write PORT or HOST:PORT"
    ),
    "ingest-segments|--store|{store}|segments|--coordinator-semantics|auto": (
        "invalid value for '--coordinator-semantics': 'auto' is not one of 'modern', 'classic'"
    ),
    "reload|--store|{store}|--partition|1|--coordinator-semantics|classic": (
        "--coordinator-semantics is not allowed with --partition"
    ),
    "clean-log|--store|{store}|--older-than|-1": (
        "invalid value for '--older-than': '-1' is not allowed; it takes a whole"
    ),
    "clean-log|--store|{store}|--older-than|1.5": (
        "invalid value for '--older-than': '1.5' is not allowed; it takes a whole"
    ),
    "clean-log|--store|{store}|--every|0": ("invalid value for '--every': '0' is not a duration: write seconds, or"),
    "clean-log|--store|{store}|--dry-run|--every|5": ("--every is not allowed with --dry-run"),
    "maintain|--store|{store}|--every": ("option '--every' requires an argument"),
    "export-segments|--store|{store}|--to|{store}|--codec|gzip": (
        "invalid value for '--codec': 'gzip' is not one of 'none', 'zstd'"
    ),
    "export-segments|--store|{store}": ("missing option '--to'"),
    "describe|--store|{store}": ("one of --group, --all-groups, --list is required"),
    "describe|--store|{store}|--group|a|--all-groups": ("--all-groups is not allowed with --group"),
    "describe|--store|{store}|--all-groups|--format|xml": (
        "invalid value for '--format': 'xml' is not one of 'table', 'json', 'csv'"
    ),
    "describe|--all-groups": ("missing option '--store'"),
    "descrbe|--store|{store}": ("no such command 'descrbe'. Did you mean 'describe'? See `offsets --help`."),
    "fold|--store|{store}|--avialable-now": (
        "no such option '--avialable-now'. Did you mean '--available-now'? See `offsets fold --help`."
    ),
    "commit|--store|{store}|--group|g|t=1": (
        "invalid value for 'TOPIC:PARTITION=OFFSET...': 't=1' is not of the form TOPIC:PARTITION=OFFSET"
    ),
    "commit|--store|{store}|--group|g": ("missing argument 'TOPIC:PARTITION=OFFSET...'"),
    "delete-offsets|--store|{store}|--group|g|a:b": (
        "invalid value for 'TOPIC[:PARTITION]...': 'a:b' is not of the form TOPIC or TOPIC:PARTITION"
    ),
    "expire-offsets|--store|{store}|--dry-run|--within|1.5": (
        "invalid value for '--within': '1.5' is not allowed; it takes a whole"
    ),
    "descibe|--all-groups": "no such command 'descibe'. Did you mean 'describe'? See `offsets --help`.",
    "reload|--store|{store}|--partitions|1": (
        "no such option '--partitions'. Did you mean '--partition'? See `offsets reload --help`."
    ),
    **{
        f"reset-offsets|--store|{{store}}|--group|g|{line}": said
        for line, said in {
            "--all-topics": "one of --to-earliest, --to-latest, --to-current, --to-offset, --shift-by, --to-datetime,",
            "--all-topics|--to-latest|--to-earliest": "--to-latest is not allowed with --to-earliest",
            "--all-topics|--to-offset|1|--execute|--dry-run": "--dry-run is not allowed with --execute",
            "--all-topics|--to-offset|x": "invalid value for '--to-offset': 'x' is not a valid integer",
            "--all-topics|--topic|t|--shift-by|1": "--all-topics is not allowed with --topic",
            "--all-topics|--to-latest|--positions|p|--bootstrap-server|b:1": "--positions is not allowed with",
            "--all-groups|--to-latest|--all-topics": "--all-groups is not allowed with --group",
            "--topic|t:|--to-latest": "invalid value for '--topic': 't:' is not of the form TOPIC or TOPIC:PARTITION,",
            "--to-latest|--export|--format|json": "--export is not allowed with --format",
        }.items()
    },
    "expire-offsets|--store|{store}|--dry-run|--every": "--every is not allowed with --dry-run",
    "expire-offsets|--store|{store}|--dry-run|--within|-1": "invalid value for '--within': '-1' is not allowed; it",
    "expire-offsets|--store|{store}|--dry-run|--retention-minutes|x": (
        "invalid value for '--retention-minutes': 'x' is not a valid integer"
    ),
}


@pytest.mark.parametrize("name", ["offsets-partitions", "offsets.topic.num.partitions", "offsets-topic-num-partitions"])
def test_number_of_log_partitions_has_kafkas_name_too(name: str) -> None:
    taking = [each for each in offsets.leaves().values() if any(p.name == "offsets_partitions" for p in each.params)]
    assert {each.name for each in taking} >= {"ingest-segments", "import-zookeeper", "import-checkpoint", "snapshot"}
    for command in taking:
        context = command.make_context(command.name, [f"--{name}", "7"], resilient_parsing=True)
        assert context.params["offsets_partitions"] == 7


@pytest.mark.parametrize("line", SAID)
def test_wrong_command_line_is_answered_with_status_2_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    arguments = [word.format(store=tmp_path / "store") for word in line.split("|") if word]
    status = main(arguments)
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert err.startswith("offsets: error: " + SAID[line])
    assert len(err.splitlines()) == 1
    words = ["offsets", *(word for word in arguments[:1] if word in offsets.commands), "--help"]
    assert err.endswith(f" See `{' '.join(words)}`.\n")
    assert list(tmp_path.iterdir()) == []
