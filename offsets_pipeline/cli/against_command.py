"""`offsets verify --against`: without Spark."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from offsets_pipeline.cli.live_cluster import mirrored_cluster
from offsets_pipeline.cli.opened import open_reader
from offsets_pipeline.errors import StateDiffers
from offsets_pipeline.questions.broker_comparison import compare_with_brokers
from offsets_pipeline.questions.query.describe import describe_groups

if TYPE_CHECKING:
    from offsets_pipeline.cli.section_state import Verify
    from offsets_pipeline.common.config import Settings

_PATIENCE_SECONDS = 60.0


def verify_against(options: Verify, settings: Settings) -> None:
    """Compare the answers about all groups with those of the brokers. Raises StateDiffers."""
    with mirrored_cluster(options.store, options.against, settings) as cluster:
        found = compare_with_brokers(
            lambda: describe_groups(open_reader(options.store, settings)), cluster, patience_seconds=_PATIENCE_SECONDS
        )
        at = cluster.settings.at
    if found.differences:
        first = min(found.differences)
        raise StateDiffers(
            f"{options.store} differs from what {at} answers, in {len(found.differences)} of "
            f"{len(found.differences) + len(found.offsets)} groups (first: {first!r}: {found.differences[first]}); "
            "`offsets status` shows whether the store is behind, `offsets verify` whether its state is that of its log"
        )
    never = f"; {len(found.changing)} groups changed all the time and were not compared" if found.changing else ""
    sys.stdout.write(
        f"equal: {sum(found.offsets.values())} offsets and {len(found.offsets)} groups match what {at} answers{never}\n"
    )
