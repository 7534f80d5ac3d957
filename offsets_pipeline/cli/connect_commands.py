"""`offsets connect list` and `describe`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from offsets_pipeline.cli.answer_times import told_time
from offsets_pipeline.cli.opened import open_beside, open_reader
from offsets_pipeline.cli.output import write_json, write_rows
from offsets_pipeline.connect.connect_keys import canonical_json
from offsets_pipeline.query.connectors import ConnectorInfo, describe_connector, list_connectors
from offsets_pipeline.semantics.topic_kind import TopicKind

if TYPE_CHECKING:
    from offsets_pipeline.config import Settings
    from offsets_pipeline.query.state_reader import StateReader

_KINDS = [kind for kind in TopicKind if kind.is_connect]


def list_(store: str, settings: Settings, format_: str) -> int:
    """Show connectors; returns the exit status. Raises StoreMismatch for a store without a topic of Connect."""
    readers = _readers(store, settings)
    connectors = list_connectors(readers)
    times = [told_time(reader, reader.location, settings) for reader in readers]
    if format_ == "json":
        as_of = min((each.as_of for each in times if each.as_of is not None), default=None)
        write_json({"connectors": connectors, "as_of": as_of, "stale": [row for each in times for row in each.stale]})
    else:
        names = list(ConnectorInfo.__dataclass_fields__)
        write_rows(names, [[getattr(each, name) for name in names] for each in connectors], format_)
    return 0


def describe(store: str, settings: Settings, connector: str, configs: str | None, format_: str) -> int:
    """Show the offsets of a connector; returns the exit status. Raises NoSuchConnector, StoreMismatch.

    ``configs`` is the store of `config.storage.topic`; None: the one beside the store, if it exists.
    """
    reader = open_reader(store, settings)
    beside = [open_reader(configs, settings)] if configs is not None else open_beside(store, reader, settings)
    known = [each for each in beside if configs is not None or each.properties.topic_kind is TopicKind.CONNECT_CONFIGS]
    answer = describe_connector(reader, connector, *known)
    told_time(reader, store, settings)
    if format_ == "json":
        write_json(answer)  # of Connect's REST interface, which has no more fields
    else:
        rows = [[canonical_json(each["partition"]), json.dumps(each["offset"])] for each in answer["offsets"]]
        write_rows(["partition", "offset"], rows, format_)
    return 0


def _readers(store: str, settings: Settings) -> list[StateReader]:
    """Readers of the store, and of those beside it that exist."""
    own = open_reader(store, settings)
    own.properties.require_topic_kind(own.location, *_KINDS)
    return [own, *open_beside(store, own, settings)]
