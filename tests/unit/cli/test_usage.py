"""A wrong command line: status 2, one line with the nearest right word, and nothing written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.cli.program import offsets

if TYPE_CHECKING:
    from pathlib import Path

JAAS = 'PlainLoginModule required username="me" password="open-sesame";'
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
    "ingest-segments|--store|{store}|segments|--topic|../../pwn": (
        "invalid value for '--topic': '../../pwn' is not a topic name: it has 1 to 249 letters, digits, dots, _ and -"
    ),
    "follow|--store|{store}|--bootstrap-server|127.0.0.1:1|--topic|..": (
        "invalid value for '--topic': '..' is not a topic name"
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
    "clean-log|--store|{store}|--every|later": "invalid value for '--every': 'later' is not a duration: write",
    "clean-log|--store|{store}|--dry-run|--every|5": ("--every is not allowed with --dry-run"),
    "maintain|--store|{store}|--every": ("option '--every' requires an argument"),
    "export-segments|--store|{store}|--to|{store}|--codec|brotli": (
        "invalid value for '--codec': 'brotli' is not one of 'none', 'gzip', 'snappy', 'lz4', 'zstd'"
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
    "commit|--store|{store}|--group|g|t:0=1|u:0=2|t:0=2": "t:0 is given 2 times; give one offset for it",
    "commit|--store|{store}|--group|g": ("missing argument 'TOPIC:PARTITION=OFFSET...'"),
    "delete-offsets|--store|{store}|--group|g|a:b": (
        "invalid value for 'TOPIC[:PARTITION]...': 'a:b' is not of the form TOPIC or TOPIC:PARTITION"
    ),
    "delete-group|--store|{store}": ("missing option '--group'"),
    "report|--store|{store}": ("missing option '--html'"),
    "expire-offsets|--store|{store}|--dry-run|--within|1.5": (
        "invalid value for '--within': '1.5' is not allowed; it takes a whole"
    ),
    "why|--store|{store}|--group|g|--topic|t|--partition|x": (
        "invalid value for '--partition': 'x' is not a valid integer. See `offsets why --help`."
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
    "report|--store|{store}|--html|{store}|--positions|p|--bootstrap-server|b:1": (
        "--positions is not allowed with --bootstrap-server"
    ),
    "expire-offsets|--store|{store}|--dry-run|--every": "--every is not allowed with --dry-run",
    "expire-offsets|--store|{store}|--dry-run|--within|-1": "invalid value for '--within': '-1' is not allowed; it",
    "expire-offsets|--store|{store}|--dry-run|--retention-minutes|x": (
        "invalid value for '--retention-minutes': 'x' is not a valid integer"
    ),
    "expire-offsets|--store|{store}|--at|0": "--at needs --dry-run: only a forecast takes it",
    "expire-offsets|--store|{store}|--within|0": "--within needs --dry-run: only a forecast takes it",
    "expire-offsets|--store|{store}|--retention-minutes|5|--every": "--retention-minutes needs --dry-run: only a fore",
    **{
        f"{line}|{value}": f"invalid value for '{line.rpartition('|')[2]}': {said}"
        for line in (
            "as-of|--store|{store}|--time",
            "history|--store|{store}|--group|g|--since",
            "history|--store|{store}|--group|g|--until",
            "lag|--store|{store}|--at",
            "report|--store|{store}|--html|{store}|--at",
            "export-segments|--store|{store}|--to|{store}|--as-of",
            "restore|--store|{store}|--bootstrap-server|b:1|--as-of",
            "expire-offsets|--store|{store}|--dry-run|--at",
            "reset-offsets|--store|{store}|--group|g|--all-topics|--to-datetime",
        )
        for value, said in {
            "yesterday": "'yesterday' is not a time: write it like 2026-03-01T12:00:00Z, or in milliseconds since 1970",
            "2026-02-30": "'2026-02-30' is not a time: write it like 2026-03-01T12:00:00Z, or in milliseconds since",
            "99999999999999999999": "'99999999999999999999' is not a time in milliseconds since 1970: its year is not",
        }.items()
    },
    **{
        f"fetch|--store|{{store}}|--group|g|--topic|t|--reset|{value}": f"invalid value for '--reset': '{value}' {said}"
        for value, said in {
            "soon": "is not earliest, latest, none or by_duration:PT1H",
            "by_duration:1h": "is not allowed: '1h' is not a duration: write it like P1DT12H30M or PT90S",
            "by_duration:-PT1H": "is not allowed: its duration is negative; write it like by_duration:PT1H",
        }.items()
    },
    **{
        f"{line}|{value}": f"invalid value for '{option}': {said}"
        for line, option, value, said in (
            (
                "reset-offsets|--store|{store}|--group|g|--all-topics|--by-duration",
                "--by-duration",
                "1h",
                "'1h' is not a",
            ),
            ("groups|--store|{store}|--state", "--state", "Busy", "'Busy' is not one of 'stable', 'empty', 'dead', "),
            ("groups|--store|{store}|--type", "--type", "Old", "'Old' is not one of 'classic', 'consumer', 'share', "),
            ("top|--store|{store}|--idle", "--idle", "week", "'week' is not a duration: write seconds, or ISO 8601 "),
            ("top|--store|{store}|--rounds", "--rounds", "0", "0 is not in the range x>=1."),
            ("top|--store|{store}|--limit", "--limit", "0", "0 is not in the range x>=1."),
            ("history|--store|{store}|--group|g|--partition", "--partition", "-1", "-1 is not in the range 0<=x<="),
            (
                "why|--store|{store}|--group|g|--topic|t|--partition",
                "--partition",
                "-1",
                "-1 is not in the range 0<=x<",
            ),
            (
                "fetch|--store|{store}|--group|g|--topic|t|--partition",
                "--partition",
                str(2**31),
                f"{2**31} is not in the",
            ),
            ("reload|--store|{store}|--partition", "--partition", "-1", "-1 is not in the range 0<=x<="),
            (
                "commit|--store|{store}|--group|g|t:0=1|--leader-epoch",
                "--leader-epoch",
                str(2**31),
                f"{2**31} is not in",
            ),
            (
                "import-zookeeper|--store|{store}|--zookeeper",
                "--zookeeper",
                "zk:x/y",
                'connect: "zk:x/y" is not allowed; ',
            ),
            ("create-views|--store|{store}|--schema", "--schema", "a b", "'a b' is not a valid name of a schema: use"),
            ("lag|--store|{store}|--option", "--option", "open-sesame", "an --option has no =: write NAME=VALUE, such"),
            (
                "lag|--store|{store}|--bootstrap-server",
                "--bootstrap-server",
                "b",
                "'b' is not of the form HOST:PORT, or",
            ),
            (
                "describe|--store|{store}|--list|--bootstrap-server",
                "--bootstrap-server",
                "b",
                "'b' is not of the form ",
            ),
            ("follow|--store|{store}|--bootstrap-server", "--bootstrap-server", "b,c:1", "'b,c:1' is not of the form "),
            (
                "sample-topic-offsets|--store|{store}|--bootstrap-server|b:1|--topics",
                *("--topics", "(", "'(' is not a regular expression: missing ), unterminated subpattern at position 0"),
            ),
            ("commit|--store|{store}|--group|g|t:0=1|--retention-ms", "--retention-ms", "-2", "-2 is not in the range"),
        )
    },
    "ingest-segments|--store|{store}|segments|--offsets-partitions|0": (
        "invalid value for '--offsets-partitions' / '--offsets-topic-num-partitions' / "
    ),
    "reset-offsets|--store|{store}|--all-topics|--to-offset|1": "one of --group, --all-groups, --from-file is required",
    "reset-offsets|--store|{store}|--group|g|--to-offset|1": "one of --topic, --all-topics, --from-file is required",
    "reset-offsets|--store|{store}|--group|g|--all-topics|--from-file|f": (
        "--from-file is not allowed with --all-topics. "
    ),
    "reset-offsets|--store|{store}|--group|g|--all-topics|--to-latest|--command-config|f": (
        "--command-config needs --bootstrap-server. "
    ),
    **{
        f"{line}|--store|{{store}}|--store|other": (
            f"invalid value for '--store': {line.partition('|')[0]} is about one store: give --store once"
        )
        for line in ("report|--html|{store}", "serve", "fold", "reset-offsets|--group|g|--all-topics|--to-latest")
    },
    "as-of|--store|{store}|--store|other|--position|0:1": "--position is about one store: give --store once",
    "fetch|--store|{store}|--store|other|--group|g|--topic|t|--positions|f": (
        "--positions is about one store: give --store once"
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


@pytest.mark.parametrize(
    "line",
    [
        ["ingest-segments", "a-folder", "--store", ""],
        ["describe", "--all-groups", "--store", ""],
        ["groups", "--store", "a-store", "--store", ""],
        ["report", "--store", "a-store", "--html", ""],
    ],
)
def test_an_empty_path_is_not_the_working_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(line) == 2
    assert capsys.readouterr().err == (
        f"offsets: error: invalid value for '{line[-2]}': the path is empty; a variable of the shell may be unset. "
        f"See `offsets {line[0]} --help`.\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("more", "expected"), [((), "a replay"), (("--against", "b:9092"), "brokers")])
def test_verify_compares_with_a_replay_or_with_brokers(
    monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], expected: str
) -> None:
    compared: list[str] = []
    monkeypatch.setattr("offsets_pipeline.cli.state_commands.verify", lambda *_: compared.append("a replay"))
    monkeypatch.setattr("offsets_pipeline.cli.section_state.verify_against", lambda *_: compared.append("brokers"))
    assert main(["verify", "--store", "a-store", *more]) == 0
    assert compared == [expected]


def test_a_secret_in_the_list_of_processes_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option, is_warned_of in {
        f"sasl.jaas.config={JAAS}": True,
        "ssl.key.password=open-sesame": True,
        "ssl.keystore.key=open-sesame": True,
        f"sasl.jaas.config=file:{tmp_path}": False,
        "ssl.key.password=env:SESAME": False,
        "sasl.jaas.config=Krb5LoginModule required useKeyTab=true;": False,
        "ssl.keystore.location=/run/open-sesame": False,
        "security.protocol=SASL_SSL": False,
    }.items():
        name = option.partition("=")[0]
        assert main(["lag", "--store", str(tmp_path / "none"), "--option", option]) == 1
        *warnings, error = capsys.readouterr().err.splitlines()
        assert error.startswith("offsets: error: no store at ")
        said = f"warning: the list of processes shows the secret {name}; write it to a file, and give --option {name}="
        assert warnings == [f"offsets: {said}file:PATH"] * is_warned_of


def test_offsets_of_a_connector_are_altered_only_from_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["connect", "alter", "--store", "store", "--connector", "c"]) == 2
    assert capsys.readouterr().err == (
        "offsets: error: missing option '--offsets'. See `offsets connect alter --help`.\n"
    )


def test_an_error_of_the_system_is_not_one_of_stdout(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "there")

    monkeypatch.setattr("offsets_pipeline.cli.group_commands.open_readers", fail)
    command = ["groups", "--store", "s"]
    assert main(command) == 1
    assert capsys.readouterr().err.startswith("offsets: error: PermissionError: [Errno 13] Permission denied: 'there'")
    monkeypatch.setenv("OFFSETS_DEBUG", "1")
    with pytest.raises(PermissionError):
        main(command)
