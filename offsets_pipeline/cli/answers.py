"""`offsets log-info`. Imports no Spark."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from offsets_pipeline.cli.answer_times import answer_time_of
from offsets_pipeline.cli.opened import open_reader
from offsets_pipeline.cli.output import write_json, write_rows
from offsets_pipeline.query.log_info import OF_TOPIC, LogPartitionInfo, log_info

if TYPE_CHECKING:
    from offsets_pipeline.config import Settings


def show_log(store: str, settings: Settings, format_: str) -> int:
    """Show each log partition; returns the exit status."""
    reader = open_reader(store, settings)
    answers = [asdict(each) for each in log_info(reader)]
    time = answer_time_of(reader, store, settings)
    if format_ == "json":
        write_json({"log_partitions": answers, "as_of": time.as_of, "stale": time.stale})
    else:
        names = list(LogPartitionInfo.__dataclass_fields__)
        if format_ == "table" and all(each["complete_since"] is None for each in answers):
            names = [name for name in names if name not in OF_TOPIC]  # they are empty, and a table has to fit
        write_rows(names, [[each[name] for name in names] for each in answers], format_)
    return 0
