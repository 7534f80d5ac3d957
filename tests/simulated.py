"""A day of consumers in an owned store, with samples of their topic's log end."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.fold.state.fold import fold_log
from offsets_pipeline.ingest.topic_positions.position_samples import sample_rows
from offsets_pipeline.ingest.topic_positions.sample_table import SampleWriter, table_of
from offsets_pipeline.store.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

START_MS = 1_795_000_000_000
MINUTE_MS = 60_000
STEPS, STEP_MS = 96, 15 * MINUTE_MS
END_MS = START_MS + STEPS * STEP_MS
PRODUCED = 1_000  # records of a step


def simulate_day(folder: Path) -> None:
    """Make the store, folded. Of topic `orders` with one partition:

    - `steady` is always 100 records behind;
    - `slow` consumes nine tenths of what is produced;
    - `stopped` commits no more after half of the day;
    - `rewound` goes back by 20,000 records at two thirds of the day, and catches up.
    """
    clock = FixedClock(START_MS)
    opened = OwnedStore.create(folder, 4)
    writer = SampleWriter(table_of(str(folder)), "a simulation")
    rewound = 0
    with Coordinator.open(opened, clock=clock, housekeeping=False) as coordinator:
        for step in range(1, STEPS + 1):
            clock.advance_ms(STEP_MS)
            end = step * PRODUCED
            rewound = end - 20_000 if step == STEPS * 2 // 3 else min(end, rewound + 2 * PRODUCED)
            offsets = {"steady": end - 100, "slow": end * 9 // 10, "rewound": rewound}
            if step <= STEPS // 2:
                offsets["stopped"] = end
            for group, offset in offsets.items():
                coordinator.commit_offsets(group, {("orders", 0): offset}, acks=1)
            writer.append(sample_rows({("orders", 0): (0, end)}, clock.now_ms(), "a simulation"))
    store = Store(cast("SparkSession", None), str(folder), opened.properties)
    fold_log(store, Settings(), clock)
