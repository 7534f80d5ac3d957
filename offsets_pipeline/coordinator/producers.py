"""The producers in the log: their epochs, and the log partitions of their open transactions (R11)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from offsets_pipeline.semantics.log_row import ABORT, COMMIT

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

#: The columns that `Producers.replay` reads.
COLUMNS = ("log_partition", "record_offset", "record_timestamp", "producer_id", "producer_epoch", "control_type")

NO_EPOCH = -1


@dataclass
class Producer:
    """A producer id: its highest epoch, and the start of its open transaction in ms, by log partition.

    ``markers`` has the record offset of its last marker, by log partition, and ``last_end`` epoch and type of the last
    one that was read.
    """

    epoch: int = NO_EPOCH
    open_since_ms: dict[int, int] = field(default_factory=dict)
    markers: dict[int, int] = field(default_factory=dict)
    last_end: tuple[int, str] | None = None

    def has_ended_since(self, markers: Mapping[int, int]) -> bool:
        """Return whether the log has a later marker of the producer than these."""
        return any(offset > markers.get(log_partition, -1) for log_partition, offset in self.markers.items())


class Producers:
    """All producers of the log. Covers unloaded log partitions too, because a transaction may span them."""

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}

    def get(self, producer_id: int) -> Producer:
        """Return a producer; for an unknown id one without an epoch or a transaction."""
        return self._producers.get(producer_id, Producer())

    def open_since_ms(self) -> dict[int, int]:
        """Return the start of each open transaction in ms, by producer id."""
        return {
            producer_id: min(producer.open_since_ms.values())
            for producer_id, producer in self._producers.items()
            if producer.open_since_ms
        }

    def replay(self, rows: pa.Table) -> None:
        """Apply rows with COLUMNS. The rows of a log partition come in the order of their record offsets."""
        if rows["producer_id"].null_count == rows.num_rows:
            return
        rows = rows.filter(rows["producer_id"].is_valid())
        timestamps = rows["record_timestamp"].cast("int64").to_pylist()
        columns = (rows[name].to_pylist() for name in COLUMNS if name != "record_timestamp")
        for timestamp, log_partition, offset, producer_id, epoch, control_type in zip(
            timestamps, *columns, strict=True
        ):
            producer = self._producers.setdefault(producer_id, Producer())
            producer.epoch = max(producer.epoch, NO_EPOCH if epoch is None else epoch)
            if control_type is None:
                producer.open_since_ms.setdefault(log_partition, 0 if timestamp is None else timestamp // 1000)
            elif control_type in (COMMIT, ABORT):
                producer.open_since_ms.pop(log_partition, None)  # R11: a marker of any epoch
                producer.markers[log_partition] = offset
                producer.last_end = NO_EPOCH if epoch is None else epoch, control_type
