"""Paths as Hadoop and as Arrow name them."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.errors import ConfigError
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.store.delta.filesystems import (
    absolute_path,
    arrow_folder,
    encoded_uri,
    open_path,
    resolved_folder,
    without_file_scheme,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/data/a store/100%/log", "/data/a store/100%/log"),
        ("s3a://bucket/a store/log", "s3://bucket/a%20store/log"),
        ("s3://bucket", "s3://bucket"),
        ("hdfs://name:8020/100%/a?b#c", "hdfs://name:8020/100%25/a%3Fb%23c"),
        ("abfss://container@account.dfs.core.windows.net/s", "abfss://container@account.dfs.core.windows.net/s"),
    ],
)
def test_uri_that_libraries_take(path: str, expected: str) -> None:
    assert encoded_uri(path) == expected


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/data/a store", "/data/a store"),
        ("data", "data"),
        ("file:/data/a%20store/", "/data/a store"),
        ("file:///data/s", "/data/s"),
        ("s3a://bucket/a store/", "s3a://bucket/a store"),
        ("s3://bucket/a%20store", "s3://bucket/a store"),
        ("/data/a:/b%20c", "/data/a:/b%20c"),
    ],
)
def test_folder_that_a_user_names(location: str, expected: str) -> None:
    assert arrow_folder(location) == expected


def test_folder_is_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to("store")
    monkeypatch.chdir(tmp_path)
    store = str(tmp_path / "store")
    assert {resolved_folder(each) for each in ("store/", "x/../store", "link", f"file:{store}/")} == {store}
    assert resolved_folder("s3a://bucket/a%20store/") == "s3a://bucket/a store"


@pytest.mark.parametrize("location", ["s3://b/x/../a", "s3a://b/./a", "s3n://b//a", "gs:///a", "abfs://c@h/a/%2E%2E"])
def test_names_that_clients_of_object_stores_read_differently_are_refused(location: str) -> None:
    with pytest.raises(ConfigError, match=f"wrong location {location}: names in an object store are not empty"):
        arrow_folder(location)


@pytest.mark.parametrize(
    "location", ["s3://my bucket/a", "s3://bücket/a", "s3://b?c/a", "s3a://key:secret@b/a", "s3://b:9000/a"]
)
def test_a_bucket_that_clients_of_s3_read_differently_is_refused_without_its_secret(location: str) -> None:
    said = re.escape(location.replace("key:secret", "***"))
    with pytest.raises(ConfigError, match=f"wrong location {said}: a bucket's name has letters, digits,"):
        arrow_folder(location)


@pytest.mark.parametrize(
    "location", ["s3://b/a%2541", "gs://b/a%252Fb/c", "s3://b/a%00", "s3://b/a\tb", "abfs://c@h/a\nb"]
)
def test_a_name_that_some_clients_decode_again_or_refuse_is_refused(location: str) -> None:
    with pytest.raises(ConfigError, match="names in an object store have no control character, and no percent sign"):
        arrow_folder(location)
    assert arrow_folder("s3://b/100%25") == "s3://b/100%"


@pytest.mark.parametrize("location", ["s3:/bucket/store", "s3://", "s3a:///", "hdfs:/data", "file:"])
def test_a_uri_that_lacks_a_slash_or_its_bucket_is_no_local_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str
) -> None:
    """As `s3://$BUCKET` without that variable: a store would be made below the working directory."""
    monkeypatch.chdir(tmp_path)
    for use in (arrow_folder, resolved_folder, absolute_path, partial(OwnedStore.create, offsets_partitions=2)):
        with pytest.raises(ConfigError, match=rf"^wrong location {location}: "):
            use(location)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("file:/data/a store/100%20", "/data/a store/100%20"),
        ("file://host/data", "/data"),
        ("s3a://bucket/a store", "s3a://bucket/a store"),
    ],
)
def test_folder_that_spark_names_is_not_encoded(folder: str, expected: str) -> None:
    assert without_file_scheme(folder) == expected


@pytest.mark.parametrize("name", ["pc%41", "a%20b", "x%ff"])
def test_a_store_whose_path_deltalake_decodes_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    for inner in (name, f"{name}/store"):
        with pytest.raises(ConfigError, match=f"{inner}: a store's path has no percent sign before two hexadecimal"):
            OwnedStore.create(tmp_path / inner, 2)
        with pytest.raises(ConfigError, match=f"wrong location .*{name}"):
            OwnedStore.open(tmp_path / inner)
    assert [*tmp_path.rglob("*")] == [tmp_path / name]
    assert OwnedStore.create(tmp_path / "100% of%zz", 2) == OwnedStore.open(tmp_path / "100% of%zz")


def test_a_store_whose_path_deltalake_splits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a store's path has no backslash; rename the folder"):
        OwnedStore.create(tmp_path / "back\\slash", 2)
    assert [*tmp_path.rglob("*")] == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("~/store", "~/store: the shell did not expand the ~; write the whole path"),
        ("~", "~: the shell did not expand the ~; write the whole path"),
        ("file:store", r"file:store: neither a path nor a URI; write \./file:store, or ://"),
        ("s3:bucket", r"s3:bucket: neither a path nor a URI; write \./s3:bucket, or ://"),
    ],
)
def test_a_store_that_deltalake_looks_for_elsewhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    uses: list[Any] = [partial(OwnedStore.create, offsets_partitions=2), OwnedStore.open, StateReader]
    for use in uses:
        with pytest.raises(ConfigError, match=f"wrong location {reason}"):
            use(name)
    assert [*tmp_path.iterdir()] == []
    assert OwnedStore.create(f"./{name}", 2) == OwnedStore.open(tmp_path / name)
    assert StateReader(f"./{name}").properties.offsets_partitions == 2


def test_path_is_opened_by_itself_and_as_a_uri(tmp_path: Path) -> None:
    folder = tmp_path / "a store"
    folder.mkdir()
    for name in (str(folder), f"file://{folder}"):
        system, inner = open_path(name)
        assert (inner, system.get_file_info(inner).base_name) == (str(folder), "a store")
