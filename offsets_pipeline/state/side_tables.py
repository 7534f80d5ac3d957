"""What a replay finds beside the state: records that do not decode (R6), and names of topic ids (R35)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from offsets_pipeline.delta.data_file import APPLICATION
from offsets_pipeline.delta.schemas import QUARANTINE, TOPICS
from offsets_pipeline.retry import with_retries

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from offsets_pipeline.config import FoldSettings
    from offsets_pipeline.store import Store

_PLACE = ["log_partition", "record_offset"]


def note_quarantine(
    store: Store,
    found: Sequence[pa.Table],
    log_epoch: int,
    now_ms: int,
    settings: FoldSettings,
    replayed_to: Mapping[int, int] | None = None,
) -> None:
    """Put records into quarantine that are not there yet.

    Args:
        store: The store.
        found: Tables of log_partition, record_offset, reason, key and value.
        log_epoch: The epoch of the log that was replayed.
        now_ms: The time to note, in milliseconds since 1970.
        settings: How often to try again.
        replayed_to: By log partition the end of a replay from the start: other records before it leave the quarantine.

    Raises WriteConflict if other writers came first too often.
    """

    def note() -> None:
        folder = store.table(QUARANTINE.name)
        seen = folder.snapshot()
        there = seen.query(
            f"SELECT log_partition, record_offset FROM quarantine "
            f"WHERE log_epoch = {log_epoch} AND record_offset IS NOT NULL"
        ).read_all()
        known = _places(there)
        places = {place for rows in found for place in _places(rows)}
        gone = {(at, offset) for at, offset in known - places if offset < (replayed_to or {}).get(at, 0)}
        news = [rows.filter(pa.array([place not in known for place in _listed(rows)], pa.bool_())) for rows in found]
        rows = pa.concat_tables([_QUARANTINE.empty_table(), *(_rows(each, log_epoch, now_ms) for each in news)])
        if not rows.num_rows and not gone:
            return
        if gone:
            kept = seen.rows().select(_QUARANTINE.names).cast(_QUARANTINE)
            of_epoch = [epoch == log_epoch for epoch in kept["log_epoch"].to_pylist()]
            stays = [not (same and place in gone) for same, place in zip(of_epoch, _listed(kept), strict=True)]
            rows = pa.concat_tables([kept.filter(pa.array(stays, pa.bool_())), rows])
        folder.commit(
            add=[folder.write_file(rows)] if rows.num_rows else [],
            remove=seen.files() if gone else [],
            seen=seen,
            advance={APPLICATION: seen.transaction(APPLICATION) + 1},
        )

    if found or (replayed_to and store.table(QUARANTINE.name).snapshot().files()):
        with_retries(note, "a change of the quarantine", settings)


def note_topics(store: Store, names: Collection[tuple[str, str]]) -> None:
    """Append pairs of topic id and name that are not known yet; of two names of one id the lesser counts (R35)."""
    if not names:
        return
    folder = store.table(TOPICS.name)
    seen = folder.snapshot()
    known = set(
        zip(
            *(column.to_pylist() for column in seen.query("SELECT topic_id, topic FROM topics").read_all().columns),
            strict=True,
        )
    )
    news = sorted(set(names) - known)
    if news:
        rows = pa.table(list(map(pa.array, zip(*news, strict=True))), schema=TOPICS.arrow_schema())
        folder.commit(add=[folder.write_file(rows)], seen=seen)


_QUARANTINE = QUARANTINE.arrow_schema()


def _rows(found: pa.Table, log_epoch: int, now_ms: int) -> pa.Table:
    """The records as rows of the table."""
    constants = {"log_epoch": log_epoch, "quarantined_at": now_ms * 1000}
    columns = [
        found[each.name].cast(each.type)
        if each.name in found.column_names
        else pa.array([constants.get(each.name)] * found.num_rows, each.type)
        for each in _QUARANTINE
    ]
    return pa.Table.from_arrays(columns, schema=_QUARANTINE)


def _listed(rows: pa.Table) -> list[tuple[int, int]]:
    return list(zip(*(rows[name].to_pylist() for name in _PLACE), strict=True))


def _places(rows: pa.Table) -> set[tuple[int, int]]:
    return set(_listed(rows))
