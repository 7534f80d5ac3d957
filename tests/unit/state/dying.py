"""Folds that die at a commit, and a log that has something for every table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offsets_pipeline.store.delta.table_folder import TableFolder
from tests.logs import LogPartition

if TYPE_CHECKING:
    import pytest

#: In the order in which a fold writes.
TABLES = ["offset_facts", "group_records", "group_facts", "quarantine", "topics", "fold_progress"]
TOPIC_ID = "AAAAAAAAAAAAAAAAAAA{:02}A"


class Died(Exception):
    """Raised by a test in the middle of a fold."""


def dying(table: str, when: str, patch: pytest.MonkeyPatch) -> list[str]:
    """Make the next commit to a table raise, before or after it is written; returns the tables for which it did."""
    died: list[str] = []
    whole = TableFolder.commit

    def commit(self: TableFolder, *arguments: Any, **named: Any) -> int:  # noqa: ANN401
        if self.table.name != table:
            return whole(self, *arguments, **named)
        if when == "after":
            whole(self, *arguments, **named)
        died.append(table)
        raise Died(f"{when} the commit to {table}")

    patch.setattr(TableFolder, "commit", commit)
    return died


def busy_log(steps: int) -> list[LogPartition]:
    """In each step something for every table: offsets, groups, topics, quarantine, open and ended transactions."""
    log = LogPartition()
    ends: list[LogPartition] = []
    for step in range(steps):
        log.commit(("g", "t", 0), step, version=4, topic_id=TOPIC_ID.format(step))
        log.commit(("g", f"t{step}", 0), step, producer_id=step)
        log.group(3, "members", epoch=step)
        log.group(5, "members", f"m{step}", client_id="c", client_host="h")
        log.record(b"\x00\x01\x00", b"")  # corrupt
        log.delete(("g", f"t{step - 2}", 0))
        if step % 2:
            log.group_tombstone(5, "members", f"m{step - 1}")
            log.end_commit(step - 1)
        if step == 3:
            log.group_tombstone(2, "simple")
        log.commit(("simple", "t", step), step)
        part = LogPartition(0, start=log.next_offset)
        part.rows = log.rows.copy()
        log.rows.clear()
        ends.append(part)
    return ends
