"""Files, commands and names in the documents exist."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from scripts import mutations

if TYPE_CHECKING:
    from pathlib import Path


def test_links_lead_somewhere(root: Path) -> None:
    lead = []
    for document in [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "benchmarks").glob("*.md")]:
        targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
        lead += [document.parent / target for target in targets if "://" not in target]
    assert len(lead) > 20
    assert [target for target in lead if not target.exists()] == []


def test_tests_that_are_named_exist(root: Path) -> None:
    named = {
        path
        for each in (root / "docs").glob("*.md")
        for path in re.findall(r"`(tests/[\w/.]+)`", each.read_text("utf-8"))
    }
    assert len(named) > 20
    assert [path for path in sorted(named) if not (root / path).exists()] == []


def test_rules_that_are_cited_are_written_down(root: Path) -> None:
    rules = (root / "docs" / "semantics.md").read_text(encoding="utf-8")
    written = set(re.findall(r"^- (R\d+)\b", rules, re.MULTILINE))
    sources = [
        path for folder in ("offsets_pipeline", "tests", "jobs", "examples") for path in (root / folder).rglob("*.py")
    ]
    cited = {rule for path in sources for rule in re.findall(r"\b(R\d+)[a-z]?\b", path.read_text(encoding="utf-8"))}
    assert len(cited) > 20
    assert cited <= written, cited - written


def defined_in(module: Path) -> set[str]:
    """Functions, classes, methods as `Class.method`, and constants of a module."""
    names: set[str] = set()
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def test_every_rule_is_where_the_table_of_the_rules_says(root: Path) -> None:
    written = re.findall(r"^- (R\d+)\b", (root / "docs" / "semantics.md").read_text(encoding="utf-8"), re.MULTILINE)
    table = (root / "docs" / "code.md").read_text(encoding="utf-8").partition("## Where each rule is")[2]
    rows = dict(re.findall(r"^\| (R\d+) \|(.*)\|$", table, re.MULTILINE))
    assert list(rows) == sorted(written, key=lambda rule: int(rule[1:]))
    missing = []
    for rule, cells in rows.items():
        places = re.findall(r"`([\w/]+\.py)`: ((?:`[\w.]+`(?:, )?)+)", cells)
        assert places or "no code" in cells, rule
        for path, names in places:
            module = root / "offsets_pipeline" / path
            found = defined_in(module) if module.exists() else set()
            missing += [(rule, path, name) for name in re.findall(r"`([\w.]+)`", names) if name not in found]
    assert missing == []


def test_every_rule_that_a_replay_has_is_broken_by_a_mutation(root: Path) -> None:
    """The code still has each text that `scripts/mutations.py` replaces, and each rule of the table has a mutation."""
    for each in mutations.MUTATIONS:
        source = (root / "offsets_pipeline" / each.file).read_text(encoding="utf-8")
        assert source.count(each.old) == 1, (each.rule, each.file, each.old)
    table = (root / "docs" / "code.md").read_text(encoding="utf-8").partition("## Where each rule is")[2]
    rules = {rule for rule, cells in re.findall(r"^\| (R\d+) \|(.*)\|$", table, re.MULTILINE) if "no code" not in cells}
    assert {each.rule for each in mutations.MUTATIONS} - {"STATE", "DOOR"} == rules
