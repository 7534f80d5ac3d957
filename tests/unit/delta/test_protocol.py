"""What a commit does, by its actions, and which names tables have in a catalog."""

from __future__ import annotations

import json
import time
from typing import Any

import pyarrow as pa
import pytest

from offsets_pipeline.store.delta.data_file import DataFile
from offsets_pipeline.store.delta.protocol import (
    changes_rows,
    changes_rules,
    creation,
    delta_type,
    info_of,
    schema_fields,
    takes_rows,
    unwritable,
    write_actions,
)
from offsets_pipeline.store.delta.schemas import TABLE_BY_NAME, catalog_name

MOVED_IN, NEW = {"add": {"path": "a", "dataChange": False}}, {"add": {"path": "a", "dataChange": True}}
MOVED_OUT, GONE = {"remove": {"path": "b", "dataChange": False}}, {"remove": {"path": "b", "dataChange": True}}
MARKED = {"add": {"path": "b", "dataChange": False, "deletionVector": {"cardinality": 1}}}
INFO: dict[str, Any] = {"commitInfo": {}}


@pytest.mark.parametrize(
    ("actions", "takes", "changes"),
    [
        ([MOVED_IN, MOVED_OUT, INFO], False, False),
        ([INFO, {"txn": {}}], False, False),
        ([NEW], False, True),
        ([INFO, MOVED_IN, NEW], False, True),
        ([GONE], True, True),
        ([INFO, MOVED_IN, GONE], True, True),
        ([MOVED_OUT, MARKED], True, True),
    ],
)
def test_only_a_change_of_data_changes_rows(actions: list[dict[str, Any]], takes: bool, changes: bool) -> None:
    assert (takes_rows(actions), changes_rows(actions)) == (takes, changes)


def test_protocol_and_metadata_are_the_rules_of_a_table() -> None:
    actions: list[dict[str, Any]] = [{"protocol": {}}, {"metaData": {}}, {"txn": {}}, NEW, GONE]
    assert [changes_rules([INFO, each]) for each in actions] == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("remove", "advance", "metadata", "is_blind"),
    [
        ([], {}, None, True),
        ([DataFile("b", 1, 1)], {}, None, False),
        ([], {"app": 1}, None, False),  # it was decided by what the table had
        ([], {}, {"id": "t"}, False),
    ],
)
def test_a_commit_that_looks_at_nothing_is_a_blind_append(
    remove: list[DataFile], advance: dict[str, int], metadata: dict[str, Any] | None, is_blind: bool
) -> None:
    added = [DataFile("a", 1, 1)]
    actions = write_actions(added, remove, advance, is_change=True, operation="WRITE", metadata=metadata)
    assert info_of(actions)["isBlindAppend"] is is_blind


def without_times(actions: list[dict[str, Any]], since_ms: int) -> list[dict[str, Any]]:
    """The actions of a commit that was made since a time, without times and the commit's id."""
    for action in actions:
        (fields,) = action.values()
        for name in {
            "timestamp",
            "lastUpdated",
            "deletionTimestamp",
            "modificationTime",
            "createdTime",
        } & fields.keys():
            assert since_ms <= fields.pop(name) <= time.time() * 1000
        fields.pop("txnId", None)
    return actions


