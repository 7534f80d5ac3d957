"""`offsets.topic.compression.codec`: the codec of the log's files and of exported batches."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.common.config import load_settings
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.owned_store import OwnedStore

if TYPE_CHECKING:
    from pathlib import Path

#: Bits 0-2 of a batch's attributes in Kafka's message format, by the codec's name.
KAFKA = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
#: Codecs in the footer of a Parquet file, as Arrow names them.
PARQUET = {"none": "UNCOMPRESSED", "gzip": "GZIP", "snappy": "SNAPPY", "lz4": "LZ4", "zstd": "ZSTD"}


def codecs_of(log: Path) -> set[str]:
    """The codecs in the footers of a table's Parquet files."""
    footers = [pq.read_metadata(file) for file in log.glob("*.parquet")]
    assert footers
    return {footer.row_group(0).column(at).compression for footer in footers for at in range(footer.num_columns)}


def batch_codecs(segments: Path) -> set[int]:
    """The codec bits of all batches in segment files: an int64 offset and an int32 length precede each batch."""
    found = set()
    for file in segments.glob("*/*.log"):
        data, at = file.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from(">i", data, at + 8)
            (attributes,) = struct.unpack_from(">h", data, at + 21)
            found.add(attributes & 0x07)
            at += 12 + length
    return found


def committed(store: Path, config: Path) -> None:
    """Commit offsets of two groups through a coordinator, in two appends."""
    OwnedStore.create(store, 2)
    with Coordinator.open(store, load_settings(config), housekeeping=False) as coordinator:
        for group in ("first", "second"):
            coordinator.commit_offsets(group, {("topic", number): number for number in range(100)})


@pytest.mark.parametrize("codec", KAFKA)
def test_the_codec_is_that_of_appends_and_exported_batches(place: Path, tmp_path: Path, codec: str) -> None:
    store, config = place / "store", tmp_path / "offsets.toml"
    config.write_text(f'[log]\noffsets.topic.compression.codec = "{codec}"\n', encoding="utf-8")
    committed(store, config)
    assert codecs_of(store / "log") == {PARQUET[codec]}
    export = ["export-segments", "--config", str(config), "--store", str(store), "--to"]
    assert main([*export, str(tmp_path / "segments")]) == 0
    assert batch_codecs(tmp_path / "segments") == {KAFKA[codec]}
    for option, bits in KAFKA.items():
        assert main([*export, str(tmp_path / option), "--codec", option]) == 0
        assert batch_codecs(tmp_path / option) == {bits}


def test_without_the_setting_appends_are_snappy_and_exports_uncompressed(place: Path, tmp_path: Path) -> None:
    store, config = place / "store", tmp_path / "offsets.toml"
    config.write_text("", encoding="utf-8")
    committed(store, config)
    assert codecs_of(store / "log") == {"SNAPPY"}
    assert main(["export-segments", "--config", str(config), "--store", str(store), "--to", str(tmp_path / "to")]) == 0
    assert batch_codecs(tmp_path / "to") == {0}
