"""What the documents name is there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def test_links_lead_somewhere(root: Path) -> None:
    lead = []
    for document in [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "benchmarks").glob("*.md")]:
        targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
        lead += [document.parent / target for target in targets if "://" not in target]
    assert len(lead) > 20
    assert [target for target in lead if not target.exists()] == []


def test_rules_that_are_cited_are_written_down(root: Path) -> None:
    rules = (root / "docs" / "semantics.md").read_text(encoding="utf-8")
    written = set(re.findall(r"^- (R\d+)\b", rules, re.MULTILINE))
    sources = [path for folder in ("offsets_pipeline", "tests", "jobs") for path in (root / folder).rglob("*.py")]
    cited = {rule for path in sources for rule in re.findall(r"\b(R\d+)[a-z]?\b", path.read_text(encoding="utf-8"))}
    assert len(cited) > 20
    assert cited <= written, cited - written
