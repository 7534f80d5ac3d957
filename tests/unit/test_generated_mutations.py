"""Mutants of a small module, and the results of a run: only a failed assertion counts as noticed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scripts import generated_mutations
from scripts.generated_mutations import ImportMap, Mutants
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
    ("arithmetic", "0", "1"),
    ("arithmetic", "+", "-"),
    ("arithmetic", "1", "2"),
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one module."""
    (tmp_path / PACKAGE).mkdir()
    (tmp_path / PACKAGE / "__init__.py").touch()
    (tmp_path / PACKAGE / "a.py").write_text(MODULE, encoding="utf-8")
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


def test_tests_of_a_module_import_it_directly_or_through_helpers() -> None:
    found = ImportMap().tests("semantics/survivors.py")
    assert "tests/unit/semantics/test_survivors.py" in found
    assert "tests/unit/semantics/test_partition_state.py" in found  # of the package
    assert "tests/property/test_cleaning_keeps.py" in found
    assert not [each for each in found if each.startswith("tests/spark")]


@pytest.mark.parametrize(
    ("file", "test"),
    [
        ("store/log/clean_files.py", "log/test_ordered_log.py"),
        ("questions/history/decoded_log.py", "history/test_history_commands.py"),
        ("common/config/allowed_values.py", "test_config.py"),
    ],
)
def test_tests_of_a_package_are_found_without_the_packages_around_it(file: str, test: str) -> None:
    assert f"tests/unit/{test}" in ImportMap().tests(file)


def test_importing_tests_of_the_package_run_first() -> None:
    found = ImportMap().tests("common/config/__init__.py")
    assert (found[0], len(found) > 5) == ("tests/unit/test_config.py", True)


def test_tests_of_a_command_import_the_program_and_those_of_its_name_run_first() -> None:
    found = ImportMap().tests("cli/history_commands.py")
    assert (found[0], len(found) > 5) == ("tests/unit/history/test_history_commands.py", True)
