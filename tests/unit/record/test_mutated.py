"""Segments with anything in them and right checksums: read, replayed and described, or put aside; and soon."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from offsets_pipeline.errors import OffsetsError
from offsets_pipeline.fold.state.merge_on_read import RECORDS
from offsets_pipeline.fold.state.published_rows import in_key_order
from offsets_pipeline.ingest.log_columns import log_columns
from offsets_pipeline.kafka.record.commit_columns import CommitColumns
from offsets_pipeline.kafka.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.kafka.record.decode import decode_key, decode_value
from offsets_pipeline.kafka.record.segment import read_segment
from offsets_pipeline.semantics.columnar_replay import INPUT_SCHEMA, Replay
from offsets_pipeline.semantics.compaction import compact_early
from offsets_pipeline.semantics.coordinator_semantics import MODERN
from offsets_pipeline.semantics.group_facts import described
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from tests.mutation import Mutator, peak_mib, seeds, soon

if TYPE_CHECKING:
    from collections.abc import Callable

FEW, MANY = 2_500, 100_000
GROWTH_MIB = 1024  # of the process: less than what a bomb of a few kilobytes becomes
PARTITIONS = 5
TOGETHER = 25  # segments that are folded at once, each a log partition


def landed(data: bytes, log_partition: int) -> tuple[str, pa.Table | None]:
    """Ingest a segment; returns the outcome (the name of an error, or a word) and the rows."""
    try:
        reader = read_segment(data, source="mutated.log", max_records=65_536)
        tables = [
            log_columns(batch, log_partition, "mutated.log", StoreProperties(MIRRORED, 5)) for batch in reader.batches()
        ]
    except OffsetsError as error:
        return type(error).__name__, None
    for damage in reader.damage:
        assert damage.reason
        assert 0 <= damage.position <= damage.position + damage.length <= len(data)
    rows = pa.Table.from_batches(tables) if tables else None
    if rows is None or not rows.num_rows:
        return "nothing", None
    offsets = rows["record_offset"].to_pylist()
    assert offsets == sorted(set(offsets))
    assert offsets[0] >= 0
    assert reader.end_offset is not None
    assert offsets[-1] < reader.end_offset < 2**63
    return decoded_rows(rows), rows


def decoded_rows(rows: pa.Table) -> str:
    """Decode each record, and assert that the columns decode the same commits; returns the outcome."""
    commits = []
    outcome = "read"
    for key, value in zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True):
        valid = True
        try:
            decoded = decode_key(key)
            if value is not None:
                decode_value(decoded.record_type, value)
        except (CorruptRecord, UnknownRecordType) as error:
            outcome = type(error).__name__
            valid = False
        if key is not None and key[:2] in (b"\0\0", b"\0\1"):
            commits.append((key, value, valid))
    if commits:
        keys, values, valid_rows = zip(*commits, strict=True)
        found = CommitColumns(pa.array(keys, pa.binary()), pa.array(values, pa.binary()))
        for key, columns_say, rows_say in zip(keys, found.valid.tolist(), valid_rows, strict=True):
            if key[:2] == b"\0\1":  # the columns also hold R7: key version 0 goes with value version 0
                assert columns_say == rows_say
    return outcome


def replayed(rows: pa.Table, *, compacted: bool) -> None:
    """Replay these rows, and describe their groups."""
    columns = {name: rows[name] for name in rows.column_names}
    columns |= {
        "backfill": pa.repeat(pa.scalar(value=False), rows.num_rows),
        "records": pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows),
    }
    table = pa.table([columns[field.name].cast(field.type) for field in INPUT_SCHEMA], schema=INPUT_SCHEMA)
    replay = Replay(PARTITIONS)
    replay.add(compact_early(table, {}) if compacted else table)
    effects = replay.effects()
    for table in (effects.pending, effects.offsets):
        table.validate(full=True)
    records = pa.concat_tables([effects.group_records, effects.group_commits])
    records.validate(full=True)
    described(in_key_order(RECORDS, records), PARTITIONS, MODERN).validate(full=True)


def read_mutated(count: int, seed: int, record: Callable[[str, object], None]) -> None:
    mutator = Mutator(seed, seeds())
    outcomes: Counter[str] = Counter()
    before, slowest, size = peak_mib(), 0.0, 0
    for first in range(0, count, TOGETHER):
        tables = []
        for number in range(first, first + TOGETHER):
            data = mutator.segment()
            size += len(data)
            with soon(f"segment {number} of seed {seed}") as took:
                outcome, rows = landed(data, number - first)
            outcomes[outcome] += 1
            slowest = max(slowest, *took)
            if rows is not None:
                tables.append(rows)
        with soon(f"segments {first} to {first + TOGETHER} of seed {seed}, folded") as took:
            replayed(pa.concat_tables(tables), compacted=first // TOGETHER % 2 == 0)
        slowest = max(slowest, *took)
    grown = peak_mib() - before
    record("segments", f"{count}: {mutator.changes} changes, {size} bytes, seed {seed}")
    record("outcomes", f"{dict(outcomes)}, slowest {slowest:.3f} s, memory grown by {grown} MiB")
    assert outcomes["read"] > count // 10  # so most of what it reads is still a log
    assert outcomes["CorruptRecord"] > count // 20
    assert grown < GROWTH_MIB


def test_mutated_segments_are_read_or_refused(record_property: Callable[[str, object], None]) -> None:
    read_mutated(FEW, 4, record_property)


@pytest.mark.long
def test_very_many_mutated_segments_are_read_or_refused(
    record_property: Callable[[str, object], None], turn_seed: int
) -> None:
    read_mutated(MANY, turn_seed, record_property)
