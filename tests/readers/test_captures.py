"""Published tables as deltalake and PyArrow read them: the brokers' own answers, and the specification's replay.

No code of this project reads a table here.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from offsets_pipeline.semantics.partitioning import partition_for
from tests.compare import compare, compared_offsets
from tests.logs import CAPTURE_NAMES, LOST_BY_BROKER, capture_partitions, oracle
from tests.published import KEYS, read
from tests.readers.stores import captured, published_store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.published import Row

each_capture = pytest.mark.parametrize("capture", CAPTURE_NAMES)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A store for each capture, folded at once and published."""
    folder = tmp_path_factory.mktemp("published")
    return {name: published_store(folder / name, captured(name), 1) for name in CAPTURE_NAMES}


@cache
def rows(store: Path) -> dict[str, list[Row]]:
    return {name: read(store, name) for name in KEYS}


def described(tables: Mapping[str, list[Row]], offsets_partitions: int) -> dict[str, Any]:
    """Published rows as the document that `tests/compare.py` compares with a broker's answers."""
    groups: dict[str, Any] = {}
    for row in sorted(tables["consumer_groups"], key=lambda row: bool(row["misplaced"]), reverse=True):
        home = partition_for(row["group_id"], offsets_partitions)  # where the broker looks for the group (R1)
        assert row["misplaced"] == (row["log_partition"] != home)
        group = {name: row[name] for name in ("state", "protocol_type", "assignor", "group_epoch")}
        named = {"type": row["group_type"], "log_partition": home}
        groups[row["group_id"]] = {**group, **named, "members": {}, "offsets": []}
    for row in tables["group_members"]:
        member = {name: row[name] for name in ("member_id", "instance_id", "client_id")}
        known = groups[row["group_id"]]["members"].setdefault(
            row["member_id"], {**member, "host": row["client_host"], "assignment": []}
        )
        if row["topic"] is not None:
            known["assignment"].append(f"{row['topic']}-{row['partition']}")
    for row in tables["current_offsets"]:
        offset = {name: row[name] for name in ("topic", "partition", "leader_epoch", "metadata")}
        groups[row["group_id"]]["offsets"].append({**offset, "offset": row["committed_offset"]})
    return {"groups": {name: {**each, "members": list(each["members"].values())} for name, each in groups.items()}}


@each_capture
def test_rows_are_what_the_broker_answered(published: dict[str, Path], capture: str) -> None:
    assert compared_offsets(oracle(capture)) > 0
    found = described(rows(published[capture]), capture_partitions(capture))
    assert compare(found, oracle(capture)) == LOST_BY_BROKER.get(capture, [])


@pytest.mark.parametrize(
    "capture", [name for name in CAPTURE_NAMES if isinstance(oracle(name).get("transactions"), list)]
)
def test_unstable_offsets_are_of_the_transactions_that_the_broker_calls_ongoing(
    published: dict[str, Path], capture: str
) -> None:  # R17
    ongoing = {each["producer_id"] for each in oracle(capture)["transactions"] if each["state"] == "Ongoing"}
    assert {row["producer_id"] for row in rows(published[capture])["unstable_offsets"]} == ongoing


@each_capture
def test_rows_are_what_the_specification_replays(published: dict[str, Path], capture: str) -> None:
    assert rows(published[capture]) == captured(capture).specified()


@each_capture
def test_tables_need_nothing_of_their_readers(published: dict[str, Path], capture: str) -> None:
    for name in KEYS:
        protocol = DeltaTable(published[capture] / name).protocol()
        assert (protocol.min_reader_version, protocol.reader_features) == (1, None)
        assert (protocol.min_writer_version, protocol.writer_features) == (2, None)
