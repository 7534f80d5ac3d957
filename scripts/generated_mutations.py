"""Break the code at random places, and report what share of it the unit tests notice, by package.

    python scripts/generated_mutations.py [--sample 200] [--seed N] [--packages log,state] [--record FOLDER]

Mutants come from the syntax tree of every module: comparisons and their boundaries, boolean operators and constants,
arithmetic, removed statements, and removed rules (an `if` that is never taken, or a condition of several left out).
The tests of a mutant are those without Spark, broker or processes that run its line, by coverage in one run of all of
them; the nearest first, and half a minute of them, so a share is a lower bound. A line that runs at import, as a
constant does, has the tests of the lines that name what it sets, and tests of test modules that import its module.
"Untested" is a line that none of these tests runs.
The program exits with 1 if a test that noticed a mutant fails without one, too.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a program, not as a module

from scripts.mutation_runs import (
    BROKEN,
    NOTICED,
    PACKAGE,
    RAISED,
    ROOT,
    SURVIVED,
    TIMED_OUT,
    MutatedProject,
    Outcome,
    mutated_project,
)
from scripts.tested_lines import FOLDER, TestedLines

if TYPE_CHECKING:
    from collections.abc import Iterator

UNTESTED = "untested"
#: Four times what the tests of a mutant took when they were recorded: two mutants run at a time.
MOST_SECONDS = 120
LARGEST_CHANGED = 16
FAST = ("-m", "not (spark or kafka or process or slow or long)")
TESTS = ("tests/unit", "tests/property")
#: Operators by their node, each with what replaces it: the opposite, and the other side of a boundary.
COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.Lt: ("<", ">="),
    ast.GtE: (">=", "<"),
    ast.Gt: (">", "<="),
    ast.LtE: ("<=", ">"),
}
BOUNDARIES: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.GtE: (">=", ">"),
    ast.Gt: (">", ">="),
    ast.LtE: ("<=", "<"),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: (r"\*", "//"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.Mod: ("%", "//"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
MASKS: dict[type[ast.operator], tuple[str, str]] = {ast.BitAnd: ("&", "|"), ast.BitOr: (r"\|", "&")}
RULE = re.compile(r"#.*\bR\d+")


class Mutant(NamedTuple):
    """A place of a file, in bytes, and what stands there instead. ``kind``: comparison, boundary, rule and so on.

    ``statement`` is the first line of its statement. ``names``: what that sets if it runs at import, else None.
    """

    file: str
    line: int
    statement: int
    names: frozenset[str] | None
    start: int
    end: int
    new: str
    kind: str

    @property
    def package(self) -> str:
        """The package of the file; `.` for a module of no package."""
        return self.file.partition("/")[0] if "/" in self.file else "."

    def source(self) -> str:
        """The file with the mutant in it."""
        data = (ROOT / PACKAGE / self.file).read_bytes()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()

    def __str__(self) -> str:
        """Return the place, and what was replaced by what."""
        old = (ROOT / PACKAGE / self.file).read_bytes()[self.start : self.end].decode()
        return f"{self.file}:{self.line} {' '.join(old.split())[:60]!r} -> {self.new!r}"


class Mutants(ast.NodeVisitor):
    """All mutants of a file."""

    def __init__(self, file: str) -> None:
        """``file``: below the package."""
        self._file = file
        self._data = (ROOT / PACKAGE / file).read_bytes()
        self._lines = self._data.decode().splitlines()
        self._starts = [0]
        for line in self._data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._statement = 0
        self._names: frozenset[str] | None = frozenset()
        self._sets_first = False  # in the `__init__` of a class without a base
        self.found: list[Mutant] = []
        self.visit(ast.parse(self._data))

    def visit(self, node: ast.AST) -> None:
        """Note the statement, and the names that it sets at import."""
        if isinstance(node, ast.stmt):
            self._statement = node.lineno
            if self._names is not None:
                self._names = _names(node) or self._names
        super().visit(node)

    def visit_If(self, node: ast.If) -> None:
        """Leave the branch out. What is for the type checker does not run."""
        if ast.unparse(node.test) != "TYPE_CHECKING":
            self._replaced(node.test, "False", self._rule_or("branch", node))
            self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Negate the comparison, or move its boundary."""
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            self._operator(left, right, COMPARISONS.get(type(operator)), "comparison")
            self._operator(left, right, BOUNDARIES.get(type(operator)), "boundary")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Exchange `and` and `or`, and leave each condition out."""
        old, new, neutral = ("and", "or", "True") if isinstance(node.op, ast.And) else ("or", "and", "False")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._operator(left, right, (rf"\b{old}\b", new), "boolean")
        for each in node.values:
            self._replaced(each, neutral, self._rule_or("condition", each))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Drop a negation."""
        if isinstance(node.op, ast.Not):
            self._replaced(node, f"({ast.unparse(node.operand)})", "boolean")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Replace the operator, except where texts or lists are joined."""
        joined = any(
            isinstance(each, ast.JoinedStr | ast.List | ast.Tuple)
            or (isinstance(each, ast.Constant) and isinstance(each.value, str | bytes))
            for each in (node.left, node.right)
        )
        if not joined:
            self._operator(node.left, node.right, ARITHMETIC.get(type(node.op)), "arithmetic")
            self._operator(node.left, node.right, MASKS.get(type(node.op)), "boolean")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Change a truth value, or a small number by one; large ones are limits and sizes."""
        if isinstance(node.value, bool):
            self._replaced(node, str(not node.value), "boolean")
        elif isinstance(node.value, int) and node.value <= LARGEST_CHANGED:
            self._replaced(node, str(node.value + 1), "arithmetic")

    def visit_Expr(self, node: ast.Expr) -> None:
        """Remove a call that is a statement."""
        if isinstance(node.value, ast.Call):
            self._removed(node)
            self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Remove the statement."""
        self._removed(node)
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Remove the statement, not what its message has."""
        self._removed(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Remove what changes an object; a name or an attribute that was never set would only be an error."""
        is_first = self._sets_first and all(isinstance(each, ast.Attribute) for each in node.targets)
        if not is_first and all(isinstance(each, ast.Attribute | ast.Subscript) for each in node.targets):
            self._removed(node)
        if not _is_type_alias(node):
            self.visit(node.value)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Look at the body, not at decorators, whose options (`frozen=True`) no test of behaviour notices."""
        for each in node.body:
            self._sets_first = not node.bases and isinstance(each, ast.FunctionDef) and each.name == "__init__"
            self.visit(each)
        self._sets_first = False

    def visit_keyword(self, node: ast.keyword) -> None:
        """Leave `strict=True` as it is: it tells of lengths that never differ."""
        if node.arg != "strict":
            self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Leave annotations as they are."""
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Look at the body and the defaults, not at annotations and decorators."""
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(default)
        names, self._names = self._names, None
        for each in node.body:
            self.visit(each)
        self._names = names

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """Look at the same as of other functions."""
        self.visit_FunctionDef(node)

    def _removed(self, node: ast.stmt) -> None:
        self._replaced(node, "pass", self._rule_or("statement", node))

    def _rule_or(self, kind: str, node: ast.stmt | ast.expr) -> str:
        """The kind `rule` if a comment on the first line of the node cites one."""
        return "rule" if RULE.search(self._lines[node.lineno - 1]) else kind

    def _operator(self, left: ast.expr, right: ast.expr, change: tuple[str, str] | None, kind: str) -> None:
        start, end = self._end(left), self._start(right)
        between = self._data[start:end].decode()
        if change is None or "#" in between:
            return
        found = re.search(change[0], between)
        if found is not None:
            at = start + len(between[: found.start()].encode())
            self._add(left.end_lineno or 0, at, at + len(found[0].encode()), change[1], kind)

    def _replaced(self, node: ast.stmt | ast.expr, new: str, kind: str) -> None:
        self._add(node.lineno, self._start(node), self._end(node), new, kind)

    def _add(self, line: int, start: int, end: int, new: str, kind: str) -> None:
        self.found.append(Mutant(self._file, line, self._statement, self._names, start, end, new, kind))

    def _start(self, node: ast.stmt | ast.expr) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.stmt | ast.expr) -> int:
        return self._starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)


