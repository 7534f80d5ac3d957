"""The properties of a store, as properties of its log's table. Free of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from offsets_pipeline.common.input_text import validated_topic
from offsets_pipeline.errors import InvalidPartitionCount, InvalidTopic, NotAStore, StoreMismatch
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.retention import Retention
from offsets_pipeline.semantics.topic_kind import TopicKind

MIRRORED = "mirrored"
OWNED = "owned"
#: A store whose log has the changes between two looks at a cluster's groups, not the cluster's own log.
SNAPSHOT = "snapshot"
#: Start of a location that is a schema of Spark's catalog.
SCHEMA_PREFIX = "schema:"
FORMAT_VERSION = 6  # raise it with each change that older programs cannot read
#: The format of stores that `offsets upgrade` copies to FORMAT_VERSION.
UPGRADABLE_FORMAT = 5

#: More than any topic has. Readers and the coordinator hold something for each.
_MAX_PARTITIONS = 100_000

_PROPERTY = "offsets."
_FORMAT = f"{_PROPERTY}format.version"
_TOPIC = f"{_PROPERTY}topic.name"
_UNKNOWN = ""  # a table property cannot be null
#: Log table property with the process that created the store, if several tried at the same time.
CREATION = f"{_PROPERTY}creation"
#: Log table property of a store that is a schema: its tables, and so their folders, have the names of `catalog_name`.
IN_SCHEMA = f"{_PROPERTY}in.schema"
#: Log table property with the name of the store's cluster.
CLUSTER_NAME = f"{_PROPERTY}cluster.name"
_RETENTION = [f"{_PROPERTY}broker.{name}" for name in ("retention.ms", "retention.check.interval.ms", "read.at.ms")]


def beside(location: str) -> list[str]:
    """The locations of stores with the other topics of a Connect worker: its states, and its configurations."""
    separator = "_" if location.startswith(SCHEMA_PREFIX) else "-"
    return [f"{location}{separator}{name}" for name in ("status", "configs")]


def format_of(properties: Mapping[str, str], location: str) -> int:
    """Return the format of a store from the properties of its log table; raises NotAStore if it is no log."""
    version = properties.get(_FORMAT, "")
    if not version.isdecimal():
        raise NotAStore(
            f"cannot open store {location}: its table log is not a log of this program; name another folder"
        )
    return int(version)


def require_format(properties: Mapping[str, str], location: str) -> None:
    """Raise NotAStore unless these properties of a log table are of a store of this program's format."""
    version = format_of(properties, location)
    if version < UPGRADABLE_FORMAT:
        raise NotAStore(f"cannot open store {location}: {too_old(version)}")
    if version != FORMAT_VERSION:
        copy = f"copy it to the new format: offsets upgrade --store {location} --to NEW"
        raise NotAStore(
            f"cannot open store {location}: it has format {version}, this program reads {FORMAT_VERSION}; "
            f"{copy if version < FORMAT_VERSION else 'use a newer version of the program'}"
        )


def too_old(version: int) -> str:
    """Return what is wrong with a store of a format before UPGRADABLE_FORMAT, and what to do."""
    return (
        f"it has format {version}, which the last version 0.1.0 of the program can copy to format {UPGRADABLE_FORMAT}; "
        "run its `offsets upgrade` first, then that of this version"
    )


