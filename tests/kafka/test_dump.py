"""`offsets dump` beside Kafka 4.2's dump tool: on every capture, also of old brokers, and on damaged files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from benchmarks.broker import KAFKA_JARS
from offsets_pipeline.cli import main
from tests.kafka.brokers import fetch_kafka
from tests.kafka.zookeeper import run_java
from tests.logs import CAPTURES
from tests.record_batches import encode_batch
from tests.unit.history.dump_tool import assert_same, batches_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.history.dump_tool import Batch, Row

pytestmark = pytest.mark.process
SEGMENT = CAPTURES / "4.2.0-txn-open" / "segments" / "__consumer_offsets-0" / f"{0:020d}.log"


@pytest.fixture(scope="module", autouse=True)
def jars() -> None:
    fetch_kafka()


def dumped_by_kafka(*paths: Path) -> dict[str, list[Batch]]:
    """The batches that the tool prints, by file; it wants files with a segment's name."""
    named = ["--files", ",".join(map(str, paths))]
    return batches_of(run_java(KAFKA_JARS, "kafka.tools.DumpLogSegments", "--offsets-decoder", *named).splitlines())


def dumped_by_us(capsys: pytest.CaptureFixture[str], *paths: Path) -> dict[str, list[Row]]:
    assert main(["dump", *map(str, paths), "--format", "json"]) == 0
    found: dict[str, list[Row]] = {str(path): [] for path in paths}
    for line in capsys.readouterr().out.splitlines():
        row = json.loads(line)
        found[row["file"]].append(row)
    return found


def test_every_capture_is_dumped_as_kafka_dumps_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kafka 4.2 leaves out fields of 4.4; `tests/unit/record/test_dump.py` has what the tool of 4.4 printed."""
    paths = sorted(CAPTURES.glob("*/segments/__consumer_offsets-*/*.log"))
    paths = [path for path in paths if not path.parents[2].name.startswith("4.4")]
    by_kafka, by_us = dumped_by_kafka(*paths), dumped_by_us(capsys, *paths)
    assert by_kafka.keys() == by_us.keys()
    compared = {path: assert_same(by_us[path], by_kafka[path]) for path in by_us}
    assert len(compared) == len(paths)
    assert all(rows or not path.stat().st_size for path, rows in zip(paths, compared.values(), strict=True))


def test_damaged_batches_are_those_that_kafka_calls_invalid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = dumped_by_us(capsys, SEGMENT)[str(SEGMENT)]
    positions = sorted({row["position"] for row in whole})
    data = bytearray(SEGMENT.read_bytes()[: positions[-1] + 20])
    for at in positions[1:4]:
        data[at + 30] ^= 1  # a byte that the checksum covers
    damaged = tmp_path / SEGMENT.name
    damaged.write_bytes(data)
    batches, rows = dumped_by_kafka(damaged)[str(damaged)], dumped_by_us(capsys, damaged)[str(damaged)]
    invalid = {int(batch.fields["position"]) for batch in batches if batch.fields["isvalid"] == "false"}
    assert invalid == {*positions[1:4]}
    # the tool only says of an incomplete batch how many bytes it has
    assert {row["position"] for row in rows if row["problem"]} == invalid | {positions[-1]}
    assert_same(
        [row for row in rows if not row["problem"]], [each for each in batches if each.fields["isvalid"] == "true"]
    )


def test_batches_without_records_have_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = pa.array([], pa.binary())
    path = tmp_path / f"{7:020d}.log"
    path.write_bytes(encode_batch(nothing, nothing, base_offset=7, last_offset=9))
    rows = dumped_by_us(capsys, path)[str(path)]
    assert assert_same(rows, dumped_by_kafka(path)[str(path)]) == 1
    assert (rows[0]["base_offset"], rows[0]["last_offset"], rows[0]["record_count"]) == (7, 9, 0)