def _is_type_alias(node: ast.Assign) -> bool:
    value = node.value
    return isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr) and ast.unparse(value.right)[:1].isupper()


def _names(node: ast.stmt) -> frozenset[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return frozenset() if node.name.startswith("__") else frozenset([node.name])
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return frozenset(each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))


def drawn(packages: set[str], sample: int, seed: int) -> Iterator[Mutant]:
    """A random sample of mutants: each time a file by its size, then a mutant of it."""
    chance = random.Random(seed)
    root = ROOT / PACKAGE
    files = [path for path in sorted(root.glob("**/*.py")) if not packages or _package(path) in packages]
    weights = [path.stat().st_size for path in files]
    mutants_of = cache(lambda path: Mutants(str(path.relative_to(root))).found)
    seen: set[Mutant] = set()
    for _ in range(20 * sample):
        found = mutants_of(chance.choices(files, weights)[0])
        mutant = chance.choice(found) if found else None
        if mutant is not None and mutant not in seen and _is_other_code(mutant):
            seen.add(mutant)
            yield mutant
            if len(seen) == sample:
                return


def _is_other_code(mutant: Mutant) -> bool:
    """Whether the mutant is Python, unlike some parts of f-strings, and not what stood there before."""
    try:
        return ast.dump(ast.parse(mutant.source())) != ast.dump(ast.parse((ROOT / PACKAGE / mutant.file).read_bytes()))
    except SyntaxError:
        return False


