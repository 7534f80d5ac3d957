"""The properties of a store, as properties of its log's table. Free of Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsets_pipeline.errors import NotAStore
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics

if TYPE_CHECKING:
    from collections.abc import Mapping

MIRRORED = "mirrored"
OWNED = "owned"
FORMAT_VERSION = "3"

_PROPERTY = "offsets."
_UNKNOWN = ""  # a table property cannot be null
#: The property of the log's table that says which of several who created a store at once did.
CREATION = f"{_PROPERTY}creation"


@dataclass(frozen=True)
class StoreProperties:
    """What is fixed when a store is created (R1, R4), and its coordinator semantics.

    ``offsets_partitions`` is the number of log partitions, R1's n. ``cluster_id``, ``topic_id`` and
    ``topic_name`` say which topic a mirrored log belongs to, and are None where the source did not tell.
    ``coordinator_semantics`` says by which coordinator the next state is replayed; the state that is there says itself
    by which it was (`FoldProgress`).
    """

    kind: str
    offsets_partitions: int
    cluster_id: str | None = None
    topic_id: str | None = None
    topic_name: str | None = None
    coordinator_semantics: CoordinatorSemantics = MODERN

    def as_table_properties(self) -> dict[str, str]:
        """The properties of the log table that hold these."""
        return {
            f"{_PROPERTY}format.version": FORMAT_VERSION,
            f"{_PROPERTY}kind": self.kind,
            f"{_PROPERTY}topic.num.partitions": str(self.offsets_partitions),
            f"{_PROPERTY}cluster.id": self.cluster_id or _UNKNOWN,
            f"{_PROPERTY}topic.id": self.topic_id or _UNKNOWN,
            f"{_PROPERTY}topic.name": self.topic_name or _UNKNOWN,
            f"{_PROPERTY}coordinator.semantics": self.coordinator_semantics.value,
        }

    @classmethod
    def from_table_properties(cls, properties: Mapping[str, str], location: str) -> StoreProperties:
        """Read them back. Raises NotAStore where the table is no log of this program, or of a newer format."""
        version = properties.get(f"{_PROPERTY}format.version")
        if version is None:
            raise NotAStore(f"{location} holds a table named log that is no offsets log: name another folder")
        if version != FORMAT_VERSION:
            raise NotAStore(
                f"{location} has store format {version}, this program reads {FORMAT_VERSION}: "
                "use the version of the program that wrote it"
            )
        return cls(
            kind=properties[f"{_PROPERTY}kind"],
            offsets_partitions=int(properties[f"{_PROPERTY}topic.num.partitions"]),
            cluster_id=properties[f"{_PROPERTY}cluster.id"] or None,
            topic_id=properties[f"{_PROPERTY}topic.id"] or None,
            topic_name=properties.get(f"{_PROPERTY}topic.name") or None,  # older stores do not say
            coordinator_semantics=CoordinatorSemantics(properties[f"{_PROPERTY}coordinator.semantics"]),
        )
