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
from offsets_pipeline.state.by_topic_kind import replay_start, writer
from offsets_pipeline.state.changes import Changes, StateFolders
from offsets_pipeline.state.fold_progress import UNSTORED_INCARNATION, progressed
from offsets_pipeline.state.known import KnownGroups, names_of_known
from offsets_pipeline.state.merge_on_read import state_tables_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from offsets_pipeline.delta.properties import StoreProperties
    from offsets_pipeline.delta.snapshot import Snapshot
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
    from offsets_pipeline.state.fold_progress import PartitionProgress
    from offsets_pipeline.state.unfolded import UnfoldedLog

#: Ends the names of the temporary tables.
SUFFIX = "_unfolded"


class TemporaryFolder:
    """A folder that exists as long as this object, or the program."""

    def __init__(self) -> None:
        self.name = tempfile.mkdtemp(prefix="offsets-")
        weakref.finalize(self, shutil.rmtree, self.name, ignore_errors=True)


@dataclass(frozen=True)
class FoldedRest:
    """Result of a fold of the rest of the log.

    ``tables`` has the rows by state table, in ``folder``. ``progress`` is that of the log partitions that were folded,
    ``records`` the number of their records. ``topics`` has the names of topic ids that these tell (R35).
    """

    folder: TemporaryFolder
    tables: Mapping[str, Snapshot]
    progress: Mapping[int, PartitionProgress]
    topics: Mapping[str, str]
    records: int


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
        each.name: TableFolder(f"{folder.name}/{each.name}", replace(each.table, name=each.name + SUFFIX))
        for each in state_tables_of(properties.topic_kind)
    }
    changes = Changes()
    for from_start in (False, True):
        part = {at: each for at, each in start.items() if (each.incarnation == UNSTORED_INCARNATION) is from_start}
        if not part:
            continue
        incarnations = {at: each.incarnation for at, each in part.items()}
        names = [] if from_start else names_of_known(properties.topic_kind, semantics)
        known = KnownGroups.of(map(table, names), incarnations)
        folders = StateFolders(tables, log.offsets_partitions, semantics, incarnations, known)
        replay = replay_start(properties, log.offsets_partitions, semantics, part)
        reader = LogReader(log.folder, log.range(part), replay.schema, replay.compact)
        changes.add(writer(properties, folders)(replay.replay(reader.read(log.files(part)))))
    for name, each in tables.items():
        each.create()
        each.commit(add=changes.files[name], seen=each.snapshot(), durable=False)
    topics: dict[str, str] = {}
    for topic_id, name in changes.topics:
        topics[topic_id] = min(name, topics.get(topic_id, name))
    return FoldedRest(
        folder,
        {name: each.snapshot() for name, each in tables.items()},
        progressed(start, changes.partitions, 0),
        topics,
        changes.records,
    )
