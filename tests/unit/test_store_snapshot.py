"""A store as of one version of each table: versions that stay, and the incarnations of its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from offsets_pipeline.errors import NoSuchStore, NotAStore
from offsets_pipeline.questions.history.log_history import LogHistory
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.store.delta.properties import IN_SCHEMA, MIRRORED, StoreProperties
from offsets_pipeline.store.delta.schemas import FOLD_PROGRESS, LOG, LOG_PARTITIONS, TOPICS
from offsets_pipeline.store.delta.store_folder import create_tables, set_properties
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.store_snapshot import LogIncarnation, StoreSnapshot, log_incarnations

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.store.delta.snapshot import Snapshot

PROPERTIES = StoreProperties(MIRRORED, 3)


def notes(*rows: dict[str, Any]) -> pa.Table:
    fields = {"start_offset": 0, "end_offset": 0, "updated_at": 0}
    return pa.Table.from_pylist([fields | row for row in rows], LOG_PARTITIONS.arrow_schema())


def note(number: int, at: int, end: int, **more: object) -> dict[str, Any]:
    return {"log_incarnation": number, "log_partition": at, "end_offset": end, **more}


def append(store: StoreSnapshot, table: str, rows: pa.Table) -> None:
    folder = TableFolder(store.folder_of(table).folder, store.folder_of(table).table)
    folder.commit([folder.write_file(rows)], seen=folder.snapshot())


@pytest.fixture
def store(place: Path) -> StoreSnapshot:
    create_tables(str(place / "s"), PROPERTIES)
    return StoreSnapshot(str(place / "s"))


def test_log_without_notes_has_the_first_incarnation() -> None:
    assert log_incarnations(notes(), PROPERTIES) == [LogIncarnation(0, 3)]


def test_each_incarnation_has_its_own_number_of_log_partitions() -> None:
    first, second = log_incarnations(
        notes(
            note(1, 0, 9, complete_since=7, start_offset=2),
            note(1, 1, 4, complete_since=8, cleaned_to=3),
            note(0, 0, 5),
        ),
        PROPERTIES,
    )
    assert first == LogIncarnation(0, 3, {0: 0}, {0: 5})
    assert not first.is_followed
    assert second == LogIncarnation(1, 2, {0: 2, 1: 0}, {0: 9, 1: 4}, {1: 3}, {0: 7, 1: 8})
    assert second.is_followed


def test_versions_stay_until_the_store_is_opened_again(store: StoreSnapshot) -> None:
    assert store.current_log.number == 0
    store.table(TOPICS.name)
    append(store, LOG_PARTITIONS.name, notes(note(2, 0, 5)))
    append(store, TOPICS.name, pa.Table.from_pylist([{"topic_id": "id", "topic": "t"}], TOPICS.arrow_schema()))
    history = LogHistory(store)
    assert (store.current_log.number, store.table(TOPICS.name).version) == (0, 0)
    assert (history.current_log.number, history.topic_names()) == (0, {})
    assert history.opened_ms == store.opened_ms
    again = LogHistory(store.location)
    assert (again.current_log.number, again.topic_names()) == (2, {"id": "t"})


def test_notes_are_read_before_the_log_that_has_their_records(
    store: StoreSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    snapshot = TableFolder.snapshot

    def noted(self: TableFolder, version: int | None = None) -> Snapshot:
        read.append(self.table.name)
        return snapshot(self, version)

    monkeypatch.setattr(TableFolder, "snapshot", noted)
    StoreSnapshot(store.location)
    assert read == ["log_partitions", "log"]


def test_semantics_and_number_of_log_partitions_are_those_of_the_state(store: StoreSnapshot) -> None:
    assert (store.coordinator_semantics, store.offsets_partitions) == (MODERN, 3)
    nothing = {"log_incarnation": 0, "incarnation": 1, "coordinator_semantics": CoordinatorSemantics.CLASSIC.value}
    counts = {each.name: 0 for each in FOLD_PROGRESS.columns if not each.nullable} | nothing
    rows = [counts | {"log_partition": at, "pending": [], "versions": []} for at in range(2)]
    append(store, FOLD_PROGRESS.name, pa.Table.from_pylist(rows, FOLD_PROGRESS.arrow_schema()))
    again = StoreSnapshot(store.location)
    assert (again.coordinator_semantics, again.offsets_partitions) == (CoordinatorSemantics.CLASSIC, 2)


def test_tables_of_a_schema_are_in_folders_of_their_names_there(store: StoreSnapshot) -> None:
    log = store.folder_of(LOG.name)
    set_properties(log, {IN_SCHEMA: "true"}, "a test")
    for name, in_schema in (("current_offsets", "published_current_offsets"), (TOPICS.name, "topics")):
        assert StoreSnapshot(store.location).folder_of(name).folder == f"{store.location}/{in_schema}"
    assert StoreSnapshot(store.location).cluster == "s"  # by default the name of its folder


def test_a_folder_without_a_store_is_refused(place: Path) -> None:
    with pytest.raises(NoSuchStore, match="no store at"):
        StoreSnapshot(str(place / "none"))
    (place / "other").mkdir()
    (place / "other" / "file").write_text("")
    with pytest.raises(NotAStore, match="has no table named log"):
        StoreSnapshot(str(place / "other"))
