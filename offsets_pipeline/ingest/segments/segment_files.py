"""Finds the segment files of one topic: in files, folders, or a broker's data folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from pyarrow import fs

from offsets_pipeline.common.input_text import validated_topic
from offsets_pipeline.errors import NoSegments, NoSuchPath, StoreMismatch
from offsets_pipeline.store.delta.filesystems import absolute_path, open_path
from offsets_pipeline.store.delta.s3_errors import storage_failed

OFFSETS_TOPIC = "__consumer_offsets"

# A broker renames folders before it deletes or moves them (`<partition>.<uuid>-delete`, `-future`, `-stray`), and files
# before it deletes or replaces them (`.deleted`, `.cleaned`). These patterns match none of those names.
_TOPIC_FOLDER = re.compile(r"(.+)-\d+")
_SEGMENT_FILE = re.compile(r"(\d{20})\.log")
# Of a broker that stopped, or was copied, while it replaced segments by a compacted one. It renames the file to `.log`.
_REPLACEMENT = ".swap"
_PARTITION_METADATA = "partition.metadata"


@dataclass(frozen=True)
class LogFolder:
    """One copy of one log partition: its segment files, in the order of their base offsets."""

    log_partition: int
    files: tuple[str, ...]
    start_offset: int = 0


@dataclass
class FoundLog:
    """The segment files below the given paths. ``folders`` may hold several copies of one log partition."""

    folders: list[LogFolder] = field(default_factory=list)
    cluster_id: str | None = None
    topic_id: str | None = None
    topic_names: dict[str, str] = field(default_factory=dict)

    def partitions(self) -> set[int]:
        """The numbers of the log partitions in `folders`."""
        return {folder.log_partition for folder in self.folders}

    def copies(self) -> list[list[LogFolder]]:
        """The folders in groups; no group holds two copies of one log partition."""
        rounds: list[list[LogFolder]] = []
        for folder in sorted(self.folders, key=lambda each: (each.log_partition, each.files[0])):
            for each in rounds:
                if all(folder.log_partition != other.log_partition for other in each):
                    each.append(folder)
                    break
            else:
                rounds.append([folder])
        return rounds


def find_log(paths: Iterable[str], topic: str = OFFSETS_TOPIC) -> FoundLog:
    """Find every segment file of the topic below these paths.

    Raises:
        InvalidTopic: Kafka does not allow the topic's name.
        NoSuchPath: a path does not exist.
        NoSegments: a path holds no segment of the log.
        StorageFailed: the storage of a path cannot be read.
        StoreMismatch: the paths belong to different clusters or topics.
    """
    found = FoundLog()
    for path in paths:
        before = len(found.folders)
        files, inner = open_path(absolute_path(path))
        try:
            info = files.get_file_info(inner)
            if info.type == fs.FileType.NotFound:
                raise NoSuchPath(f"no such file or folder: {path}")
            finder = _Finder(found, files, path, topic)
            if info.type == fs.FileType.File:
                finder.add_file(info)
            else:
                finder.walk(info.path, {})
        except OSError as error:
            raise storage_failed(f"cannot read {path}", path, error, "check your permissions") from error
        if info.type != fs.FileType.File and len(found.folders) == before:  # a second file of a folder adds none
            raise NoSegments(
                f"no segments of {topic} in {path}; name segment files, folders {topic}-<number>, "
                "or a broker's data folder"
            )
    return found


class _Finder:
    def __init__(self, found: FoundLog, files: fs.FileSystem, path: str, topic: str) -> None:
        self._found = found
        self._files = files
        self._path = path
        self._topic = topic
        self._walked: set[str] = set()  # links may lead back
        self._log_folder = re.compile(rf"{re.escape(validated_topic(topic))}-(\d{{1,9}})")

    def add_file(self, info: fs.FileInfo) -> None:
        parent = info.path.rpartition("/")[0]
        folder = self._log_folder.fullmatch(parent.rpartition("/")[2])
        if folder is None or _SEGMENT_FILE.fullmatch(info.base_name) is None:
            raise NoSegments(
                f"{self._path} is not a segment file: name a file <20 digits>.log in a folder "
                f"{self._topic}-<number>; the number is its log partition"
            )
        partition, name = int(folder[1]), self._name(info.path)
        for index, other in enumerate(self._found.folders):  # files of one folder make one LogFolder
            if other.log_partition == partition and other.files[0].rpartition("/")[0] == name.rpartition("/")[0]:
                files = tuple(sorted({*other.files, name}))
                self._found.folders[index] = LogFolder(partition, files, other.start_offset)
                self._found.folders.append(self._found.folders.pop(index))
                return
        self._found.folders.append(LogFolder(partition, (name,)))

    def walk(self, path: str, starts: dict[int, int]) -> None:
        """Search a folder once. ``starts``: by log partition, the log start offsets in the folder around it."""
        real = path if "://" in self._path else os.path.realpath(path)
        if real in self._walked:
            return
        self._walked.add(real)
        children = self._files.get_file_info(fs.FileSelector(path))
        folder = self._log_folder.fullmatch(path.rpartition("/")[2])
        if folder is not None:
            self._add_folder(int(folder[1]), children, starts.get(int(folder[1]), 0))
            return
        # meta.properties               cluster.id=<id>
        cluster = re.search(r"^cluster\.id=(\S+)$", self._text(children, "meta.properties"), re.MULTILINE)
        if cluster is not None:
            self._found.cluster_id = self._agreed("cluster", self._found.cluster_id, cluster[1])
        # log-start-offset-checkpoint   0 \n <number of lines> \n <topic> <partition> <offset> ...
        line = rf"^{re.escape(self._topic)} (\d{{1,9}}) (\d{{1,18}})$"
        lines = re.findall(line, self._text(children, "log-start-offset-checkpoint"), re.MULTILINE)
        starts = {int(partition): int(offset) for partition, offset in lines}
        for child in sorted(children, key=lambda each: str(each.path)):
            topic = _TOPIC_FOLDER.fullmatch(child.base_name)
            if child.type != fs.FileType.Directory:
                continue
            if topic is None or self._log_folder.fullmatch(child.base_name):
                self.walk(child.path, starts)
            else:
                self._look_into(child.path, topic[1])

    def _look_into(self, path: str, topic: str) -> None:
        """Note the topic of a partition's folder. Search a folder that is only named like one."""
        inside = self._files.get_file_info(fs.FileSelector(path))
        topic_id = self._topic_id(inside)
        if topic_id is not None:
            self._found.topic_names[topic_id] = topic  # R35
        if not any(_SEGMENT_FILE.fullmatch(each.base_name) or each.base_name == _PARTITION_METADATA for each in inside):
            self.walk(path, {})

    def _add_folder(self, partition: int, children: list[fs.FileInfo], start_offset: int) -> None:
        paths = {child.path for child in children if child.type == fs.FileType.File}
        files = sorted(
            path
            for path in paths
            if _SEGMENT_FILE.fullmatch(path.rpartition("/")[2].removesuffix(_REPLACEMENT))
            and (not path.endswith(_REPLACEMENT) or path.removesuffix(_REPLACEMENT) not in paths)
        )
        if files:
            self._found.folders.append(LogFolder(partition, tuple(self._name(file) for file in files), start_offset))
        self._found.topic_id = self._agreed("topic", self._found.topic_id, self._topic_id(children))

    def _name(self, path: str) -> str:
        """The file's path with the URI scheme of the given path, as `open_path` takes it."""
        return path if "://" not in self._path else f"{self._path.partition('://')[0]}://{path}"

    def _text(self, children: list[fs.FileInfo], name: str) -> str:
        """The text of the file with this name among these; empty if there is none."""
        for child in children:
            if child.base_name == name and child.type == fs.FileType.File:
                with self._files.open_input_file(child.path) as file:
                    return str(file.read().decode("utf-8", "replace"))
        return ""

    # partition.metadata        version: 0 \n topic_id: <id>
    def _topic_id(self, children: list[fs.FileInfo]) -> str | None:
        found = re.search(r"^topic_id: *(\S+)$", self._text(children, _PARTITION_METADATA), re.MULTILINE)
        return found[1] if found else None

    def _agreed(self, what: str, known: str | None, found: str | None) -> str | None:
        if known is not None and found is not None and known != found:
            raise StoreMismatch(
                f"{self._path} belongs to {what} {found}, the earlier paths to {known}; ingest the files of one log"
            )
        return found if known is None else known
