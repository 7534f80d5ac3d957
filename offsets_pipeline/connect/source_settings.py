"""Settings of a source task with the names of Kafka Connect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from offsets_pipeline import input_text
from offsets_pipeline.connect.offset_committer import FlushSettings
from offsets_pipeline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_RESETS = ("earliest", "latest", "none")


@dataclass(frozen=True)
class SourceSettings:
    """Settings of a task.

    ``name`` is the connector's. ``offset_storage_topic`` is the location of the owned store, which has the place of the
    topic. ``offset_reset`` is ``earliest``, ``latest``, ``none`` or an offset.
    """

    name: str
    offset_storage_topic: str
    flush: FlushSettings = field(default_factory=FlushSettings)
    offset_reset: Any = "earliest"

    @classmethod
    def of_options(cls, options: Mapping[str, str], others: Collection[str] = ()) -> SourceSettings:
        """Read ``name``, ``offset.storage.topic``, ``offset.flush.interval.ms``, ``offset.flush.timeout.ms``,
        ``offset.flush.records`` and ``offset.reset``.

        Raises ConfigError if one of the first two is missing, for a value that is not allowed, and for an option that
        is neither one of these nor of ``others``.
        """  # noqa: D205 - a list of names
        names = {
            "name",
            "offset.storage.topic",
            "offset.flush.interval.ms",
            "offset.flush.timeout.ms",
            "offset.flush.records",
            "offset.reset",
            *others,
        }
        unknown = sorted(set(options) - names)
        if unknown:
            raise ConfigError(f"{unknown[0]}: no such option; there are {', '.join(sorted(names))}")
        usual = FlushSettings()
        records = options.get("offset.flush.records")
        return cls(
            required(options, "name"),
            required(options, "offset.storage.topic"),
            FlushSettings(
                whole_number(options, "offset.flush.interval.ms", usual.offset_flush_interval_ms),
                whole_number(options, "offset.flush.timeout.ms", usual.offset_flush_timeout_ms),
                None if records is None else whole_number(options, "offset.flush.records", 1),
            ),
            _offset_reset(options.get("offset.reset", "earliest")),
        )


def required(options: Mapping[str, str], name: str) -> str:
    """The value of an option. Raises ConfigError if it is missing or empty."""
    if not options.get(name):
        raise ConfigError(f"{name}: missing; set this option")
    return options[name]


def whole_number(options: Mapping[str, str], name: str, default: int) -> int:
    """The value of an option that is a whole number from 1. Raises ConfigError."""
    text = options.get(name, str(default))
    try:
        found = input_text.whole_number(text)
    except ValueError:
        found = 0
    if found < 1:
        raise ConfigError(f"{name}: {input_text.shown(text)} is not allowed; it takes a whole number from 1")
    return found


def _offset_reset(text: str) -> Any:  # noqa: ANN401 - an offset may have any members
    if text in _RESETS:
        return text
    try:
        found = input_text.parse_json(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        allowed = f'{" or ".join(_RESETS)}, or an offset as {{"position": 0}}'
        raise ConfigError(f"offset.reset: {input_text.shown(text)} is not allowed; it takes {allowed}")
    return found
