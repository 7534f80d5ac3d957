"""Kafka's __consumer_offsets log, replayed into Delta Lake tables by Apache Spark.

The names in `__all__` are public: they stay in a minor version, and a major version that changes one says so in the
changelog. Modules below this one may change in any version, except `offsets_pipeline.errors`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offsets_pipeline.common.config import Settings, load_settings
    from offsets_pipeline.connect.connect_log import ConnectLog
    from offsets_pipeline.connect.exactly_once import ExactlyOnceTask
    from offsets_pipeline.connect.offset_backing_store import (
        OffsetBackingStore,
        OffsetStorageReader,
        OffsetStorageWriter,
    )
    from offsets_pipeline.connect.offset_committer import FlushSettings, OffsetCommitter, initialize_offsets
    from offsets_pipeline.connect.offset_management import OffsetManagementClient
    from offsets_pipeline.connect.target_table import TargetTable
    from offsets_pipeline.coordinator.coordinator import Coordinator
    from offsets_pipeline.coordinator.owned_store import OwnedStore
    from offsets_pipeline.coordinator.requests import OffsetAndMetadata
    from offsets_pipeline.errors import OffsetsError
    from offsets_pipeline.questions.query.views import create_views, register_views
    from offsets_pipeline.spark_query.offsets_listener import OffsetsListener
    from offsets_pipeline.spark_query.starting_offsets import starting_offsets
    from offsets_pipeline.store.session import build_session
    from offsets_pipeline.store.store import Store

__version__ = "0.2.0"

__all__ = [
    "ConnectLog",
    "Coordinator",
    "ExactlyOnceTask",
    "FlushSettings",
    "OffsetAndMetadata",
    "OffsetBackingStore",
    "OffsetCommitter",
    "OffsetManagementClient",
    "OffsetStorageReader",
    "OffsetStorageWriter",
    "OffsetsError",
    "OffsetsListener",
    "OwnedStore",
    "Settings",
    "Store",
    "TargetTable",
    "build_session",
    "create_views",
    "initialize_offsets",
    "load_settings",
    "register_views",
    "starting_offsets",
]

#: The module that defines each public name. A name is imported when it is first used: some need Spark.
_MODULES = {
    "ConnectLog": "connect.connect_log",
    "Coordinator": "coordinator.coordinator",
    "ExactlyOnceTask": "connect.exactly_once",
    "FlushSettings": "connect.offset_committer",
    "OffsetAndMetadata": "coordinator.requests",
    "OffsetBackingStore": "connect.offset_backing_store",
    "OffsetCommitter": "connect.offset_committer",
    "OffsetManagementClient": "connect.offset_management",
    "OffsetStorageReader": "connect.offset_backing_store",
    "OffsetStorageWriter": "connect.offset_backing_store",
    "OffsetsError": "errors",
    "OffsetsListener": "spark_query.offsets_listener",
    "OwnedStore": "coordinator.owned_store",
    "Settings": "common.config",
    "Store": "store.store",
    "TargetTable": "connect.target_table",
    "build_session": "store.session",
    "create_views": "questions.query.views",
    "initialize_offsets": "connect.offset_committer",
    "load_settings": "common.config",
    "register_views": "questions.query.views",
    "starting_offsets": "spark_query.starting_offsets",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - of each public name
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
