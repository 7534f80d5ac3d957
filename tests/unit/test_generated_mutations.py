"""Mutants of a small module, and the results of a run: only a failed assertion counts as noticed."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from scripts import generated_mutations, mutation_runs, tested_lines
from scripts.generated_mutations import Mutants
from scripts.mutation_runs import BROKEN, NOTICED, PACKAGE, RAISED, SURVIVED, MutatedProject

if TYPE_CHECKING:
    from pathlib import Path

MODULE = '''"""ü, which takes two bytes."""
LIMIT: int | None = 4096

def first(found: list[int] | None = None) -> int:
    if found is None or len(found) < 2:  # R12
        raise ValueError("none" + "at all")
    found.clear()
    return found[0] + 1

class Found:
    def __init__(self):
        self.at = None

    def move(self):
        self.at = None
'''
EXPECTED = {
    ("rule", "found is None or len(found) < 2", "False"),
    ("rule", "found is None", "False"),
    ("rule", "len(found) < 2", "False"),
    ("boolean", "or", "and"),
    ("comparison", "is", "is not"),
    ("comparison", "<", ">="),
    ("boundary", "<", "<="),
    ("arithmetic", "2", "3"),
    ("statement", 'raise ValueError("none" + "at all")', "pass"),
    ("statement", "found.clear()", "pass"),
    ("statement", "self.at = None", "pass"),  # not in `__init__`, where it would only be an error
    ("arithmetic", "0", "1"),
    ("arithmetic", "+", "-"),
    ("arithmetic", "1", "2"),
}


CHOICE = """
LIMIT = 2

def shared() -> int:
    return LIMIT * 1

def second(flag: bool) -> int:
    if (
        flag
        and not bool(
            False
        )
    ):
        return 9
    return 0
"""
TESTS_OF_CHOICE = """
import pytest
from offsets_pipeline import a

@pytest.fixture(scope="module")
def shared():
    return a.shared()

def test_shared_once(shared):
    assert shared == 2

def test_shared_again(shared):
    assert shared == 2

@pytest.mark.parametrize("odd", ["a::b[c] - d", "\u00fc"])
def test_second(odd):
    assert a.second(False) == 0

def test_fails_without_a_mutant():
    assert a.shared() == a.second(True) == 3

@pytest.mark.spark
def test_of_spark():
    assert a.second(True) == 9
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one module."""
    (tmp_path / PACKAGE).mkdir()
    (tmp_path / PACKAGE / "__init__.py").touch()
    (tmp_path / PACKAGE / "a.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "scripts").mkdir()
    for plugin in (mutation_runs.__file__, tested_lines.__file__):
        shutil.copy2(plugin, tmp_path / "scripts")
    monkeypatch.setattr(generated_mutations, "ROOT", tmp_path)
    return tmp_path


def test_mutants_of_a_module(project: Path) -> None:
    source = (project / PACKAGE / "a.py").read_bytes()
    found = Mutants("a.py").found
    assert {(each.kind, source[each.start : each.end].decode(), each.new) for each in found} == EXPECTED
    assert len(found) == len(EXPECTED)
    (removed,) = (each for each in found if "clear" in str(each))
    assert removed.source() == MODULE.replace("found.clear()", "pass")


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("def answer(): return 42", SURVIVED),
        ("def answer(): return 41", NOTICED),
        ("def answer(): return {}[41]", RAISED),
        ("def answer() return 42", BROKEN),
        ("def question(): return 42", BROKEN),
    ],
)
def test_results(project: Path, source: str, result: str) -> None:
    (project / "test_a.py").write_text(
        f"from {PACKAGE}.a import answer\n\ndef test_answer():\n    assert answer() == 42\n"
    )
    before = (project / PACKAGE / "a.py").read_text(encoding="utf-8")
    assert MutatedProject(project).outcome("a.py", source, ["test_a.py"]).result == result
    assert (project / PACKAGE / "a.py").read_text(encoding="utf-8") == before


def test_after_exceptions_a_run_goes_on_to_the_first_failed_assertion(project: Path) -> None:
    tests = [f"def test_{at}():\n    raise KeyError" for at in range(9)]
    tests += ["def test_noticing():\n    assert False", "def test_behind():\n    assert False"]
    (project / "test_a.py").write_text("\n\n".join(tests))
    run = MutatedProject(project).pytest(["-p", "scripts.mutation_runs", "-rf", "test_a.py"])
    assert "test_noticing - assert False" in run.stdout
    assert "10 failed" in run.stdout  # the last did not run
    assert MutatedProject(project).tested(["test_a.py"]) == (NOTICED, "test_a.py::test_noticing")


def test_tests_of_a_mutant_run_its_line(project: Path) -> None:
    (project / PACKAGE / "a.py").write_text(CHOICE, encoding="utf-8")
    for folder in ("tests/unit", "tests/property"):
        (project / folder).mkdir(parents=True)
    (project / "pyproject.toml").write_text("[tool.pytest.ini_options]\n", encoding="utf-8")
    (project / "tests/unit/test_a.py").write_text(TESTS_OF_CHOICE, encoding="utf-8")
    copy = MutatedProject(project)
    tested = generated_mutations.recorded(copy, project / "record")

    mutants = {str(each).partition(" ")[2]: each for each in Mutants("a.py").found}

    def tests(mutant: str) -> list[str]:
        return [each.partition("::")[2] for each in generated_mutations.tests_of(mutants[mutant], tested)]

    second = [r"test_second[a::b[c] - d]", r"test_second[\xfc]"]
    of_fixture = ["test_shared_again", "test_shared_once"]
    of_constant = tests("'2' -> '3'")  # the tests of the lines that name it, and those that import the module
    assert (sorted(of_constant[:2]), sorted(of_constant[2:])) == (of_fixture, sorted(second))
    assert sorted(tests("'*' -> '//'")) == of_fixture  # whichever of the two ran the fixture
    assert tests("'False' -> 'True'") == tests("'flag' -> 'True'") != []  # no test reaches the first
    assert sorted(tests("'flag' -> 'True'")) == sorted(second)
    assert tests("'9' -> '10'") == []
    mutant = mutants["'0' -> '1'"]
    outcome = copy.outcome("a.py", mutant.source(), generated_mutations.tests_of(mutant, tested), 60)
    assert outcome.result == NOTICED
    assert outcome.by.partition("::")[2] in second
    assert copy.tested([outcome.by]).result == SURVIVED
    (project / "tests/unit/test_a.py").unlink()
    again = generated_mutations.recorded(copy, project / "record")
    assert generated_mutations.tests_of(mutant, again) == generated_mutations.tests_of(mutant, tested)
