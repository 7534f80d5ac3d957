"""docs/scaling.md says what `benchmarks/growth.py` computes from its figures."""

from __future__ import annotations

import json

from benchmarks import growth

FIGURES = {
    "identities": 50_000_000,
    "records": 200_000_000,
    "ingest": 80.0,
    "ingest, of processors": 140.0,
    "fold": 70.0,
    "reload": 65.4,
    "reload, of processors": 100.0,
    "micro-batch": 0.234,
    "share": 3.0,
    "describe": 0.5,
    "compaction": 9.99,
    "log bytes": 1_600_000_000,
    "state bytes": 500_000_000,
    "memory MiB": 2048,
}


def test_what_follows_for_more_is_worked_out_from_the_last_row() -> None:
    table, _, beyond = growth.computed([FIGURES | {"identities": 1_000_000}, FIGURES]).partition("\n\n")
    cells = [cell.strip() for cell in table.splitlines()[-1].strip("|").split("|")]
    assert cells == ["50.0 M", "200 M", "80 s", "70 s", "65 s", "0.23 s", "3.00 s", "0.50 s", "9.99 s", "2.0 GB"]
    found = " ".join(beyond.split())
    assert "takes 0.70 µs of a core to ingest, 0.50 µs to reload, and 8.0 bytes of the log" in found
    assert "8 MB of log a second, 0.7 TB a day, and ingest keeps 0.7 cores busy" in found
    assert "The share of one of 8 machines of 2 cores is 250,000 commits every 2 s" in found
    assert "so many took 3.00 s: 8 do not keep up, 12 would." in found
    assert "10 GB of published state. The share of one of 20 machines of 2 cores is 50 million" in found
    assert found.endswith("this row reloaded it in 65 s.")


def test_machines_keep_up_whose_share_takes_no_longer_than_the_time_between_two() -> None:
    assert "took 2.00 s: 8 keep up." in " ".join(growth.computed([FIGURES | {"share": 2.0}]).split())


def test_page_is_what_the_figures_say() -> None:
    text = growth.DOCS.read_text(encoding="utf-8")
    assert growth.with_computed(text, json.loads(growth.FIGURES.read_text(encoding="utf-8"))) == text
