"""What some effects amount to: small enough to collect, a row for each log partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from offsets_pipeline.errors import UndecodableRecord
from offsets_pipeline.fold.effects import PROGRESS, QUARANTINE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from offsets_pipeline.config import Settings


@dataclass(frozen=True)
class Summary:
    """What a fold amounts to.

    ``kinds`` of effects there are, ``records`` folded, how far each log partition was folded, and the log partitions
    into which rows came ``behind`` the folded position.
    """

    kinds: frozenset[str]
    records: int
    folded_to: dict[int, int]
    behind: list[int]


def summarise(effects: DataFrame, settings: Settings) -> Summary:
    """Count the effects. Raises UndecodableRecord where there is one and the settings say to stop (R6)."""
    kinds = frozenset(row["kind"] for row in effects.groupBy("kind").count().collect())
    if QUARANTINE in kinds and settings.log.corrupt_records == "fail":
        first = effects.where(F.col("kind") == QUARANTINE).orderBy("log_partition", "record_offset").first()
        assert first is not None  # noqa: S101 - the kind was just counted
        raise UndecodableRecord(
            f"record {first['record_offset']} of log partition {first['log_partition']} does not decode: "
            f'{first["reason"]}; nothing was folded: set corrupt_records = "quarantine" to go on without such records'
        )
    progress = effects.where(F.col("kind") == PROGRESS).collect()
    return Summary(
        kinds=kinds,
        records=sum(row["records"] for row in progress),
        folded_to={row["log_partition"]: row["folded_to"] for row in progress},
        behind=sorted(row["log_partition"] for row in progress if row["replay_from_start"]),
    )
