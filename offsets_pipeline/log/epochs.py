"""Epochs of a mirrored log, and which of them counts.

`follow` reads a topic again from its start, as a new epoch of the log, if the topic was recreated or was not read for
too long. The table `log` then holds rows of both epochs. The old epoch counts until the new one is complete. Then one
commit writes rows of the new epoch to `log_partitions`, and the new epoch counts (docs/adr/0014).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.delta.schemas import LOG_EPOCH, LOG_PARTITIONS

if TYPE_CHECKING:
    from offsets_pipeline.store import Store


def counting_epoch(store: Store) -> int:
    """The newest complete epoch of the log."""
    found = store.table(LOG_PARTITIONS.name).snapshot().query("SELECT max(log_epoch) AS epoch FROM log_partitions")
    epoch = found.read_all()["epoch"][0].as_py()
    return LOG_EPOCH if epoch is None else int(epoch)
