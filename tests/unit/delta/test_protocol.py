"""What a commit does, by its actions, and which names tables have in a catalog."""

from __future__ import annotations

import json
from typing import Any

import pytest

from offsets_pipeline.store.delta.data_file import DataFile
from offsets_pipeline.store.delta.protocol import (
    changes_rows,
    changes_rules,
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
