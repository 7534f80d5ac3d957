"""A store as of one version of each table: its properties, the incarnations of its log, its semantics. No Spark.

`follow` reads a topic again from its start, as a new incarnation of the log, if the topic was recreated or was not
read for too long. The table `log` then holds rows of both incarnations. The old one counts until the new one is
complete. Then one commit writes the rows of the new one to `log_partitions`, and the new one counts (docs/adr/0014).

The incarnation of the state (column ``incarnation`` of the state tables) is another number: each reload raises it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from offsets_pipeline.common.clock import Clock, SystemClock
from offsets_pipeline.errors import NoSuchTable
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from offsets_pipeline.store.delta.filesystems import arrow_folder
from offsets_pipeline.store.delta.properties import IN_SCHEMA, StoreProperties
from offsets_pipeline.store.delta.schemas import (
    FOLD_PROGRESS,
    LOG,
    LOG_INCARNATION,
    LOG_PARTITIONS,
    TABLE_BY_NAME,
    catalog_name,
)
from offsets_pipeline.store.delta.store_folder import no_store
from offsets_pipeline.store.delta.table_folder import TableFolder

if TYPE_CHECKING:
    from offsets_pipeline.store.delta.snapshot import Snapshot


@dataclass(frozen=True)
class LogIncarnation:
    """One incarnation of the log.

    ``offsets_partitions``: the number of log partitions, R1's n; a topic may have got more since the one before. By log
    partition: ``starts`` and ``ends``, the known log start and log end offsets; ``cleaned_to``, the record offset
    before which a cleaning removed records; ``complete_since_us``, the time in microseconds since which `follow` missed
    no record.
    """

    number: int
    offsets_partitions: int
    starts: Mapping[int, int] = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)
    cleaned_to: Mapping[int, int] = field(default_factory=dict)
    complete_since_us: Mapping[int, int] = field(default_factory=dict)

    @property
    def is_followed(self) -> bool:
        """Whether `follow` read it from a live topic."""
        return bool(self.complete_since_us)


def log_incarnations(notes: pa.Table, properties: StoreProperties) -> list[LogIncarnation]:
    """Return the complete incarnations of the log, in order; ``notes`` are the rows of `log_partitions`.

    A log without notes has the first incarnation.
    """
    # as lists of numbers: Arrow imports pandas for times, scalars and arrays of numpy
    names = ("log_incarnation", "log_partition", "start_offset", "end_offset", "cleaned_to", "complete_since")
    rows = list(zip(*(notes[name].cast(pa.int64()).to_pylist() for name in names), strict=True))
    found = []
    for number in sorted({row[0] for row in rows} | {LOG_INCARNATION}):
        of_one = [row[1:] for row in rows if row[0] == number]
        starts, ends, cleaned_to, complete_since_us = (
            {row[0]: row[column] for row in of_one if row[column] is not None} for column in range(1, 5)
        )
        count = len(complete_since_us) or properties.offsets_partitions
        found.append(LogIncarnation(number, count, starts, ends, cleaned_to, complete_since_us))
    return found


class StoreSnapshot:
    """The store in one folder, as of one version of each table: that of its first read. Open another for newer ones.

    Takes a folder, or another snapshot whose versions it keeps. ``location``: the store's folder. ``opened_ms``: when
    the log was opened, in milliseconds since 1970. ``folder_of`` returns a table's folder, for its newest version.
    ``versions`` has the tables that were read.

    Raises NoSuchStore if the folder is missing, NotAStore if it holds something else or a store of another format.
    Raises DamagedTable if the log is damaged, UnsupportedTable if it has a feature that this program does not support.
    """

    location: str
    opened_ms: int
    properties: StoreProperties
    folder_of: Callable[[str], TableFolder]
    versions: dict[str, Snapshot]

    def __init__(self, store: str | StoreSnapshot, clock: Clock = SystemClock()) -> None:  # noqa: B008 - immutable
        if isinstance(store, StoreSnapshot):
            self.location, self.opened_ms, self.properties = store.location, store.opened_ms, store.properties
            self.folder_of, self.versions = store.folder_of, dict(store.versions)
            return
        self.location, self.opened_ms = store.rstrip("/"), clock.now_ms()
        self.folder_of, self.versions = _table_folders(self.location, in_schema=False), {}
        self._pin_log()
        properties = self.table(LOG.name).properties
        if IN_SCHEMA in properties:  # the tables that were read have the same name in both
            self.folder_of = _table_folders(self.location, in_schema=True)
        self.properties = StoreProperties.from_table_properties(properties, self.location)

    @property
    def cluster(self) -> str:
        """The name of the store's cluster: by default the name of its folder."""
        return self.properties.cluster(self.location)

    @property
    def notes(self) -> pa.Table:
        """The rows of `log_partitions`; none in a store without this table."""
        seen = self.versions.get(LOG_PARTITIONS.name)
        return LOG_PARTITIONS.arrow_schema().empty_table() if seen is None else seen.rows()

    @cached_property
    def incarnations(self) -> list[LogIncarnation]:
        """The complete incarnations of the log, in order."""
        return log_incarnations(self.notes, self.properties)

    @property
    def current_log(self) -> LogIncarnation:
        """The newest complete incarnation of the log, which may not be folded yet."""
        return self.incarnations[-1]

    @property
    def offsets_partitions(self) -> int:
        """The number of log partitions of the state, R1's n; without a state, that of the store."""
        return len(self._semantics_of_state) or self.properties.offsets_partitions

    @property
    def coordinator_semantics(self) -> CoordinatorSemantics:
        """The coordinator semantics of the state; before the first fold, those of the store."""
        found = next(iter(self._semantics_of_state), None)
        return self.properties.coordinator_semantics if found is None else CoordinatorSemantics(found)

    def table(self, name: str) -> Snapshot:
        """Return one table, as of the version of its first read."""
        if name not in self.versions:
            self.versions[name] = self.folder_of(name).snapshot()
        return self.versions[name]

    @property
    def _semantics_of_state(self) -> list[str]:
        """The coordinator semantics of each log partition that is folded."""
        try:
            progress = self.table(FOLD_PROGRESS.name)
        except NoSuchTable:
            return []
        found: list[str] = progress.rows()["coordinator_semantics"].to_pylist()
        return found

    def _pin_log(self) -> None:
        """Take the newest versions of `log_partitions` and `log`."""
        self.__dict__.pop("incarnations", None)
        # this one first: an ingest appends records before it notes their bounds
        with suppress(NoSuchTable):
            self.versions[LOG_PARTITIONS.name] = self.folder_of(LOG_PARTITIONS.name).snapshot()
        try:
            self.versions[LOG.name] = self.folder_of(LOG.name).snapshot()
        except NoSuchTable:
            raise no_store(arrow_folder(self.location)) from None


def _table_folders(location: str, *, in_schema: bool) -> Callable[[str], TableFolder]:
    """A function that returns the folder of a table, the same each time: a second read then reads only new commits."""
    folder = arrow_folder(location)

    @cache
    def folder_of(name: str) -> TableFolder:
        return TableFolder(f"{folder}/{catalog_name(name) if in_schema else name}", TABLE_BY_NAME[name])

    return folder_of