@dataclass(frozen=True)
class StoreProperties:
    """Properties fixed when a store is created (R1, R4).

    ``offsets_partitions`` is the number of log partitions, R1's n. ``cluster_id``, ``topic_id`` and ``topic_name``
    name the topic of a mirrored log; None if the source did not give them. ``topic_kind`` is the kind of that topic.
    ``cluster_name`` is a name that an operator gave the cluster. ``retention`` is what `follow` read from the brokers,
    None if they refused it. Both may change.
    """

    kind: str
    offsets_partitions: int
    cluster_id: str | None = None
    topic_id: str | None = None
    topic_name: str | None = None
    coordinator_semantics: CoordinatorSemantics = MODERN
    topic_kind: TopicKind = TopicKind.CONSUMER_OFFSETS
    cluster_name: str | None = field(default=None, compare=False)
    retention: Retention | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Raise InvalidTopic for a name that no topic has: exports name folders after it."""
        if self.topic_name is not None:
            validated_topic(self.topic_name)

    def require_partition_count(self) -> None:
        """Raise InvalidPartitionCount for a number of log partitions that no store has."""
        if not 1 <= self.offsets_partitions <= _MAX_PARTITIONS:
            raise InvalidPartitionCount(f"a log has 1 to {_MAX_PARTITIONS} partitions, not {self.offsets_partitions}")

    def as_table_properties(self) -> dict[str, str]:
        """Return the properties in the form in which the log table keeps them."""
        known = self.retention
        values = () if known is None else (known.retention_ms, known.check_interval_ms, known.read_at_ms)
        return {
            _FORMAT: str(FORMAT_VERSION),
            f"{_PROPERTY}kind": self.kind,
            f"{_PROPERTY}topic.num.partitions": str(self.offsets_partitions),
            f"{_PROPERTY}cluster.id": self.cluster_id or _UNKNOWN,
            f"{_PROPERTY}topic.id": self.topic_id or _UNKNOWN,
            _TOPIC: self.topic_name or _UNKNOWN,
            f"{_PROPERTY}coordinator.semantics": self.coordinator_semantics.value,
            f"{_PROPERTY}topic.kind": self.topic_kind.value,
            CLUSTER_NAME: self.cluster_name or _UNKNOWN,
            **{name: str(value) for name, value in zip(_RETENTION, values, strict=False)},
        }

    @classmethod
    def from_table_properties(cls, properties: Mapping[str, str], location: str) -> StoreProperties:
        """Read the properties of the log table.

        Raises NotAStore for another program's table, another format, or a name that no topic has.
        """
        require_format(properties, location)
        return cls.of_log(properties, location)

    @classmethod
    def of_log(cls, properties: Mapping[str, str], location: str) -> StoreProperties:
        """Read the properties of the log table, whose format is this program's or UPGRADABLE_FORMAT.

        Raises NotAStore for a name that no topic has.
        """
        try:
            return cls(
                kind=properties[f"{_PROPERTY}kind"],
                offsets_partitions=int(properties[f"{_PROPERTY}topic.num.partitions"]),
                cluster_id=properties[f"{_PROPERTY}cluster.id"] or None,
                topic_id=properties[f"{_PROPERTY}topic.id"] or None,
                topic_name=properties[_TOPIC] or None,
                coordinator_semantics=CoordinatorSemantics(properties[f"{_PROPERTY}coordinator.semantics"]),
                topic_kind=TopicKind(properties[f"{_PROPERTY}topic.kind"]),
                cluster_name=properties[CLUSTER_NAME] or None,
                retention=_retention(properties),
            )
        except InvalidTopic as error:
            raise NotAStore(
                f"cannot open store {location}: {error}; correct the property {_TOPIC} of its table log"
            ) from None

    def cluster(self, location: str) -> str:
        """Return the name of the cluster of the store at a location: by default the name of its folder or schema."""
        return self.cluster_name or location.rstrip("/").removeprefix(SCHEMA_PREFIX).rpartition("/")[2]

    def require_topic_kind(self, location: str, *kinds: TopicKind) -> None:
        """Raise StoreMismatch if the store's topic is of none of these kinds."""
        if self.topic_kind not in kinds:
            raise StoreMismatch(
                f"{location} holds a topic of the kind {self.topic_kind}, but this command needs "
                f"{' or '.join(kinds)}; name another store"
            )


def _retention(properties: Mapping[str, str]) -> Retention | None:
    if _RETENTION[0] not in properties:
        return None  # a store that `follow` did not write, or that an earlier version wrote
    retention_ms, check_interval_ms, read_at_ms = (int(properties[name]) for name in _RETENTION)
    return Retention(retention_ms, check_interval_ms, is_known=True, read_at_ms=read_at_ms)


def require_different_clusters(clusters: Mapping[str, str]) -> None:
    """Raise StoreMismatch if two stores have one cluster name; ``clusters`` are names by location."""
    by_name: dict[str, str] = {}
    for location, name in clusters.items():
        if name in by_name:
            raise StoreMismatch(
                f"{by_name[name]} and {location} both have the cluster name {name!r}; give one of them another name: "
                f"offsets name-cluster --store {location} NAME"
            )
        by_name[name] = location
