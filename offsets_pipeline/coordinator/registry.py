"""Which process has which log partitions loaded: notes in the store's folder, for whoever looks for a coordinator.

Notes, not locks: any number of processes may have a log partition loaded, the log keeps them apart. So a note that is
out of date costs nothing but a wrong answer to `find_coordinator`.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow import fs

from offsets_pipeline.delta.filesystems import open_path

if TYPE_CHECKING:
    from collections.abc import Collection

FOLDER = "_coordinators"
#: A note is renewed this often, and believed for so long; a process of this machine that is gone is never believed.
RENEW_MS = 10_000
BELIEVED_MS = 60_000


@dataclass(frozen=True)
class Instance:
    """A coordinator: the machine and the process that it runs in, and a name that no other has."""

    host: str
    pid: int
    name: str

    @classmethod
    def here(cls) -> Instance:
        """A new one in this process."""
        return cls(socket.gethostname(), os.getpid(), uuid.uuid4().hex[:12])

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.name}"


class Registry:
    """The notes of one store; one instance writes its own and reads all."""

    def __init__(self, store_folder: str, instance: Instance) -> None:
        self._instance = instance
        self._system, folder = open_path(store_folder)
        self._folder = f"{folder}/{FOLDER}"
        self._path = f"{self._folder}/{instance.name}.json"

    def note(self, partitions: Collection[int], now_ms: int) -> None:
        """Say which log partitions are loaded here."""
        note = {
            "host": self._instance.host,
            "pid": self._instance.pid,
            "partitions": sorted(partitions),
            "at_ms": now_ms,
        }
        self._system.create_dir(self._folder, recursive=False)  # a store that was deleted stays so
        aside = f"{self._path}.tmp"
        with self._system.open_output_stream(aside) as file:
            file.write(json.dumps(note).encode())
        self._system.move(aside, self._path)

    def remove(self) -> None:
        """Remove the note of this instance. On storage that refuses, the note expires."""
        with suppress(OSError):
            self._system.delete_file(self._path)

    def who_has(self, log_partition: int, now_ms: int) -> list[Instance]:
        """The instances that have a log partition loaded, as far as their notes tell."""
        found = []
        for info in self._system.get_file_info(fs.FileSelector(self._folder, allow_not_found=True)):
            if info.extension != "json":
                continue
            try:
                with self._system.open_input_file(info.path) as file:
                    note = json.loads(file.read())
            except FileNotFoundError:
                continue  # it is gone by now
            instance = Instance(note["host"], note["pid"], info.base_name.removesuffix(".json"))
            is_old = now_ms - note["at_ms"] > BELIEVED_MS
            if log_partition in note["partitions"] and not is_old and not _is_gone(instance):
                found.append(instance)
        return sorted(found, key=str)


def _is_gone(instance: Instance) -> bool:
    """Whether its process ended, as far as can be told: of another machine nothing can."""
    if instance.host != socket.gethostname() or not Path("/proc/self").exists():
        return False
    return not Path(f"/proc/{instance.pid}").exists()
