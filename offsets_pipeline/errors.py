"""Every error this package raises on purpose.

Each takes one message that says what is wrong, where, and what would be right; the command line prints it as
`offsets: error: <message>` and ends with status 1. Errors that a Kafka coordinator answers with carry Kafka's name.
"""

from __future__ import annotations

import re
from typing import ClassVar


class OffsetsError(Exception):
    """The root of this package's errors."""

    retriable: ClassVar[bool] = False
    """Whether the same call, made again unchanged, may succeed."""

    kafka_name: ClassVar[str | None] = None
    """Kafka's name for the error, where it has one (R24)."""


class ConfigError(OffsetsError):
    """A setting has a wrong name, type or value."""


class JavaMissing(OffsetsError):
    """Java is not installed, or is older than Spark needs."""


class NoSuchStore(OffsetsError):
    """There is nothing at the store's path."""


class NoSuchCheckpoint(OffsetsError):
    """There is no checkpoint of a stream at the path."""


class NotAStore(OffsetsError):
    """What is at the store's path is something else, or a store that was only half created."""


class StoreMismatch(OffsetsError):
    """The store was created with other properties than those asked for."""


class NoSuchPath(OffsetsError):
    """A path to read from does not exist."""


class TargetNotEmpty(OffsetsError):
    """The place to write to holds something already, or is no folder."""


class UnsupportedTable(OffsetsError):
    """A table uses what only Spark can read."""


class InvalidTime(OffsetsError):
    """A point in time is not written as one."""


class NoSegments(OffsetsError):
    """A path to read from holds no log segments."""


class NoSuchGroup(OffsetsError):
    """The store knows no group of that name."""

    kafka_name = "GROUP_ID_NOT_FOUND"


class ConflictingLog(OffsetsError):
    """The same record offset holds two different records: these are not segments of one log."""


class WriteConflict(OffsetsError):
    """Another writer committed to the table first, as often as was retried."""

    retriable = True


class InvalidPartitionCount(OffsetsError):
    """The number of log partitions is missing, impossible, or not the one that the log was written with (R1)."""


class CannotClean(OffsetsError):
    """The log table cannot be cleaned where it lies, or as its owner changed it."""


class StateDiffers(OffsetsError):
    """The state tables are not what a replay of the log gives."""


class UndecodableRecord(OffsetsError):
    """A record of the log does not decode, and the settings say to stop there (R6)."""


class QueryFailed(OffsetsError):
    """Spark could not parse or run a query."""


class StreamFailed(OffsetsError):
    """The fold stopped for a reason that is not one of this program's own."""


def raised_on_executor(error: Exception) -> OffsetsError | None:
    """The error of this package that a task raised, out of the text in which Spark reports it; None for any other."""
    found = re.findall(r"^offsets_pipeline(?:\.\w+)*\.(\w+): (.*)$", str(error), re.MULTILINE)
    kinds = {kind.__name__: kind for kind in _with_subclasses(OffsetsError)}
    for name, message in reversed(found):
        if name in kinds:
            ours = kinds[name].__new__(kinds[name])
            ours.args = (message,)
            return ours
    return None


def _with_subclasses(kind: type[OffsetsError]) -> list[type[OffsetsError]]:
    return [kind, *(each for sub in kind.__subclasses__() for each in _with_subclasses(sub))]
