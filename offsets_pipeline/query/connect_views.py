"""The views of a store with a topic of Kafka Connect (R30), in Spark."""

from __future__ import annotations

from offsets_pipeline.connect.connector_views import connect_conditions
from offsets_pipeline.delta.properties import beside
from offsets_pipeline.delta.schemas import FOLD_PROGRESS
from offsets_pipeline.query.view_queries import CONNECT_VIEWS
from offsets_pipeline.state.merge_on_read import CONNECT
from offsets_pipeline.store import Store


def connect_views(store: Store) -> dict[str, str]:
    """The queries of the views by name; views read the stores beside this one that exist now."""
    others = [Store.find(store.spark, location) for location in beside(store.location)]
    stores = [store, *(each for each in others if each is not None and each.properties.topic_kind.is_connect)]
    names = {
        "own": f"({_rows(store)})",
        "all": " UNION ALL ".join(f"SELECT * FROM ({_rows(each)})" for each in stores),
        **connect_conditions([each.properties.topic_kind for each in stores]),
    }
    return {name: query.format(**names) for name, query in CONNECT_VIEWS.items()}


def _rows(store: Store) -> str:
    """SQL of the rows of `connect_records` that count."""
    return CONNECT.newest_in_spark(store.table_name(CONNECT.name), None, store.table_name(FOLD_PROGRESS.name))
