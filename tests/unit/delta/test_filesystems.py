"""Paths as Hadoop and as Arrow name them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.store.delta.filesystems import arrow_folder, arrow_path, open_path

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("scheme", "authority", "path", "expected"),
    [
        (None, None, "/data/a store/log", "/data/a store/log"),
        ("file", None, "/data/a store/100%/log", "/data/a store/100%/log"),
        ("s3a", "bucket", "/a store/log", "s3://bucket/a%20store/log"),
        ("s3", "bucket", "/log", "s3://bucket/log"),
        ("hdfs", "name:8020", "/100%/log", "hdfs://name:8020/100%25/log"),
    ],
)
def test_arrow_path(scheme: str | None, authority: str | None, path: str, expected: str) -> None:
    assert arrow_path(scheme, authority, path) == expected


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/data/a store", "/data/a store"),
        ("data", "data"),
        ("file:/data/a%20store/", "/data/a store"),
        ("file:///data/s", "/data/s"),
        ("s3a://bucket/a store/", "s3://bucket/a%20store"),
        ("/data/a:/b%20c", "/data/a:/b%20c"),
    ],
)
def test_folder_that_spark_names(location: str, expected: str) -> None:
    assert arrow_folder(location) == expected


def test_path_is_opened_by_itself_and_as_a_uri(tmp_path: Path) -> None:
    folder = tmp_path / "a store"
    folder.mkdir()
    for name in (str(folder), folder.as_uri()):
        system, inner = open_path(name)
        assert (inner, system.get_file_info(inner).base_name) == (str(folder), "a store")
