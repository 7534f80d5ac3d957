"""Tables of the state belong together: commands refuse one that does not, and `offsets reload` makes them anew."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable

from offsets_pipeline.fold.state.publishing import publish
from tests.folded_stores import new_store, opened
from tests.logs import in_batches
from tests.places import copied
from tests.programs import assert_refused, in_process
from tests.published import KEYS, read
from tests.readers.stores import captured, fold
from tests.spark.stores import CLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.programs import Done

pytestmark = pytest.mark.usefixtures("spark")

LOG = captured("4.2.0-txn-open")
FACTS = ["offset_facts", "group_facts", "group_records"]
MERGED = ["current_offsets", "consumer_groups"]
#: Questions do not read them: they are made of the others.
WHOLE = ["group_members", "unstable_offsets"]
#: With times as they are: an age may change between two answers.
QUESTIONS = [["describe", "--all-groups"], ["groups", "--absolute"], ["lag", "--absolute"]]
UPKEEP = [["verify"], ["verify", "--independent"], ["maintain"], ["reload", "--partition", "0"]]
MANY_RECORDS = 1_000_000


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A store, folded in four batches, of which three are published; and its copy from after the second."""
    folder = tmp_path_factory.mktemp("stores")
    store = new_store(folder / "store", LOG.offsets_partitions, LOG.semantics)
    batches = in_batches(LOG.rows, 4)
    for batch in batches[:2]:
        fold(store, batch)
        assert publish(store, CLOCK)
    copied(folder / "store", folder / "older")
    fold(store, batches[2])
    assert publish(store, CLOCK)
    fold(store, batches[3])
    return folder / "store", folder / "older"


def run(store: Path, command: str, *options: str) -> Done:
    return in_process(store.parent, command, "--store", store, *options)


def newest_commit(table: Path) -> Path:
    return max((table / "_delta_log").glob("*.json"))


Damage = Callable[[Path, Path, str], None]


def lose_a_commit(store: Path, older: Path, table: str) -> None:
    newest_commit(store / table).unlink()


def restore_alone(store: Path, older: Path, table: str) -> None:
    shutil.rmtree(store / table)
    shutil.copytree(older / table, store / table)


def delete(store: Path, older: Path, table: str) -> None:
    DeltaTable(store / table).delete()


def roll_back(store: Path, older: Path, table: str) -> None:
    DeltaTable(store / table).restore(DeltaTable(store / table).version() - 1)


SAID: dict[Damage, str] = {
    lose_a_commit: r"is at version \d+, and the progress of its fold belongs to version \d+: it was restored or copied "
    r"alone, or lost a commit",
    restore_alone: r"is at version \d+, and the progress of its fold belongs to version \d+: it was restored or copied "
    r"alone, or lost a commit",
    delete: r"was changed by another program: version \d+, DELETE",
    roll_back: r"was changed by another program: version \d+, RESTORE",
}
OLD_PROGRESS = r"is older than \S+/\w+_facts: it was restored or copied alone, or lost a commit"


def assert_names(done: Done, store: Path, table: str, said: str) -> None:
    """It failed with one line, which names the table and the way back."""
    assert_refused(done, f"the table {store}/{table} ")
    way_back = rf"make the state again from the log: offsets reload --store {re.escape(str(store))}"
    assert re.fullmatch(rf"offsets: error: the table \S+ {said}; {way_back}\n", done.stderr), done.stderr


def assert_mended(store: Path, answer: str) -> None:
    """`reload` makes the state again, for questions and for other engines."""
    assert run(store, "reload").returncode == 0
    assert run(store, "describe", "--all-groups").stdout == answer
    assert run(store, "verify", "--independent").stdout.startswith("equal: ")
    assert {name: read(store, name) for name in KEYS} == LOG.specified()


def damages() -> Iterator[object]:
    """Each table with a lost commit, and one of each kind with each damage; the others for `make test-long`."""
    for damage in SAID:
        for table in (*FACTS, *MERGED, *WHOLE):
            is_usual = damage is lose_a_commit or table in ("offset_facts", "current_offsets", "group_members")
            yield pytest.param(table, damage, marks=() if is_usual else pytest.mark.long)


