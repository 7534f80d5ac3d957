"""`offsets connect list` and `describe`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from offsets_pipeline.cli.answer_times import answer_time_of, time_fields
from offsets_pipeline.cli.opened import open_beside, open_reader, open_readers
from offsets_pipeline.cli.output import write_json, write_rows
from offsets_pipeline.query.connectors import ConnectorInfo, describe_connector, list_connectors
from offsets_pipeline.semantics.connect_keys import canonical_json
from offsets_pipeline.semantics.topic_kind import TopicKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsets_pipeline.config import Settings

_KINDS = [kind for kind in TopicKind if kind.is_connect]


def list_(stores: Sequence[str], settings: Settings, format_: str) -> int:
    """Show connectors; returns the exit status. Raises StoreMismatch for a store without a topic of Connect."""
    opened = open_readers(stores, settings)
    names = list(ConnectorInfo.__dataclass_fields__)
    if len(opened) > 1:
        names.append("cluster")
    connectors: list[dict[str, Any]] = []
    times = []
    for store, own in opened.items():
        own.properties.require_topic_kind(own.location, *_KINDS)
        readers = [own, *open_beside(store, own, settings)]
        connectors += [{**vars(each), "cluster": own.cluster} for each in list_connectors(readers)]
        times += [(own.cluster, answer_time_of(reader, reader.location, settings)) for reader in readers]
    if format_ == "json":
        write_json({"connectors": connectors, **time_fields(times)})
    else:
        write_rows(names, [[each[name] for name in names] for each in connectors], format_)
    return 0


def describe(store: str, settings: Settings, connector: str, configs: str | None, format_: str) -> int:
    """Show the offsets of a connector; returns the exit status. Raises NoSuchConnector, StoreMismatch.

    ``configs`` is the store of `config.storage.topic`; None: the one beside the store, if it exists.
    """
    reader = open_reader(store, settings)
    beside = [open_reader(configs, settings)] if configs is not None else open_beside(store, reader, settings)
    known = [each for each in beside if configs is not None or each.properties.topic_kind is TopicKind.CONNECT_CONFIGS]
    answer = describe_connector(reader, connector, *known)
    answer_time_of(reader, store, settings)
    if format_ == "json":
        write_json(answer)  # of Connect's REST interface, which has no more fields
    else:
        rows = [[canonical_json(each["partition"]), json.dumps(each["offset"])] for each in answer["offsets"]]
        write_rows(["partition", "offset"], rows, format_)
    return 0
