"""Segment files of Connect's topics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.connect.connect_log import ConnectLog
from offsets_pipeline.connect.offset_backing_store import OffsetBackingStore
from offsets_pipeline.connect.offset_management import OffsetManagement
from offsets_pipeline.connect.target_states import PAUSED
from offsets_pipeline.errors import StoreMismatch
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.repair.export.segment_export import MANIFEST, export_segments
from offsets_pipeline.semantics.connect_keys import offset_key
from offsets_pipeline.semantics.topic_kind import TopicKind
from tests.log_tables import capture_log, capture_records, log_store, segment_records

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("capture", ["4.2.0-connect-altered", "4.2.0-connect-eos-altered"])
@pytest.mark.parametrize("kind", [TopicKind.CONNECT_OFFSETS, TopicKind.CONNECT_STATUS])
def test_a_workers_topic_comes_back_from_a_store(tmp_path: Path, capture: str, kind: TopicKind) -> None:
    records = capture_records(capture, kind)
    assert sum(each.num_rows for each in records.values()) > 5
    store = log_store(tmp_path / "store", 5, [capture_log(capture, kind)], topic_kind=kind)
    export_segments(StateReader(str(store)), tmp_path / "to")
    exported = segment_records(tmp_path / "to", kind)
    assert {at: each for at, each in exported.items() if each.num_rows} == {
        at: each for at, each in records.items() if each.num_rows
    }
    assert {path.name.rpartition("-")[0] for path in (tmp_path / "to").iterdir() if path.name != MANIFEST} == {kind}


def test_an_owned_store_comes_out_as_the_topic_of_a_workers_offsets(tmp_path: Path) -> None:
    ConnectLog.create(tmp_path / "owned", "lab", 3)
    last = {offset_key(name, {"f": name}): f'{{"p":{number}}}'.encode() for number, name in enumerate("abcdef")}
    with OffsetBackingStore(tmp_path / "owned") as backing:
        for position in (b'{"p":100}', b'{"p":200}'):
            backing.set(dict.fromkeys(last, position)).result(10)
        OffsetManagement(backing.log).set_target_state("a", PAUSED)
        backing.set(last).result(10)
        ends = list(backing.log._log.ends)
    export = export_segments(StateReader(str(tmp_path / "owned")), tmp_path / "to")
    records = segment_records(tmp_path / "to", "connect-offsets")
    found: dict[bytes, bytes] = {}
    for each in records.values():
        found |= zip(each["key"].to_pylist(), each["value"].to_pylist(), strict=True)
    assert found == last
    assert sum(each.num_rows for each in records.values()) == 3 * len(last) == sum(ends) - 1
    manifest = json.loads((tmp_path / "to" / MANIFEST).read_text())
    assert [each["records"] for each in manifest["log_partitions"]] == [each.records for each in export.log_partitions]


def test_configurations_are_not_exported_because_the_store_lacks_their_values(tmp_path: Path) -> None:
    store = log_store(
        tmp_path / "store",
        1,
        [capture_log("4.2.0-connect-altered", "connect-configs")],
        topic_kind=TopicKind.CONNECT_CONFIGS,
    )
    with pytest.raises(StoreMismatch, match="holds a topic of the kind connect-configs, but this command needs"):
        export_segments(StateReader(str(store)), tmp_path / "to")
    assert not (tmp_path / "to").exists()
