"""An owned store for each test: its tables are made once, and copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.coordinator.owned_store import OwnedStore
from tests.places import copied
from tests.unit.coordinator.stores import opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from offsets_pipeline.coordinator.coordinator import Coordinator

PARTITIONS = 3


@pytest.fixture(scope="session")
def empty_owned_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty owned store of three log partitions: take a copy."""
    return _created(tmp_path_factory.mktemp("owned") / "store")


def _created(folder: Path) -> Path:
    OwnedStore.create(folder, PARTITIONS)
    return folder


@pytest.fixture
def store(empty_owned_store: Path, place: Path) -> Path:
    """An empty owned store of three log partitions."""
    return copied(empty_owned_store, place / "a store")


@pytest.fixture
def coordinator(store: Path) -> Iterator[Coordinator]:
    """A coordinator of that store, with all of it loaded."""
    with opened(store) as coordinator:
        yield coordinator