def test_actions_of_a_commit_are_those_of_deltas_protocol() -> None:
    since_ms, of_folder = int(time.time() * 1000), {"p": "1"}
    added = DataFile("a", 10, 2, {"x": 1}, {"x": 3}, of_folder)
    actions = write_actions(
        [added, DataFile("c", 7, 4)],
        [DataFile("b", 5, 1, partition=of_folder)],
        {"app": 7},
        is_change=False,
        operation="OPTIMIZE",
        metadata={"id": "t"},
        user_metadata="me",
    )
    metrics = {"numFiles": "2", "numRemovedFiles": "1", "numOutputRows": "6", "numOutputBytes": "17"}
    info: dict[str, Any] = {"operation": "OPTIMIZE", "operationParameters": {"mode": "Overwrite", "partitionBy": "[]"}}
    info |= {
        "isBlindAppend": False,
        "engineInfo": "offsets_pipeline",
        "operationMetrics": metrics,
        "userMetadata": "me",
    }
    stats = [json.loads(action["add"].pop("stats")) for action in actions if "add" in action]
    assert without_times(actions, since_ms) == [
        {"commitInfo": info},
        {"metaData": {"id": "t"}},
        {"txn": {"appId": "app", "version": 7}},
        {
            "remove": {
                "path": "b",
                "size": 5,
                "partitionValues": of_folder,
                "dataChange": False,
                "extendedFileMetadata": True,
            }
        },
        {"add": {"path": "a", "size": 10, "partitionValues": of_folder, "dataChange": False}},
        {"add": {"path": "c", "size": 7, "partitionValues": {}, "dataChange": False}},
    ]
    assert stats == [
        {"numRecords": 2, "minValues": {"x": 1}, "maxValues": {"x": 3}, "nullCount": {"x": 0}},
        {"numRecords": 4, "minValues": {}, "maxValues": {}, "nullCount": {}},
    ]
    (first, _) = write_actions([added], [], {}, is_change=True, operation="WRITE")
    assert first["commitInfo"]["operationParameters"]["mode"] == "Append"
    assert "userMetadata" not in first["commitInfo"]


@pytest.mark.parametrize(("properties", "writer"), [({"a": "b"}, 2), ({"delta.constraints.c": "topic > ''"}, 3)])
def test_first_commit_has_the_schema_and_what_it_asks_of_writers(properties: dict[str, str], writer: int) -> None:
    since_ms, table = int(time.time() * 1000), TABLE_BY_NAME["topics"]
    first, second, third = without_times(creation(table, properties), since_ms)
    assert (first["commitInfo"]["operation"], first["commitInfo"]["isBlindAppend"]) == ("CREATE TABLE", True)
    metadata = second["metaData"]
    assert json.loads(metadata["schemaString"]) == {
        "type": "struct",
        "fields": [
            {"name": name, "type": "string", "nullable": False, "metadata": {"comment": comment}}
            for name, comment in (("topic_id", "in Kafka's notation"), ("topic", "its name"))
        ],
    }
    assert (metadata["partitionColumns"], metadata["configuration"]) == ([], {**table.properties, **properties})
    assert third == {"protocol": {"minReaderVersion": 1, "minWriterVersion": writer}}


def test_nested_types_have_deltas_names() -> None:
    inner = pa.struct([pa.field("a", pa.int16(), nullable=False), pa.field("b", pa.decimal128(10, 2))])
    fields = [
        {"name": "a", "type": "short", "nullable": False, "metadata": {}},
        {"name": "b", "type": "decimal(10,2)", "nullable": True, "metadata": {}},
    ]
    assert delta_type(pa.map_(pa.string(), pa.list_(inner))) == {
        "type": "map",
        "keyType": "string",
        "valueType": {"type": "array", "elementType": {"type": "struct", "fields": fields}, "containsNull": True},
        "valueContainsNull": True,
    }


@pytest.mark.parametrize(
    ("protocol", "reason"),
    [
        ({"minReaderVersion": 1, "minWriterVersion": 7}, None),
        ({"minReaderVersion": 1, "minWriterVersion": 8}, "writer version 8"),
        ({"minReaderVersion": 3, "minWriterVersion": 7}, None),
        ({"minReaderVersion": 4, "minWriterVersion": 8}, "reader version 4"),
        ({"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["later"]}, "the writer feature 'later'"),
    ],
)
def test_a_version_of_the_protocol_that_came_later_is_the_reason(protocol: dict[str, Any], reason: str | None) -> None:
    table = TABLE_BY_NAME["log"]
    schema = json.dumps({"type": "struct", "fields": schema_fields(table)})
    metadata = {"configuration": {}, "partitionColumns": list(table.partitioned_by), "schemaString": schema}
    assert unwritable(protocol, metadata, table) == reason


def test_views_have_the_names_of_the_published_tables_in_a_catalog() -> None:
    published = {
        *("current_offsets", "consumer_groups", "group_members", "unstable_offsets"),
        *("connector_offsets", "connectors", "share_partitions"),
    }
    found = {name: catalog_name(name) for name in TABLE_BY_NAME}
    assert {name for name, in_catalog in found.items() if in_catalog == f"published_{name}"} == published
    assert all(found[name] == name for name in found.keys() - published)
    assert {"log", "published_as_of"} <= found.keys() - published
