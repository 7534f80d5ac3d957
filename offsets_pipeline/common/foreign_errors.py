"""Exceptions of other libraries, and errors that Spark reports from a task: their text, their place, their retry."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from offsets_pipeline.errors import CommitUnknown, OffsetsError, TaskFailed

#: How an error of ``deltalake`` begins a line with the cause of the line before it.
_CAUSE = re.compile(r"\s*\n\s*(?:\x1b\[\d*m)?\u21b3(?:\x1b\[\d*m)?\s*")
#: What Spark says of a task whose Python process is gone.
_WORKER_ENDED = "Python worker exited unexpectedly"
#: What Python prints before the error of a task, which Spark reports as a text.
_TRACEBACK = re.compile(r"\s*Traceback \(most recent call last\):\n(?:[ \t].*\n)*")


def first_line(error: Exception) -> str:
    """First line of a foreign exception's message with the causes below it, or its class if it has none."""
    return (_lines(error) or [type(error).__name__])[0].rstrip()


def with_causes(error: BaseException) -> str:
    """The message of an exception; the causes that ``deltalake`` writes below a line follow it in that line."""
    return _CAUSE.sub(": ", str(error))


def in_one_line(error: BaseException) -> str:
    """An exception in one line: message of an error of this package, class and message of a foreign exception."""
    ours = raised_on_executor(error)
    if ours is not None:
        return str(ours)
    if _is_of_ended_jvm(error):
        return f"{type(error).__name__}: the JVM of Spark has ended, killed or out of memory; run the command again"
    lines = _lines(error) or [""]
    # Py4J writes its own line before the JVM's message
    message = next((line for line in lines if line.startswith(": ")), lines[0]).removeprefix(": ")
    return f"{type(error).__name__}: {message}"


@contextmanager
def working_on(place: Callable[[], str]) -> Iterator[None]:
    """Context manager: name the place where a task fails, such as a file or a record offset of a log partition.

    Raises TaskFailed, caused by the exception, for any exception that is not an error of this package.
    """
    try:
        yield
    except OffsetsError:
        raise
    except Exception as error:
        raise TaskFailed(f"a task failed at {place()}: {type(error).__name__}: {first_line(error)}") from error


def raised_on_executor(error: BaseException) -> OffsetsError | None:
    """The error of this package, raised here or by a task that Spark reports; None for a foreign exception."""
    if isinstance(error, OffsetsError):
        return error
    found = re.findall(r"^offsets_pipeline(?:\.\w+)*\.(\w+): (.*)$", str(error), re.MULTILINE)
    kinds = {kind.__name__: kind for kind in _with_subclasses(OffsetsError)}
    for name, message in reversed(found):
        if name in kinds:
            return kinds[name].__new__(kinds[name], message)  # the message is complete: skip __init__
    return None


def may_pass(error: Exception) -> bool:
    """Whether a later run may succeed. It may write again what the failed run wrote."""
    ours = raised_on_executor(error)
    if ours is not None:
        return ours.retriable or isinstance(ours, CommitUnknown)
    return not _is_of_ended_jvm(error)


def _is_of_ended_jvm(error: BaseException) -> bool:
    return isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError"


def _lines(error: BaseException) -> list[str]:
    if _WORKER_ENDED in str(error):
        return ["a Python process of a task has ended, killed or out of memory; another run may succeed"]
    return _TRACEBACK.sub(" ", with_causes(error)).strip().splitlines()


def _with_subclasses(kind: type[OffsetsError]) -> list[type[OffsetsError]]:
    return [kind, *(each for sub in kind.__subclasses__() for each in _with_subclasses(sub))]
