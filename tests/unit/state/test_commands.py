"""Commands fold, publish, verify and reload small logs in the driver. Their output is worked out by hand. No Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from offsets_pipeline.store.delta.store_folder import create_tables
from tests.folded_stores import new_store
from tests.logs import LogPartition
from tests.spark.stores import appended
from tests.unit.share_logs import PROPERTIES, share_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    #: Runs a command on a store; returns what it prints.
    Run = Callable[..., str]


@pytest.fixture
def run(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr("offsets_pipeline.store.session.build_session", lambda *_, **__: pytest.fail("Spark starts"))

    def run(*command: str) -> str:
        status = main([*command, "--store", str(place / "s")])
        printed = capsys.readouterr()
        assert (status, printed.err) == (0, "")
        return printed.out

    return run


def described(run: Run) -> dict[str, dict[str, int]]:
    """The offsets of each group, by topic and partition."""
    groups: dict[str, Any] = json.loads(run("describe", "--all-groups", "--format", "json"))["groups"]
    return {
        name: {f"{each['topic']}{each['partition']}": each["offset"] for each in group["offsets"]}
        for name, group in groups.items()
    }


def test_a_store_without_records(place: Path, run: Run) -> None:
    location = new_store(place / "s").location
    said = "equal: 0 offsets and 0 groups match a replay of the 0 folded records of 0 log partitions\n"
    assert run("verify") == said  # without a table of digests
    assert run("fold", "--available-now") == f"0 records folded in {location}\n"
    assert run("verify") == said


@pytest.mark.parametrize("semantics", CoordinatorSemantics)
def test_a_log_of_groups(place: Path, run: Run, semantics: CoordinatorSemantics) -> None:
    location, log = new_store(place / "s", 1, semantics).location, LogPartition(0)
    records = 0

    def put() -> None:
        nonlocal records
        records += len(log.rows)
        appended(location, log.rows)
        log.rows.clear()

    def folded(count: int, answers: dict[str, dict[str, int]]) -> None:
        """Check the answers before a fold of ``count`` records and after it."""
        assert described(run) == answers
        assert run("fold", "--available-now") == f"{count} records folded in {location}\n"
        assert described(run) == answers
        for how in ([], ["--independent"]):
            said = f"match a replay of the {records} folded records of 1 log partition"
            assert said in run("verify", *how).splitlines()[0]

    log.commit(("g", "t", 0), 5)
    log.commit(("g", "t", 1), 6)
    log.commit(("h", "t", 0), 1)
    log.group(2, "h")
    put()
    folded(4, {"g": {"t0": 5, "t1": 6}, "h": {"t0": 1}})
    log.delete(("g", "t", 1))
    log.commit(("g", "t", 0), 7)
    log.commit(("h", "u", 0), 2, producer_id=1)
    put()
    folded(3, {"g": {"t0": 7}, "h": {"t0": 1}})
    log.end_commit(1)
    log.commit(("k", "t", 0), 9)
    put()
    answers = {"g": {"t0": 7}, "h": {"t0": 1, "u0": 2}, "k": {"t0": 9}}
    folded(2, answers)
    assert run("reload") == f"9 records replayed in {location}\n"
    assert described(run) == answers
    run("maintain")
    assert described(run) == answers


def test_a_log_of_share_groups(place: Path, run: Run) -> None:
    create_tables(str(place / "s"), PROPERTIES)
    rows = sorted(share_rows(), key=lambda row: row.record_offset)
    for batch in (rows[:7], rows[7:]):
        appended(place / "s", batch)
        assert run("fold", "--available-now") == f"{len(batch)} records folded in {place / 's'}\n"
    shown = run("share-partitions")
    for how in ([], ["--independent"]):
        assert f"a replay of the {len(rows)} folded records of 3 log partitions" in run("verify", *how)
    assert run("reload") == f"{len(rows)} records replayed in {place / 's'}\n"
    run("maintain")
    assert run("share-partitions") == shown
