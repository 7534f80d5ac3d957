"""The registry of coordinators: a file in the store's folder for each, with the log partitions that it has loaded.

The files are not locks. Any number of processes may load the same log partition, because each append is a
compare-and-swap. An outdated file can only make `find_coordinator` answer wrongly.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from pyarrow import fs

from offsets_pipeline.store.delta.filesystems import open_path
from offsets_pipeline.store.lease import is_running

FOLDER = "_coordinators"
#: A coordinator rewrites its file every RENEW_MS. Readers ignore a file after BELIEVED_MS, or if its process ended.
RENEW_MS = 10_000
BELIEVED_MS = 60_000
#: The next coordinator deletes a file of an ended process, and any file after FORGOTTEN_MS.
FORGOTTEN_MS = 3_600_000


@dataclass(frozen=True)
class Instance:
    """A coordinator: its host, its process id and a unique name."""

    host: str
    pid: int
    name: str

    @classmethod
    def here(cls) -> Instance:
        """Return a new instance in this process."""
        return cls(socket.gethostname(), os.getpid(), uuid.uuid4().hex[:12])

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.name}"


@dataclass(frozen=True)
class _Note:
    """The contents of a registry file: the instance's loaded log partitions, and the time of writing (ms)."""

    instance: Instance
    partitions: frozenset[int]
    at_ms: int

    def has_ended(self) -> bool:
        """Whether the instance was a process of this host that has ended."""
        return self.instance.host == socket.gethostname() and not is_running(self.instance.pid)


class Registry:
    """The registry files of one store. An instance writes its own file and reads all files.

    It keeps no file system of Arrow's, which would keep Python from its end (store/delta/filesystems.py).
    """

    def __init__(self, store_folder: str, instance: Instance) -> None:
        self._instance = instance
        self._folder = f"{store_folder}/{FOLDER}"

    def note(self, partitions: Collection[int], now_ms: int) -> None:
        """Write this instance's file, with the log partitions that are loaded here. Not thread-safe. Raises OSError."""
        note = {
            "host": self._instance.host,
            "pid": self._instance.pid,
            "partitions": sorted(partitions),
            "at_ms": now_ms,
        }
        system, folder = open_path(self._folder)
        system.create_dir(folder, recursive=False)  # does not create a deleted store again
        path = self._own(folder)
        aside = f"{path}.tmp"
        try:
            with system.open_output_stream(aside) as file:
                file.write(json.dumps(note).encode())
            system.move(aside, path)
        except OSError:
            with suppress(OSError):
                system.delete_file(aside)
            raise

    def remove(self) -> None:
        """Delete this instance's file. If the storage refuses, the file expires."""
        system, folder = open_path(self._folder)
        with suppress(OSError):
            system.delete_file(self._own(folder))

    def remove_outdated(self, now_ms: int) -> None:
        """Delete files of ended processes of this host, and files older than FORGOTTEN_MS. Raises OSError."""
        system, folder = open_path(self._folder)
        for info in system.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
            if not info.base_name.endswith((".json", ".json.tmp")):
                continue
            with suppress(OSError):  # another process deletes it, too, or may write it
                note = _read(system, info)
                at_ms = note.at_ms if note else (info.mtime_ns or now_ms * 1_000_000) // 1_000_000
                if now_ms - at_ms > FORGOTTEN_MS or (note and note.has_ended()):
                    system.delete_file(info.path)

    def instances_with(self, log_partition: int, now_ms: int) -> list[Instance]:
        """Return the instances whose files say that they have a log partition loaded."""
        found = []
        system, folder = open_path(self._folder)
        for info in system.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
            if info.extension != "json":
                continue
            try:
                note = _read(system, info)
            except FileNotFoundError:
                continue  # its instance deleted it meanwhile
            if note is None or note.has_ended() or now_ms - note.at_ms > BELIEVED_MS:
                continue
            if log_partition in note.partitions:
                found.append(note.instance)
        return sorted(found, key=str)

    def _own(self, folder: str) -> str:
        return f"{folder}/{self._instance.name}.json"


def _read(system: fs.FileSystem, info: fs.FileInfo) -> _Note | None:
    """Return a file's contents; None for a file of another program, or an incomplete one. Raises OSError."""
    with system.open_input_file(info.path) as file:
        text = file.read()
    try:
        note = json.loads(text)
        instance = Instance(note["host"], int(note["pid"]), info.base_name.removesuffix(".json"))
        return _Note(instance, frozenset(note["partitions"]), int(note["at_ms"]))
    except (ValueError, KeyError, TypeError):
        return None
