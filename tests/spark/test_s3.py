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

    from pyspark.sql import SparkSession

CAPTURE = "4.2.0-kip848"


@pytest.mark.slow  # each request of Spark passes the server, which is Python
def test_a_store_on_s3_is_ingested_folded_reloaded_described_verified_and_maintained(
    spark: SparkSession,
    s3: str,
    tmp_path: Path,
) -> None:
    store, segments = f"{s3}/a store", f"{s3}/segments"
    fs.copy_files(str(CAPTURES / CAPTURE / "segments"), segments)

    def said(command: str, *arguments: str, on: str = store) -> str:
        done = in_process(tmp_path, command, "--store", on, *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def answer() -> list[str]:
        return compare(json.loads(said("describe", "--all-groups", "--format", "json")), oracle(CAPTURE))

    records = len(oracle(CAPTURE))
    print(said("ingest-segments", segments))
    assert answer() == []
    print(said("fold", "--available-now"))
    assert answer() == []
    print(said("fold", "--available-now"))
    print(said("reload"))
    print(said("verify"))
    print(said("maintain"))
    assert answer() == []
    print(said("sql", "--spark", "SELECT count(*) FROM groups"))

    owned = f"{s3}/owned"
    OwnedStore.create(owned, 3)
    print(said("commit", "--group", "g", "t:0=5", on=owned))
    print(said("fold", "--available-now", on=owned))
    print(said("describe", "--group", "g", on=owned))
