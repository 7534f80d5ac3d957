"""Folds the rest of the log for one question, into state tables in a temporary folder.

Uses the replay and the writer of changes that the stream uses. The store stays as it is.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from offsets_pipeline.delta.table_folder import TableFolder
from offsets_pipeline.log.log_reader import LogReader
from offsets_pipeline.state.changes import StateFolders, write_changes
from offsets_pipeline.state.fold_progress import progressed
from offsets_pipeline.state.known import KnownGroups, names_of_known
from offsets_pipeline.state.merge_on_read import state_tables_of
from offsets_pipeline.state.replay_start import replay_start

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from offsets_pipeline.delta.properties import StoreProperties
    from offsets_pipeline.delta.snapshot import Snapshot
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
    from offsets_pipeline.state.fold_progress import PartitionProgress
    from offsets_pipeline.state.unfolded import UnfoldedLog


class TemporaryFolder:
    """A folder that exists as long as this object, or the program."""

    def __init__(self) -> None:
        self.name = tempfile.mkdtemp(prefix="offsets-")
        weakref.finalize(self, shutil.rmtree, self.name, ignore_errors=True)


@dataclass(frozen=True)
class FoldedRest:
    """Result of a fold of the rest of the log.

    ``tables`` has the rows by state table, in ``folder``. ``progress`` is that of the log partitions that were folded.
    ``topics`` has the names of topic ids that their records tell (R35).
    """

    folder: TemporaryFolder
    tables: Mapping[str, Snapshot]
    progress: Mapping[int, PartitionProgress]
    topics: Mapping[str, str]


def fold_rest(
    start: Mapping[int, PartitionProgress],
    log: UnfoldedLog,
    table: Callable[[str], Snapshot],
    properties: StoreProperties,
    semantics: CoordinatorSemantics,
) -> FoldedRest:
    """Fold the log from these starts.

    Goes on from the state in ``table``, except in log partitions whose incarnation is UNSTORED_INCARNATION: those start
    at the start of the log. Raises as `TableFolder.open_file`.
    """
    folder = TemporaryFolder()
    tables = {
        each.name: TableFolder(f"{folder.name}/{each.name}", replace(each.table, name=f"{each.name}_unfolded"))
        for each in state_tables_of(properties.topic_kind)
    }
    incarnations = {at: each.incarnation for at, each in start.items()}
    known = KnownGroups.of(map(table, names_of_known(properties.topic_kind, semantics)), incarnations)
    replay = replay_start(properties, log.offsets_partitions, semantics, start)
    reader = LogReader(log.folder, log.range(start), replay.schema, replay.compact)
    changes = write_changes(
        replay.replay(reader.read(log.files(start))),
        StateFolders(tables, log.offsets_partitions, semantics, incarnations, known),
    )
    for name, each in tables.items():
        each.create()
        each.commit(add=changes.files[name], seen=each.snapshot(), durable=False)
    snapshots = {name: each.snapshot() for name, each in tables.items()}
    topics = dict(sorted(changes.topics, reverse=True))  # of an id the first of its names
    return FoldedRest(folder, snapshots, progressed(start, changes.partitions, 0), topics)
