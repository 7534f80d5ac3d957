"""`offsets log-info`. Imports no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offsets_pipeline.cli.answer_times import answer_time_of, time_fields
from offsets_pipeline.cli.opened import open_readers
from offsets_pipeline.cli.output import write_json, write_rows
from offsets_pipeline.query.log_info import OF_TOPIC, LogPartitionInfo, log_info

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsets_pipeline.config import Settings


def show_log(stores: Sequence[str], settings: Settings, format_: str) -> int:
    """Show each log partition; returns the exit status."""
    readers = open_readers(stores, settings)
    of_cluster = len(readers) > 1
    answers: list[dict[str, Any]] = []
    times = []
    for store, reader in readers.items():
        cluster = {"cluster": reader.cluster} if of_cluster else {}
        answers += [{**vars(each), **cluster} for each in log_info(reader)]
        times.append((reader.cluster, answer_time_of(reader, store, settings)))
    if format_ == "json":
        write_json({"log_partitions": answers, **time_fields(times)})
    else:
        names = [*LogPartitionInfo.__dataclass_fields__, *(["cluster"] if of_cluster else [])]
        if format_ == "table" and all(each["complete_since"] is None for each in answers):
            names = [name for name in names if name not in OF_TOPIC]  # they are empty, and a table has to fit
        write_rows(names, [[each[name] for name in names] for each in answers], format_)
    return 0
