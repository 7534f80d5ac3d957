"""Options and table of the benchmark that reads a topic beside Spark's Kafka source. No Spark and no broker starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks import read_topic
from benchmarks.read_topic import APPENDED, OURS, OURS_ALONE, SPARK_ALONE, Line, main, parsed, render

if TYPE_CHECKING:
    from pathlib import Path


def test_table_has_medians_and_how_many_times_as_fast_ours_is() -> None:
    lines = [
        Line(OURS, [2.0, 1.0, 3.0], [4.0, 4.5, 5.0]),
        Line(APPENDED, [5.0, 6.0, 5.0], [9.0, 9.0, 9.0]),
        Line(OURS_ALONE, [0.5], [1.0]),
        Line(SPARK_ALONE, [2.0], [3.0]),
    ]
    header, rule, *rows = [
        [cell.strip() for cell in row.strip("|").split("|")] for row in render(lines, 1000).split("\n")
    ]
    assert header == ["what", "seconds", "records/s", "CPU s", "ours is as fast"]
    assert all(set(cell) == {"-"} for cell in rule)
    assert rows == [
        [OURS, "2.00 (1.00 to 3.00)", "500", "4.5", ""],
        [APPENDED, "5.00 (5.00 to 6.00)", "200", "9.0", "2.50 times"],
        [OURS_ALONE, "0.50 (0.50 to 0.50)", "2,000", "1.0", ""],
        [SPARK_ALONE, "2.00 (2.00 to 2.00)", "500", "3.0", "4.00 times"],
    ]


def test_usual_run_has_five_million_records() -> None:
    options = parsed([])
    assert (options.records, options.records_per_batch, options.rounds) == (5_000_000, 10, 3)


@pytest.mark.parametrize("wrong", ["--records=0", "--rounds=0", "--records-per-batch=11", "--records-per-batch=0"])
def test_option_out_of_bounds_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed([wrong])
    assert ended.value.code == 2
    assert "--records-per-batch takes 1 to 10" in capsys.readouterr().err


def test_missing_jars_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(read_topic, "KAFKA_JARS", tmp_path / "none")
    with pytest.raises(SystemExit, match=r"read_topic: error: no JARs in .*none: run `make kafka`"):
        main([])