def _package(path: Path) -> str:
    parts = path.relative_to(ROOT / PACKAGE).parts
    return parts[0] if len(parts) > 1 else "."


def main(arguments: list[str] | None = None) -> int:
    """Run a sample of the mutants, and print the share that tests noticed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=200, help="number of mutants")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="repeats a sample")
    parser.add_argument("--packages", default="", help="packages, with commas between; all if none is named")
    record = "folder that keeps the lines of each test, for other samples of the same commit"
    parser.add_argument("--record", type=Path, help=record)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a mutant may send signal 1 in place of 0 to the parent of its tests
    print(f"mutations: SEED={options.seed} repeats this sample", flush=True)
    packages = set(filter(None, options.packages.split(",")))
    counts = defaultdict[str, Counter[str]](Counter)
    noticed_by: set[str] = set()
    with ExitStack() as stack:
        projects = [stack.enter_context(mutated_project()) for _ in range(os.cpu_count() or 1)]
        kept = options.record or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mutations-")))
        tested = recorded(projects[0], kept)
        free = SimpleQueue[MutatedProject]()
        for project in projects:
            free.put(project)
        with ThreadPoolExecutor(len(projects)) as pool:
            run = pool.map(lambda mutant: _run(free, mutant, tested), drawn(packages, options.sample, options.seed))
            for mutant, outcome, seconds in run:
                counts[mutant.package][outcome.result] += 1
                if outcome.result in {NOTICED, RAISED}:
                    noticed_by.add(outcome.by)
                print(f"{outcome.result:9}{seconds:6.1f} s  {mutant.kind:11}{mutant}  {outcome.by}", flush=True)
        unchanged = projects[0].tested(sorted(noticed_by)) if noticed_by else Outcome(SURVIVED)
    print(table(counts))
    if unchanged.result != SURVIVED:
        print(f"without a mutation {unchanged.by} fails")
        return 1
    return 0


def recorded(project: MutatedProject, folder: Path) -> TestedLines:
    """Return which tests run each line; run them once, unless the folder has records of an earlier run."""
    if not any(folder.glob("*.json")):
        folder.mkdir(parents=True, exist_ok=True)
        workers = f"-n{os.cpu_count() or 1}"
        variables = {FOLDER: str(folder.resolve())}
        done = project.pytest([workers, "-p", "scripts.tested_lines", *FAST, *TESTS], variables=variables)
        print(f"mutations: the tests without a mutant: {done.stdout.splitlines()[-1]}", flush=True)
    return TestedLines(folder, ROOT / PACKAGE)


def tests_of(mutant: Mutant, tested: TestedLines) -> list[str]:
    """Return the tests that may notice a mutant, by node id, in the order in which they run."""
    if mutant.names is None:
        return tested.of_line(mutant.file, mutant.line, mutant.statement)
    return tested.of_names(mutant.file, mutant.names)


def _run(free: SimpleQueue[MutatedProject], mutant: Mutant, tested: TestedLines) -> tuple[Mutant, Outcome, float]:
    begun = time.monotonic()
    tests = tests_of(mutant, tested)
    if not tests:
        return mutant, Outcome(UNTESTED), 0
    project = free.get()
    try:
        outcome = project.outcome(mutant.file, mutant.source(), tests, MOST_SECONDS)
    finally:
        free.put(project)
    return mutant, outcome, time.monotonic() - begun


def table(counts: dict[str, Counter[str]]) -> str:
    """The results by package. The share is that of noticed mutants among those whose tests ran to an end."""
    results = (NOTICED, RAISED, SURVIVED, TIMED_OUT, BROKEN, UNTESTED)
    lines = [f"{'package':18}" + "".join(f"{each:>10}" for each in results) + f"{'share':>8}"]
    whole: Counter[str] = Counter()
    for package in sorted(counts):
        whole += counts[package]
    for package, found in [*sorted(counts.items()), ("all", whole)]:
        ran = found[NOTICED] + found[RAISED] + found[SURVIVED]
        share = f"{found[NOTICED] / ran:7.0%}" if ran else "-"
        lines.append(f"{package:18}" + "".join(f"{found[each]:10}" for each in results) + f"{share:>8}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
