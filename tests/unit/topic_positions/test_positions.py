"""Positions of topics, from files and from a broker's client."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.errors import (
    BrokerUnreachable,
    ConfigError,
    MalformedFile,
    NoSuchPath,
    UnknownTopicOrPartition,
)
from offsets_pipeline.ingest.topic_positions import broker_positions
from offsets_pipeline.ingest.topic_positions.broker_positions import ask_broker, read_client_properties
from offsets_pipeline.ingest.topic_positions.positions import Position, Positions, TimedOffset, read_positions
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from offsets_pipeline.kafka.broker.log_offsets import LogBounds
from offsets_pipeline.semantics.partition_state import TopicPartition

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "topic,partition,earliest,latest"


def written(folder: Path, text: str) -> Path:
    path = folder / "positions.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_positions_are_read_with_their_times_in_order(tmp_path: Path) -> None:
    path = written(tmp_path, f"{HEADER}, 1970-01-01T00:00:02Z,1000\nt,0,0,50,30,10\n\nt,1,100,200,,150\nu,0,7,7,,\n")
    assert read_positions(path) == Positions(
        str(path),
        {
            TopicPartition("t", 0): Position(0, 50, (TimedOffset(1000, 10), TimedOffset(2000, 30))),
            TopicPartition("t", 1): Position(100, 200, (TimedOffset(1000, 150), TimedOffset(2000, None))),
            TopicPartition("u", 0): Position(7, 7, (TimedOffset(1000, None), TimedOffset(2000, None))),
        },
    )
    assert read_positions(written(tmp_path, f"{HEADER}\nt,0,0,0\n")).partitions_of("t") == [("t", 0)]


def test_unknown_topics_and_partitions_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, f"{HEADER}\nt,1,0,0\n")
    with pytest.raises(UnknownTopicOrPartition, match=r"positions\.csv has no topic 'u'$"):
        read_positions(path).partitions_of("u")
    with pytest.raises(UnknownTopicOrPartition, match=r"positions\.csv has no partition t-0$"):
        read_positions(path).of(TopicPartition("t", 0))


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, f"the header has to begin with {HEADER}"),
        ("t,0,0,5\n", 1, f"the header has to begin with {HEADER}"),
        (f"{HEADER},yesterday\n", 1, "'yesterday' is not a time: write it like"),
        (f"{HEADER},1000,1970-01-01T00:00:01Z\n", 1, "the header names a time twice"),
        (f"{HEADER}\nt,0,0\n", 2, "3 fields, the header has 4"),
        (f"{HEADER}\nt,0,0,5,6\n", 2, "5 fields, the header has 4"),
        (f"{HEADER}\nt,0,0,5\nt,0,0,5\n", 3, "t-0 has a line already"),
        (f"{HEADER}\nt,0,,5\n", 2, "earliest '' is not a whole number"),
        (f"{HEADER}\nt,0,0,-1\n", 2, "latest -1 is negative"),
        (f"{HEADER}\nt,0,6,5\n", 2, "earliest 6 is above latest 5"),
        (f"{HEADER}\n,0,0,5\n", 2, "'' is not a topic name"),
        (f"{HEADER},1,2\nt,0,2,5,1,3\n", 2, "offset 1 is not from 2 to 5: offsets grow with time, up to the latest"),
        (f"{HEADER},1,2\nt,0,2,5,3,6\n", 2, "offset 6 is not from 3 to 5"),
        (f"{HEADER},1,2\nt,0,2,5,4,3\n", 2, "offset 3 is not from 4 to 5"),
        (f"{HEADER},1,2\nt,0,2,5,,4\n", 2, "offset 4 is not from 5 to 5"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path: Path, text: str, line: int, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(MalformedFile) as raised:
        read_positions(path)
    assert str(raised.value).startswith(f"{path}, line {line}: {said}")


def test_files_without_anything_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedFile, match="has no partitions"):
        read_positions(written(tmp_path, f"{HEADER}\n"))
    with pytest.raises(NoSuchPath):
        read_positions(tmp_path / "none")


def test_broker_that_does_not_answer_is_a_one_line_error() -> None:
    options = KafkaOptions("127.0.0.1:1", {"socket.connection.setup.timeout.ms": "1000"})
    with pytest.raises(BrokerUnreachable, match=r"^no broker answers at 127\.0\.0\.1:1 ") as raised:
        ask_broker(options, {"t"})
    assert "\n" not in str(raised.value)
    with pytest.raises(ConfigError, match=r"the Kafka option no\.such\.property is not supported: remove it"):
        ask_broker(KafkaOptions("127.0.0.1:1", {"no.such.property": "1"}), {"t"})


def test_positions_of_a_broker_have_the_offset_of_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster: Any = SimpleNamespace(settings=SimpleNamespace(at="b:9092"))
    bounds: dict[tuple[str, int], Any] = {("t", 0): LogBounds(1, 9), ("t", 1): LogBounds(0, 0)}
    since: dict[tuple[str, int], Any] = {("t", 0): 5, ("t", 1): None}
    asked: list[object] = []
    monkeypatch.setattr(broker_positions, "bounds_of_topics", lambda *_: bounds)

    def list_offsets(_: object, times_ms: object) -> object:
        asked.append(times_ms)
        return since

    monkeypatch.setattr(broker_positions, "list_offsets", list_offsets)
    t0, t1 = TopicPartition("t", 0), TopicPartition("t", 1)
    found = broker_positions.positions_of(cluster, ["t"])
    assert found == Positions("the broker at b:9092", {t0: Position(1, 9), t1: Position(0, 0)})
    assert broker_positions.positions_of(cluster, ["t"], 7).by_partition == {
        t0: Position(1, 9, (TimedOffset(7, 5),)),
        t1: Position(0, 0, (TimedOffset(7, None),)),
    }
    assert asked == [dict.fromkeys(bounds, 7)]
    for refusing in (since, bounds):
        refusing["t", 1] = BrokerUnreachable("no leader")
        with pytest.raises(BrokerUnreachable, match="no leader"):
            broker_positions.positions_of(cluster, ["t"], 7)


def test_properties_of_a_client_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, "# how to log in\nsasl.username = me\n\nsasl.password=a=b\n")
    assert read_client_properties(path) == {"sasl.username": "me", "sasl.password": "a=b"}
    with pytest.raises(MalformedFile, match="line 1: 'sasl' is not of the form name=value"):
        read_client_properties(written(tmp_path, "sasl\n"))
    with pytest.raises(NoSuchPath):
        read_client_properties(tmp_path / "none")
