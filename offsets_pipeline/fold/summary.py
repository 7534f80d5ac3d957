"""What some effects amount to: small enough to collect, a row for each log partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from offsets_pipeline.errors import UndecodableRecord
from offsets_pipeline.fold.state_files import state_file
from offsets_pipeline.semantics.effects import PROGRESS, QUARANTINE, STATE_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from offsets_pipeline.config import Settings
    from offsets_pipeline.delta.data_file import WrittenFile


class Progress(NamedTuple):
    """How far a log partition was folded, and over how many records."""

    log_partition: int
    folded_to: int
    records: int
    unknown_records: int


_PROGRESS_FIELDS = [*Progress._fields, "replay_from_start"]
_CORRUPT_FIELDS = ["log_partition", "record_offset", "reason"]


@dataclass(frozen=True)
class Summary:
    """What a fold amounts to.

    ``rows`` by kind of effect, ``progress`` by log partition, the log partitions into which rows came ``behind`` the
    folded position, of each state table the ``files`` that tasks wrote for it, and what is wrong with the first
    ``corrupt`` record.
    """

    rows: dict[str, int]
    progress: tuple[Progress, ...]
    behind: list[int]
    files: dict[str, list[WrittenFile]]
    corrupt: str | None = None

    @property
    def records(self) -> int:
        """How many records were folded."""
        return sum(each.records for each in self.progress)


def summarise(effects: DataFrame | pa.Table, settings: Settings) -> Summary:
    """Count the effects. Raises UndecodableRecord where there is one and the settings say to stop (R6)."""
    counted = _counted_here(effects) if isinstance(effects, pa.Table) else _counted(effects)
    by_kind = {row["kind"]: row for row in counted}
    corrupt = None
    if QUARANTINE in by_kind:
        first = by_kind[QUARANTINE]["first_corrupt"]
        where = f"record {first['record_offset']} of log partition {first['log_partition']}"
        corrupt = f"{where} does not decode: {first['reason']}"
        if settings.log.corrupt_records == "fail":
            raise UndecodableRecord(
                f'{corrupt}; nothing was folded: set corrupt_records = "quarantine" to go on without such records'
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
        corrupt=corrupt,
    )


def _counted(effects: DataFrame) -> Sequence[Mapping[str, Any]]:
    of_progress = F.when(F.col("kind") == PROGRESS, F.struct(*_PROGRESS_FIELDS))
    corrupt = F.when(F.col("kind") == QUARANTINE, F.struct(*_CORRUPT_FIELDS))
    return [
        row.asDict()
        for row in effects.groupBy("kind")
        .agg(
            F.count("*").alias("rows"),
            F.collect_list(of_progress).alias("progress"),
            F.collect_list("state_file").alias("state_files"),
            F.min(corrupt).alias("first_corrupt"),
        )
        .collect()
    ]


def _counted_here(effects: pa.Table) -> Sequence[Mapping[str, Any]]:
    counted = []
    for kind in effects["kind"].unique().to_pylist():
        rows = effects.filter(pc.equal(effects["kind"], kind))
        row: dict[str, Any] = {"kind": kind, "rows": rows.num_rows}
        if kind == PROGRESS:
            row["progress"] = rows.select(_PROGRESS_FIELDS).to_pylist()
        elif kind == QUARANTINE:
            order = [(name, "ascending") for name in _CORRUPT_FIELDS]
            row["first_corrupt"] = rows.select(_CORRUPT_FIELDS).sort_by(order).slice(0, 1).to_pylist()[0]
        counted.append(row)
    return counted
