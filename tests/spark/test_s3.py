"""A store on S3, from its creation to its upkeep, through the commands."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pyarrow import fs

from offsets_pipeline.coordinator.owned_store import OwnedStore
from tests.compare import compare
from tests.logs import CAPTURES, oracle
from tests.programs import in_process

if TYPE_CHECKING:
    from pathlib import Path


CAPTURE = "4.2.0-kip848"
RECORDS = 350  # of its segments, as Kafka's dump tool counts them


@pytest.mark.slow  # every kind of command, and the server is slow
@pytest.mark.usefixtures("spark")
def test_a_store_on_s3_is_ingested_folded_reloaded_described_verified_and_maintained(s3: str, tmp_path: Path) -> None:
    store = f"{s3}/a store"
    fs.copy_files(str(CAPTURES / CAPTURE / "segments"), f"{s3}/segments")

    def said(command: str, *arguments: str, scheme: str = "s3") -> str:
        done = in_process(tmp_path, command, "--store", store.replace("s3", scheme, 1), *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def differences() -> list[str]:
        return compare(json.loads(said("describe", "--all-groups", "--format", "json")), oracle(CAPTURE))

    assert said("ingest-segments", f"{s3}/segments").startswith(f"{RECORDS} records added to {store} from 5 segment")
    assert differences() == []
    assert said("fold", "--available-now") == f"{RECORDS} records folded in {store}\n"
    assert differences() == []
    assert said("fold", "--available-now", scheme="s3a").startswith("0 records folded in")
    assert said("reload") == f"{RECORDS} records replayed in {store}\n"
    assert said("verify").startswith("equal: ")
    before, _, after, *_ = next(map(int, line.split()[1:]) for line in said("maintain").splitlines() if "log " in line)
    assert (before, after) == (5, 1)
    assert differences() == []
    broker = [name for name, group in oracle(CAPTURE)["groups"].items() if group.get("list_state") == "Stable"]
    listed = said(
        "sql", "--spark", "--format", "json", "SELECT group_id FROM consumer_groups WHERE state = 'Stable' ORDER BY 1"
    )
    assert [json.loads(each)["group_id"] for each in listed.splitlines()] == sorted(broker)


@pytest.mark.usefixtures("spark")
def test_an_owned_store_on_s3_takes_commits_before_and_after_a_fold(s3: str, tmp_path: Path) -> None:
    store = f"{s3}/owned"
    OwnedStore.create(store, 3)

    def committed() -> dict[str, int]:
        done = in_process(tmp_path, "describe", "--store", store, "--group", "g", "--format", "json")
        rows = json.loads(done.stdout)["groups"]["g"]["offsets"]
        return {f"{each['topic']}:{each['partition']}": each["offset"] for each in rows}

    for command in (
        ["commit", "--group", "g", "t:0=5", "t:1=6"],
        ["fold", "--available-now"],
        ["commit", "--group", "g", "t:1=7"],
    ):
        done = in_process(tmp_path, command[0], "--store", store, *command[1:])
        assert (done.returncode, done.stderr) == (0, "")
    assert committed() == {"t:0": 5, "t:1": 7}
