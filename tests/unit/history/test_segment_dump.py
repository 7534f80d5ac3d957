"""`offsets dump` beside the recorded output of Kafka's dump tool, and on damaged files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.kafka.record.segment import read_segment
from offsets_pipeline.questions.history import segment_dump
from tests.logs import CAPTURE_NAMES, CAPTURES
from tests.unit.history.dump_tool import assert_same, batches_of

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from tests.unit.history.dump_tool import Row

SEGMENT = CAPTURES / "4.2.0-txn-open" / "segments" / "__consumer_offsets-0" / f"{0:020d}.log"
OLD_SEGMENT = CAPTURES / "2.4.1-old-ibp0.10.0-fmt0.10.0-codec1" / "segments" / "__consumer_offsets-0" / f"{0:020d}.log"
#: Their tool prints other keys and payloads, and of 0.10 other headers; the 4.2 tool reads them in tests/kafka.
OLDEST = "0.10.2.2-old"


def dump(capsys: pytest.CaptureFixture[str], *paths: Path) -> list[Row]:
    assert main(["dump", *map(str, paths), "--format", "json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("capture", sorted({*CAPTURE_NAMES} - {OLDEST}))
def test_rows_are_what_kafkas_tool_printed(capsys: pytest.CaptureFixture[str], capture: str) -> None:
    lines = (CAPTURES / capture / "dump.txt").read_text(encoding="utf-8").split("\n")
    compared = 0
    for name, batches in batches_of(lines).items():
        path = CAPTURES / capture / name.partition(f"{capture}/")[2]
        if path.parent.name.startswith("__consumer_offsets-"):
            compared += assert_same(dump(capsys, path), batches)
    assert compared


def test_damaged_batches_are_shown_in_their_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = dump(capsys, SEGMENT)
    positions = sorted({row["position"]: row["size"] for row in whole}.items())
    (at, size), (last, _) = positions[1], positions[-1]
    data = bytearray(SEGMENT.read_bytes()[: last + 20])
    data[at + 30] ^= 1
    damaged = tmp_path / "any name"
    damaged.write_bytes(data)
    rows = dump(capsys, damaged)
    known = {row["position"]: row for row in rows}
    assert [row["position"] for row in rows] == sorted(row["position"] for row in rows)
    assert (known[at]["size"], known[at]["record_offset"]) == (size, None)
    assert known[at]["problem"].startswith("checksum is 0x")
    assert known[last]["problem"] == "incomplete last batch: " + known[last]["problem"].partition(": ")[2]
    good = [row | {"file": str(damaged)} for row in whole if row["position"] not in (at, last)]
    assert [row for row in rows if row["problem"] is None] == good
    assert main(["dump", str(damaged)]) == 0
    assert "checksum is 0x" in capsys.readouterr().out


def test_a_file_that_is_no_segment_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.log"
    text.write_text("no segment at all, but some text\n", encoding="utf-8")
    (tmp_path / "empty.log").touch()
    assert dump(capsys, tmp_path / "empty.log") == []
    for path, said in (
        (text, f"{text}: not a Kafka log segment"),
        (tmp_path / "none", f"no such file: {tmp_path / 'none'}"),
        (tmp_path, f"cannot read {tmp_path}: "),
    ):
        assert main(["dump", str(path)]) == 1
        err = capsys.readouterr().err
        assert err.startswith(f"offsets: error: {said}")
        assert len(err.splitlines()) == 1


def test_damaged_files_have_the_records_and_the_damage_that_the_reader_finds(
    chance: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(40):
        monkeypatch.setattr(segment_dump, "_MAX_RECORDS", chance.choice((1, 3, 1000)))
        data = bytearray(chance.choice((SEGMENT, OLD_SEGMENT)).read_bytes())
        for at in chance.sample(range(100, len(data) - 200), 3):
            if chance.random() < 0.5:
                data[at] ^= 1 << chance.randrange(8)
            else:
                del data[at : at + chance.randrange(1, 50)]
        rows = list(segment_dump.dumped(memoryview(bytes(data)), "a test"))
        reader = read_segment(bytes(data), source="a test")
        offsets = [offset for batch in reader.batches() for offset in batch["record_offset"].to_pylist()]
        records = [row for row in rows if row.get("record_offset") is not None]
        assert [row["record_offset"] for row in records] == offsets
        damage = [(row["position"], row["size"]) for row in rows if "problem" in row and row not in records]
        torn = [] if reader.torn_tail is None else [(reader.torn_tail.position, reader.torn_tail.length)]
        assert damage == [(each.position, each.length) for each in reader.damage] + torn
        assert [row["position"] for row in rows] == sorted(row["position"] for row in rows)
