"""Answers about connectors: type and group of a connector, and the form of Connect's REST interface (R32)."""

from __future__ import annotations

import pytest

from offsets_pipeline.connect.connector_offsets import (
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


def test_sink_offsets_have_connects_form() -> None:
    assert sink_answer({("t", 1): 5, ("t", 0): 3}) == {
        "offsets": [
            {"partition": {"kafka_partition": 0, "kafka_topic": "t"}, "offset": {"kafka_offset": 3}},
            {"partition": {"kafka_partition": 1, "kafka_topic": "t"}, "offset": {"kafka_offset": 5}},
        ]
    }


def test_an_offset_without_a_source_partition_is_not_answered() -> None:
    assert source_answer([("null", '{"p":1}'), ('{"f":"a"}', '{"p":2}')]) == {
        "offsets": [{"partition": {"f": "a"}, "offset": {"p": 2}}]
    }
