"""Conflicts between a commit and the commits of other writers before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsets_pipeline.errors import StoreReplaced, WriteConflict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsets_pipeline.delta.protocol import Action


@dataclass(frozen=True)
class Conflicts:
    """Parts of a commit to the table in ``folder`` that can conflict: application ids, removed files, metadata.

    Another writer's commit conflicts if it does the same, or changes metadata that this commit changes.
    """

    folder: str
    table_id: str
    applications: frozenset[str]
    removed: frozenset[str]
    changes_metadata: bool

    def check(self, actions: Sequence[Action]) -> None:
        """Raise WriteConflict or StoreReplaced if the commit of these actions is in the way."""
        for action in actions:
            if "txn" in action and action["txn"]["appId"] in self.applications:
                raise WriteConflict(f"another writer wrote to {self.folder}")
            if "remove" in action and action["remove"]["path"] in self.removed:
                raise WriteConflict(f"another writer replaced files of {self.folder}")
            if "metaData" in action:
                if action["metaData"]["id"] != self.table_id:
                    raise StoreReplaced(f"the table {self.folder} was created again while it was open; open it again")
                if self.changes_metadata:
                    raise WriteConflict(f"another writer changed the properties of {self.folder}")
