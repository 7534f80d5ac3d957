"""Answers about connectors: type and group of a connector, and the form of Connect's REST interface (R32)."""

from __future__ import annotations

import pytest

from offsets_pipeline.connect.connector_offsets import (
    ConnectorOffset,
    OffsetRecord,
    answering_offsets,
    connector_type,
    sink_answer,
    sink_group,
    source_answer,
)
from offsets_pipeline.connect.target_states import state_of


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector", "topic": "t"}, "source"),
        ({"connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector", "topics": "t"}, "sink"),
        ({"connector.class": "FileStreamSink", "topics.regex": "t.*"}, "sink"),
        ({"connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector", "topics": ".*"}, "source"),
        ({"connector.class": "com.example.sinks.Exporter", "topics": "t"}, "sink"),
        ({"connector.class": "com.example.sinks.Importer"}, "source"),
        ({}, "source"),
    ],
)
def test_type_is_that_of_the_class_or_of_topics_to_read(settings: dict[str, object], expected: str) -> None:
    assert connector_type(settings) == expected


def test_group_of_a_sink_is_named_after_it() -> None:
    assert sink_group("s") == "connect-s"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "RUNNING"),
        ({"state": "PAUSED"}, "PAUSED"),
        ({"state": "PAUSED", "state.v2": "STOPPED"}, "STOPPED"),
        ({"state": "STARTED", "state.v2": None}, "RUNNING"),
    ],
)
def test_target_state_is_that_of_the_newest_worker(value: dict[str, str | None] | None, expected: str) -> None:
    assert state_of(value) == expected


def test_newest_record_of_an_identity_answers_with_all_its_raw_keys() -> None:  # R30
    def record(raw_key: str, value: str | None, at_us: int | None, offset: int, connector: str = "c") -> OffsetRecord:
        return OffsetRecord(connector, "{}", raw_key, value, at_us, offset, 0)

    found = answering_offsets(
        [
            *[record("k2", "late", 7, 1), record("k1", "early", 6, 9), record("k3", None, 5, 3)],
            *[record("k1", "before", 0, 1, "b"), record("k2", "untimed", None, 9, "b")],
            *[record("k1", "lower", 7, 1, "a"), record("k2", "higher", 7, 2, "a")],
            *[record("k1", "kept", 7, 1, "d"), record("k2", None, 7, 2, "d")],
        ]
    )
    assert list(found.items()) == [
        ("a", [ConnectorOffset("{}", "higher", ("k1", "k2"))]),
        ("b", [ConnectorOffset("{}", "before", ("k1", "k2"))]),
        ("c", [ConnectorOffset("{}", "late", ("k1", "k2"))]),
        ("d", []),
    ]


def test_newest_record_of_an_owned_store_has_the_highest_record_offset() -> None:  # R30
    earlier = OffsetRecord("c", "{}", "k1", "earlier", 7, 1, 0)
    later = OffsetRecord("c", "{}", "k2", "later", 6, 2, 0)
    for records in ([earlier, later], [later, earlier]):
        assert answering_offsets(records, is_owned=True) == {"c": [ConnectorOffset("{}", "later", ("k1", "k2"))]}
        assert answering_offsets(records) == {"c": [ConnectorOffset("{}", "earlier", ("k1", "k2"))]}


def test_sink_offsets_have_connects_form() -> None:
    assert sink_answer({("t", 1): 5, ("t", 0): 3}) == {
        "offsets": [
            {"partition": {"kafka_partition": 0, "kafka_topic": "t"}, "offset": {"kafka_offset": 3}},
            {"partition": {"kafka_partition": 1, "kafka_topic": "t"}, "offset": {"kafka_offset": 5}},
        ]
    }


def test_an_offset_without_a_source_partition_is_not_answered() -> None:
    offsets = [ConnectorOffset("null", '{"p":1}', ()), ConnectorOffset('{"f":"a"}', '{"p":2}', ())]
    assert source_answer(offsets) == {"offsets": [{"partition": {"f": "a"}, "offset": {"p": 2}}]}
