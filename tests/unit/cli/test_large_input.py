"""Input that is too large, too deep or not UTF-8: one line at once, status 1 or 2, and no name of a Python function."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.connect.connect_log import ConnectLog
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.errors import InvalidRequest, QueryFailed
from offsets_pipeline.questions.query.describe import describe_groups
from offsets_pipeline.questions.query.local_sql import LocalSql
from offsets_pipeline.questions.query.state_reader import StateReader

if TYPE_CHECKING:
    from pathlib import Path

LONG = "9" * 5_000
CUT = "9" * 40 + "..."
DEEP = "[" * 100_000
SAMPLES = "topic,partition,log_start_offset,log_end_offset,sampled_at"
POSITIONS = "topic,partition,earliest,latest"

#: Command lines without `--store`, the text of the file that they name, the status, and what stderr has.
REFUSED = {
    "lag --positions {file}": [
        (f"{POSITIONS}\nt,0,0,{LONG}", 1, f"line 2: latest {CUT} is above 2^63-1"),
        (f"{POSITIONS}\nt,0,0,{2**63}", 1, f"line 2: latest {2**63} is above 2^63-1"),
        (f"{POSITIONS}\nt,{LONG},0,1", 1, f"line 2: partition {CUT} is above 2^63-1"),
        (f"{SAMPLES}\nt,0,0,1,{LONG}", 1, f"line 2: '{CUT}' is not a time in milliseconds since 1970"),
        (f"{SAMPLES}\nt,0,0,1,{2**60}", 1, f"line 2: '{2**60}' is not a time in milliseconds since 1970"),
    ],
    "reset-offsets --group g --from-file {file}": [
        (f"t,0,{LONG}", 1, f"line 1: offset {CUT} is above 2^63-1"),
        (f"t,0,-{LONG}", 1, f"line 1: offset -{CUT[1:]} is negative"),
    ],
    "groups --config {file}": [
        (f"[fold]\ncompact_files = {LONG}", 1, "a number has thousands of digits"),
        (f"[fold]\ncompact_files = 0x{'f' * 5_000}", 1, "compact_files: a number of more than 64 bits is not allowed"),
        (f"x = {DEEP}", 1, "it is nested too deeply"),
    ],
    f"commit --group g t:0={LONG}": [("", 2, f"{CUT} is above 2^63-1")],
    f"commit --group g t:{LONG}=0": [("", 2, f"{CUT} is above 2^31-1")],
    f"delete-offsets --group g t:{LONG}": [("", 2, f"{CUT} is above 2^31-1")],
    f"top --limit {LONG}": [("", 2, f"'{CUT[1:]}' is not a valid integer")],
    f"describe --group {'g' * 65_536}": [("", 1, f"no group '{'g' * 39}...' in")],
    f"top --every {LONG}": [("", 2, f"'{CUT}' is not a duration")],
    f"clean-log --older-than {LONG}": [("", 2, f"'{CUT}' is not allowed; it takes a whole number")],
    f"maintain --every PT{LONG}S": [("", 2, "is not a duration")],
    f"as-of --time {LONG}": [("", 2, f"'{CUT}' is not a time in milliseconds since 1970")],
    "describe --group \udcff": [("", 2, r"argument 5 is not UTF-8: '\udcff'")],
    "commit --group \ud842 t:0=1": [("", 2, r"argument 5 is not UTF-8: '\ud842'")],
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An empty owned store."""
    location = tmp_path_factory.mktemp("large") / "store"
    OwnedStore.create(location, 3)
    return str(location)


@pytest.mark.parametrize(
    ("line", "text", "status", "said"),
    [pytest.param(line, *case, id=f"{line[:30]} {case[2][:50]}") for line, cases in REFUSED.items() for case in cases],
)
def test_numbers_nesting_and_surrogates_beyond_all_limits_are_one_line(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, text: str, status: int, said: str
) -> None:
    (tmp_path / "file").write_text(text, encoding="utf-8")
    command, *rest = line.replace("{file}", str(tmp_path / "file")).split(" ")
    capsys.readouterr()
    assert main([command, "--store", store, *rest]) == status
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said.lower() in err.lower()
    assert len(err) < 500
    assert "sys." not in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (DEEP, "it has too many levels of arrays and objects"),
        (f'{{"offsets": [{{"partition": {{"a": {LONG}}}, "offset": null}}]}}', "has more than 1000 digits"),
        ('{"offsets": [{"partition": {"a": "\\ud842"}, "offset": null}]}', "surrogates not allowed"),
    ],
)
def test_offsets_of_a_connector_beyond_all_limits_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    ConnectLog.create(tmp_path / "store", "lab", 1)
    (tmp_path / "file").write_text(text, encoding="utf-8")
    at = ["--store", str(tmp_path / "store"), "--connector", "c", "--offsets", str(tmp_path / "file")]
    assert main(["connect", "alter", *at]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert said in err


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (f"SELECT {'(' * 1_000}1{')' * 1_000}", "cannot run the query: it is nested too deeply"),
        (f"SELECT {'[' * 10_000_000}", "cannot run the query: it is nested too deeply"),
        (f"SELECT {'NOT ' * 900}TRUE", "cannot run the query: it is nested too deeply"),
        (f"SELECT {'- ' * 20_000}1", "cannot run the query: it is nested too deeply"),
        (f"SELECT * FROM {'(SELECT * FROM ' * 900}log{')' * 900}", "cannot run the query: it is nested too deeply"),
        (f"SELECT 1{' + 1' * 900}", "cannot run the query: it is nested too deeply"),
        (f"SELECT {LONG}::BIGINT", "the query failed: "),
        (f"SELECT a{'.b' * 500}", "the query failed: "),
        ("SELECT '\ud842'", "cannot run the query: it has an unpaired surrogate"),
    ],
)
def test_a_query_beyond_all_limits_is_one_line(store: str, query: str, said: str) -> None:
    with closing(LocalSql([StateReader(store)])) as local, pytest.raises(QueryFailed) as raised:
        list(local.run(query)[1])
    assert str(raised.value).startswith(said)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize(
    "query",
    [
        " OR ".join(["SELECT 1 WHERE TRUE", *["FALSE"] * 20_000]),
        "SELECT 1 WHERE 'a-7 and b' IN (" + ", ".join(f"'a-{each} and b'" for each in range(2_000)) + ") -- and, and",
        f"SELECT 1 WHERE 1 < {LONG}",
        "SELECT 1" + " UNION SELECT 1" * 500,
    ],
)
def test_a_long_query_is_answered(store: str, query: str) -> None:
    with closing(LocalSql([StateReader(store)])) as local:
        assert list(local.run(query)[1]) == [[1]]


def test_a_group_id_with_an_unpaired_surrogate_is_refused_by_the_python_interface(store: str) -> None:
    with pytest.raises(InvalidRequest, match="it has an unpaired surrogate, which UTF-8 cannot hold"):
        describe_groups(StateReader(store), ["\ud842"])
