"""Print the table of docs/install.md: packages, size and time of import of each extra, in this environment.

    .venv/bin/python scripts/install_table.py

Counts and sizes of an extra are those of the packages that an installation without extras lacks. A time is the shortest
of seven processes.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "offsets-pipeline"
PACKAGE = "offsets_pipeline"
PROCESSES = 7
TIMED = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


class Row(NamedTuple):
    """An extra, the modules of this project that need it, and what works with it."""

    extra: str
    modules: str
    works: str


ROWS = (
    Row(
        "",
        "coordinator.coordinator",
        "all other commands; the coordinator, Connect's offsets and the broker's client in Python",
    ),
    Row(
        "spark",
        "store.session, offsets_pipeline.store.store",
        "`ingest-segments`, `ingest-topic`, `follow`, `fold`, `reload`, `verify`, `create-views`, `maintain`, "
        "`clean-log`; `sql --spark`; stores in a catalog (`schema:NAME`)",
    ),
    Row("s3", "store.delta.storage, obstore.store", "stores on `s3://`, `gs://`, `abfss://`"),
    Row(
        "serve",
        "service.rest.server, starlette.applications",
        "`serve`, `connect serve`; metrics at a port (`--metrics-port`)",
    ),
    Row("connect", "connect.connect_service", "the same as `serve`"),
    Row("zookeeper", "coordinator.zookeeper.client", '`import-zookeeper`; `offsets_storage = "zookeeper"`'),
)


def packages(extra: str) -> set[str]:
    """The packages that the project requires with an extra, with all that they require."""
    waiting, seen = [(PROJECT, extra)], set[tuple[str, str]]()
    while waiting:
        name, of = waiting.pop()
        if (name, of) not in seen:
            seen.add((name, of))
            required = map(Requirement, _required(name, of))
            waiting += [
                (canonicalize_name(each.name), inner)
                for each in required
                if each.marker is None or each.marker.evaluate({"extra": of})
                for inner in each.extras or {""}
            ]
    return {name for name, _ in seen} - {PROJECT}


def _required(name: str, extra: str) -> Sequence[str]:
    if name != PROJECT:
        return distribution(name).requires or ()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *(project["optional-dependencies"][extra] if extra else ())]


def megabytes(names: set[str]) -> float:
    """The size of the packages' files, as installed."""
    files = (Path(file.locate()) for name in names for file in distribution(name).files or ())
    return sum(path.stat().st_size for path in files if path.exists()) / 1e6


def seconds(modules: str) -> float:
    """The time to import modules in a new process."""
    code = TIMED.format(f"{PACKAGE}.{modules}")
    run = [sys.executable, "-c", code]
    return min(float(subprocess.run(run, check=True, capture_output=True, text=True).stdout) for _ in range(PROCESSES))


def main() -> None:
    """Print the table."""
    print("| extra | packages | MB | seconds to import | works with it |\n|---|---|---|---|---|")
    base = packages("")
    for row in ROWS:
        added = packages(row.extra) - base if row.extra else base
        sign = "+" if row.extra else ""
        name = f"`{row.extra}`" if row.extra else "none"
        print(
            f"| {name} | {sign}{len(added)} | {sign}{megabytes(added):.0f} | {seconds(row.modules):.2f} | {row.works} |"
        )


if __name__ == "__main__":
    try:
        main()
    except PackageNotFoundError as error:
        sys.exit(f"install_table: error: {error.name} is not installed: run make setup")
