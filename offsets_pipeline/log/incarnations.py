"""Incarnations of a mirrored log, and which of them counts.

`follow` reads a topic again from its start, as a new incarnation of the log, if the topic was recreated or was not
read for too long. The table `log` then holds rows of both incarnations. The old one counts until the new one is
complete. Then one commit writes the rows of the new one to `log_partitions`, and the new one counts (docs/adr/0014).

The incarnation of the state (column ``incarnation`` of the state tables) is another number: each reload raises it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.delta.schemas import LOG_INCARNATION, LOG_PARTITIONS

if TYPE_CHECKING:
    from offsets_pipeline.store import Store


def current_log_incarnation(store: Store) -> int:
    """The newest complete incarnation of the log."""
    found = (
        store.table(LOG_PARTITIONS.name).snapshot().query("SELECT max(log_incarnation) AS newest FROM log_partitions")
    )
    newest = found.read_all()["newest"][0].as_py()
    return LOG_INCARNATION if newest is None else int(newest)
