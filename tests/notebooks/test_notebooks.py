"""The cells of each notebook run, top to bottom, on a store made of a recorded log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from offsets_pipeline.clock import SystemClock
from offsets_pipeline.ingest.segments.segment_ingest import ingest_segments
from offsets_pipeline.state.fold import reload_partitions
from offsets_pipeline.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from pyspark.sql import SparkSession

    from offsets_pipeline.config import Settings


def test_where_they_stand(
    spark: SparkSession,
    settings: Settings,
    root: Path,
    captures: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    oracle = json.loads((captures / "4.2.0-kip848" / "oracle.json").read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    ingest_segments(spark, "store", [str(captures / "4.2.0-kip848" / "segments")], settings, SystemClock())
    reload_partitions(Store.open(spark, "store"), None, settings, SystemClock())
    notebook = json.loads((root / "notebooks" / "where_they_stand.ipynb").read_text(encoding="utf-8"))
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)

    answered = {
        (group, offset["topic"], offset["partition"], offset["offset"])
        for group, answer in oracle["groups"].items()
        for offset in answer["offsets"]
    }
    now = names["now"]
    columns = ("group_id", "topic", "partition", "committed_offset")
    assert set(zip(*(now[column] for column in columns), strict=True)) == answered  # type: ignore[index]
    assert now[now["unstable"]]["group_id"].tolist() == ["k-librd"]  # type: ignore[index]
    ends = {each["partition"]: each["end"] for each in oracle["topics"]["__consumer_offsets"]["partitions"]}
    why = names["why"]
    assert dict(zip(why["log_partition"], why["folded_to"], strict=True)) == ends  # type: ignore[index]
    described = {
        member["client_id"] for answer in oracle["groups"].values() for member in answer["describe"].get("members", ())
    }
    assert set(names["members"]["client_id"]) == described  # type: ignore[index]