@pytest.mark.parametrize(("table", "damage"), list(damages()))
def test_table_that_does_not_belong_is_named_and_mended(
    stores: tuple[Path, Path], tmp_path: Path, table: str, damage: Damage
) -> None:
    whole, older = stores
    store = copied(whole, tmp_path / "store")
    answers = {question[0]: run(store, *question).stdout for question in QUESTIONS}
    damage(store, older, table)
    for question in QUESTIONS if damage is lose_a_commit else QUESTIONS[:1]:
        done = run(store, *question)
        if table in WHOLE:
            assert (done.returncode, done.stdout) == (0, answers[question[0]])
        else:
            assert_names(done, store, table, SAID[damage])
    for command in UPKEEP:
        assert_names(run(store, *command), store, table, SAID[damage])
    assert_mended(store, answers["describe"])


def test_progress_that_was_restored_alone_is_named_and_mended(stores: tuple[Path, Path], tmp_path: Path) -> None:
    whole, older = stores
    store = copied(whole, tmp_path / "store")
    answer = run(store, "describe", "--all-groups").stdout
    restore_alone(store, older, "fold_progress")
    for command in [*QUESTIONS, *UPKEEP]:
        assert_names(run(store, *command), store, "fold_progress", OLD_PROGRESS)
    assert_mended(store, answer)


def test_progress_from_before_a_reload_is_named_and_mended(stores: tuple[Path, Path], tmp_path: Path) -> None:
    """Its incarnation is gone."""
    whole, _ = stores
    store = copied(whole, tmp_path / "store")
    answer = run(store, "describe", "--all-groups").stdout
    older = copied(store, tmp_path / "older")
    assert run(store, "reload").returncode == 0
    assert run(store, "maintain").returncode == 0
    restore_alone(store, older, "fold_progress")
    for command in [*QUESTIONS, *UPKEEP]:
        assert_names(run(store, *command), store, "fold_progress", OLD_PROGRESS)
    assert_mended(store, answer)


def test_progress_that_lost_a_fold_leaves_exact_answers(stores: tuple[Path, Path], tmp_path: Path) -> None:
    """The tables are as after a fold that died: questions fold the rest of the log, and so does the next fold."""
    whole, older = stores
    store = copied(whole, tmp_path / "store")
    answers = [run(store, *question).stdout for question in QUESTIONS]
    lose_a_commit(store, older, "fold_progress")
    assert [run(store, *question).stdout for question in QUESTIONS] == answers
    fold(opened(store), [])
    assert [run(store, *question).stdout for question in QUESTIONS] == answers
    assert publish(opened(store), CLOCK)
    assert {name: read(store, name) for name in KEYS} == LOG.specified()


@pytest.mark.parametrize("table", ["offset_facts", "current_offsets"])
def test_table_does_not_belong_until_a_reload_has_ended(
    stores: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """Reloads that die append to a table that lost a commit: it has as many as before."""
    whole, older = stores
    store = copied(whole, tmp_path / "store")
    answer = run(store, "describe", "--all-groups").stdout
    lose_a_commit(store, older, table)
    with monkeypatch.context() as patch:
        patch.setattr("offsets_pipeline.fold.state.fold._Fold._swap", Mock(side_effect=KeyboardInterrupt))
        assert [run(store, "reload").returncode for _ in range(2)] == [130, 130]
    named = r"is at version \d+, and the progress of its fold belongs to a later one, and a reload has not ended: .*"
    for command in (QUESTIONS[0], *UPKEEP):
        assert_names(run(store, *command), store, table, named)
    assert_mended(store, answer)


@pytest.mark.streaming
@pytest.mark.slow  # a stream for each table
def test_fold_refuses_a_table_that_does_not_belong(stores: tuple[Path, Path], tmp_path: Path) -> None:
    whole, older = stores
    for table in [*FACTS, *MERGED, *WHOLE, "fold_progress"]:
        store = copied(whole, tmp_path / table / "store")
        restore_alone(store, older, table)
        done = run(store, "fold", "--available-now")
        said = OLD_PROGRESS if table == "fold_progress" else SAID[restore_alone]
        lines = done.stderr.splitlines(keepends=True)
        assert_names(CompletedProcess(done.args, done.returncode, "", lines[-1]), store, table, said)
