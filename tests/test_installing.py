"""The wheel: two builds are equal, and installed without any extra it has all that it imports."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from email import message_from_bytes
from importlib.metadata import distribution
from typing import TYPE_CHECKING, NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from offsets_pipeline.common.extras import EXTRAS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.programs import Done

EPOCH = "1795620000"
CODE = """
from offsets_pipeline import Coordinator, OwnedStore

with Coordinator.open(OwnedStore.create("owned", 2)) as coordinator:
    coordinator.commit_offsets("billing", {("orders", 0): 42})
    print(coordinator.fetch_offsets("billing")["orders", 0].offset)
"""


class Installed(NamedTuple):
    """An environment with the wheel, and a folder to work in."""

    bin: Path
    folder: Path

    def run(self, *command: str) -> Done:
        return subprocess.run(
            [self.bin / command[0], *command[1:]],
            cwd=self.folder,
            env={"PATH": str(self.bin), "HOME": str(self.folder), "AWS_REGION": "us-east-1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


def build(root: Path, folder: Path, umask: int = 0o022) -> list[Path]:
    """Build into the folder; returns the wheel and the source archive."""
    script = [sys.executable, str(root / "scripts" / "build_dist.py"), str(folder)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
    subprocess.run(script, env=environment, check=True, capture_output=True, timeout=60, umask=umask)
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def built(root: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(root, tmp_path_factory.mktemp("dist"))


def test_two_builds_are_equal_byte_by_byte(root: Path, built: list[Path], tmp_path: Path) -> None:
    again = build(root, tmp_path / "again", umask=0o077)
    assert [path.name for path in again] == [path.name for path in built]
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in built]


def test_the_wheel_has_the_package_and_nothing_beside_it(root: Path, built: list[Path]) -> None:
    package = root / "offsets_pipeline"
    files = {str(path.relative_to(root)) for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    with zipfile.ZipFile(built[0]) as wheel:
        assert {name for name in wheel.namelist() if ".dist-info/" not in name} == files


def base_dependencies(wheel: Path) -> Iterator[str]:
    """The distributions that the wheel requires without an extra, with all that they require."""
    with zipfile.ZipFile(wheel) as files:
        (metadata,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        waiting: list[str] = message_from_bytes(files.read(metadata)).get_all("Requires-Dist", [])
    seen: set[str] = set()
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        if name not in seen and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            seen.add(name)
            waiting += distribution(name).requires or ()
            yield name


@pytest.fixture(scope="module")
def installed(built: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with the wheel and the packages that it requires, linked from this one: tests have no network."""
    folder = tmp_path_factory.mktemp("installed")
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=60)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(venv / "bin" / "python")]
    install = ["install", "--quiet", "--no-index", "--no-deps", "--no-compile", str(built[0])]
    subprocess.run([*pip, *install], check=True, timeout=60)
    (packages,) = (venv / "lib").glob("python*/site-packages")
    for name in base_dependencies(built[0]):
        for top in {file.parts[0] for file in distribution(name).files or ()} - {"..", "__pycache__"}:
            (packages / top).symlink_to(str(distribution(name).locate_file(top)))
    return Installed(venv / "bin", folder)


pytestmark = pytest.mark.process


@pytest.mark.parametrize("module", EXTRAS)
def test_an_installation_without_extras_has_none(installed: Installed, module: str) -> None:
    done = installed.run("python", "-c", f"import {module}")
    assert f"ModuleNotFoundError: No module named '{module}'" in done.stderr


def test_the_coordinator_and_questions_work_without_extras(installed: Installed) -> None:
    done = installed.run("python", "-c", CODE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")
    done = installed.run("offsets", "describe", "--store", "owned", "--group", "billing", "--format", "csv")
    assert (done.returncode, done.stderr) == (0, "")
    assert "billing,orders,0,,42," in done.stdout
    done = installed.run("offsets", "sql", "--store", "owned", "SELECT sum(committed_offset) AS s FROM current_offsets")
    assert (done.returncode, done.stderr) == (0, "")
    assert "42" in done.stdout


@pytest.mark.parametrize(
    ("command", "what", "extra"),
    [
        (("fold", "--store", "owned", "--available-now"), "Spark", "spark"),
        (("create", "--store", "s3://bucket/store"), "a client of object stores", "s3"),
        (("serve", "--store", "owned"), "an HTTP server", "serve"),
        (("connect", "serve", "--store", "owned"), "an HTTP server", "serve"),
        (("import-zookeeper", "--store", "owned", "--zookeeper", "localhost"), "a client of ZooKeeper", "zookeeper"),
    ],
)
def test_a_command_without_its_extra_names_it(
    installed: Installed, command: tuple[str, ...], what: str, extra: str
) -> None:
    done = installed.run("offsets", *command)
    line = f"offsets: error: this command needs {what}: pip install 'offsets-pipeline[{extra}]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)
