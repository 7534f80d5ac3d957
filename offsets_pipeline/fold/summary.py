"""What some effects amount to: small enough to collect, a row for each log partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F

from offsets_pipeline.errors import UndecodableRecord
from offsets_pipeline.fold.effects import GROUP_RECORD, PROGRESS, QUARANTINE, STATE_FILE
from offsets_pipeline.fold.state_files import state_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from offsets_pipeline.config import Settings
    from offsets_pipeline.written_file import WrittenFile


class Progress(NamedTuple):
    """How far a log partition was folded, and over how many records."""

    log_partition: int
    folded_to: int
    records: int
    unknown_records: int


@dataclass(frozen=True)
class Summary:
    """What a fold amounts to.

    ``rows`` by kind of effect, ``progress`` by log partition, the log partitions into which rows came ``behind`` the
    folded position, of each state table the ``files`` that tasks wrote for it, and how many bytes the values of group
    records have.
    """

    rows: dict[str, int]
    progress: tuple[Progress, ...]
    behind: list[int]
    files: dict[str, list[WrittenFile]]
    group_bytes: int

    @property
    def records(self) -> int:
        """How many records were folded."""
        return sum(each.records for each in self.progress)


def summarise(effects: DataFrame, settings: Settings) -> Summary:
    """Count the effects. Raises UndecodableRecord where there is one and the settings say to stop (R6)."""
    of_progress = F.when(F.col("kind") == PROGRESS, F.struct(*Progress._fields, "replay_from_start"))
    counted = effects.groupBy("kind").agg(
        F.count("*").alias("rows"),
        F.collect_list(of_progress).alias("progress"),
        F.collect_list("state_file").alias("state_files"),
        F.coalesce(F.sum(F.length("value")), F.lit(0)).alias("value_bytes"),
    )
    by_kind = {row["kind"]: row for row in counted.collect()}
    if QUARANTINE in by_kind and settings.log.corrupt_records == "fail":
        first = effects.where(F.col("kind") == QUARANTINE).orderBy("log_partition", "record_offset").first()
        assert first is not None  # noqa: S101 - the kind was just counted
        raise UndecodableRecord(
            f"record {first['record_offset']} of log partition {first['log_partition']} does not decode: "
            f'{first["reason"]}; nothing was folded: set corrupt_records = "quarantine" to go on without such records'
        )
    progress = by_kind[PROGRESS]["progress"] if PROGRESS in by_kind else []
    files: dict[str, list[WrittenFile]] = {}
    for table, file in map(state_file, by_kind[STATE_FILE]["state_files"] if STATE_FILE in by_kind else ()):
        files.setdefault(table, []).append(file)
    return Summary(
        rows={kind: row["rows"] for kind, row in by_kind.items()},
        progress=tuple(Progress(*(row[name] for name in Progress._fields)) for row in progress),
        behind=sorted(row["log_partition"] for row in progress if row["replay_from_start"]),
        files=files,
        group_bytes=by_kind[GROUP_RECORD]["value_bytes"] if GROUP_RECORD in by_kind else 0,
    )
