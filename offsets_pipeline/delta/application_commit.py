"""The last commit of an application to a table, found by the transaction (Delta's action `txn`) that it made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.delta.damage import reading
from offsets_pipeline.delta.protocol import parsed

if TYPE_CHECKING:
    from offsets_pipeline.delta.snapshot import Snapshot
    from offsets_pipeline.delta.table_folder import TableFolder

_TRANSACTION = b'"txn"'


def user_metadata_of(folder: TableFolder, seen: Snapshot, application: str) -> str | None:
    """Return the user metadata of the commit that made the application's last transaction, as of a snapshot.

    Reads the commits backwards from the snapshot: those of other writers come first. Returns None if the application
    made no transaction, its commit is no longer kept, or it has no user metadata. Raises DamagedTable, StorageFailed.
    """
    number = seen.transaction(application)
    if number < 0:
        return None
    for version in range(seen.version, -1, -1):
        with reading(folder.folder):
            text = folder.commit_file(version)
            if text is None:
                return None
            actions = parsed(text) if _TRANSACTION in text else []
        made = {"appId": application, "version": number}
        if any(made.items() <= action["txn"].items() for action in actions if "txn" in action):
            infos = (action["commitInfo"] for action in actions if "commitInfo" in action)
            return next((info.get("userMetadata") for info in infos), None)
    return None
