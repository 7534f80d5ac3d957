"""Position of a Structured Streaming query in the table `log`, from the query's checkpoint."""

from __future__ import annotations

import json
from typing import Any

from offsets_pipeline.delta.filesystems import arrow_folder, children, read_text
from offsets_pipeline.delta.storage import storage_of
from offsets_pipeline.errors import DamagedCheckpoint

_VERSION = "reservoirVersion"  # in the offsets of Delta's source
_ALL_OF_IT = {"index": -1, "isStartingVersion": False}  # of the version: no file of it has been read


class StreamCheckpoint:
    """The checkpoint of a query over the log, as it is now.

    Spark writes the file `offsets/N` when it plans batch N, and `commits/N` when the batch has ended. ``folder`` is the
    checkpoint's, as Spark names it.

    Raises DamagedCheckpoint if a file that the query needs is empty or cut off, OSError if the storage fails.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._ended, self._planned = (self._batches(name) for name in ("commits", "offsets"))
        if "metadata" in children(arrow_folder(folder)):
            self._text("metadata")
        for name, batches in (("commits", self._ended), ("offsets", self._planned)):
            if batches:
                self._text(f"{name}/{batches[-1]}")

    def unread_version(self) -> int | None:
        """The version of the log that the query reads next; None if this is not a checkpoint of a query over the log.

        This is the version of its last completed batch, or else of the first planned one.
        """
        if not self._planned:
            return None
        text = self._text(f"offsets/{max(self._ended or self._planned[:1])}")
        return min((each[_VERSION] for each in map(_offset, text.splitlines()) if each), default=None)

    def advance(self, version: int) -> bool:
        """Let the query continue at a version of the log, as if a batch had read all versions before it.

        The state must have these versions' records. Returns False, and changes nothing that matters, if no batch has
        ended yet, another process uses the checkpoint, or Spark wrote it in another format.
        """
        if not self._ended:
            return False
        offsets, commit = (self._text(f"{each}/{self._ended[-1]}") for each in ("offsets", "commits"))
        lines = [_moved(line, version) for line in offsets.splitlines()]
        if lines == offsets.splitlines() or not offsets.startswith("v1\n"):
            return False
        number = max(self._planned) + 1
        storage = storage_of(arrow_folder(self._folder))
        files = [(f"commits/{at}", commit) for at in self._planned if at > self._ended[-1]]
        files += [(f"offsets/{number}", "\n".join(lines)), (f"commits/{number}", commit)]
        # not `put_if_absent`: another process that has the name may have written the same text
        return all(storage.create(name, text.encode(), durable=True) for name, text in files)

    def _text(self, name: str) -> str:
        """The text of a file. Spark gives a file its name once it is complete, so a crash of the machine cut it off."""
        text = read_text(f"{self._folder}/{name}")
        try:
            if not text.strip():
                raise ValueError  # noqa: TRY301 - it is as incomplete as one that does not parse
            for line in text.splitlines():
                if line.startswith("{"):
                    json.loads(line)
        except ValueError:
            raise DamagedCheckpoint(
                f"the file {name} of the checkpoint {self._folder} is empty or cut off; if a fold wrote it, delete the "
                "folder of the checkpoint: the next fold reads the log once more, and nothing is lost"
            ) from None
        return text

    def _batches(self, name: str) -> list[int]:
        return sorted(int(each) for each in children(arrow_folder(f"{self._folder}/{name}")) if each.isdigit())


def _offset(line: str) -> dict[str, Any] | None:
    """The offset of Delta's source in a line of a file of offsets; None if the line has none."""
    found = json.loads(line) if line.startswith("{") else {}
    return found if _VERSION in found else None


def _moved(line: str, version: int) -> str:
    found = _offset(line)
    if found is None:
        return line
    # in Spark's notation: it runs another batch if the text differs from that of the source's newest offset
    return json.dumps(found | {_VERSION: version} | _ALL_OF_IT, separators=(",", ":"))
