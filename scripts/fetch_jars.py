"""Install sets of JARs into `pyspark/jars`, where every Spark of this environment finds them.

    .venv/bin/python scripts/fetch_jars.py delta [SET]...
    .venv/bin/python scripts/fetch_jars.py --into FOLDER kafka

The second form installs a set into another folder, for a program that must not share Spark's class path.

A set is a folder conf/jars/SET with `ivy.xml` (the JARs) and `SHA256SUMS` (their checksums). The Ivy inside pyspark
downloads them, with its cache inside the environment. Installed JARs with the right checksum are not fetched again, so
a second run needs no network. If a JAR cannot be fetched or has another checksum, nothing is installed, and the exit
status is 1, with one line on stderr.

OFFSETS_IVY_SETTINGS may name an Ivy settings file, for example of a mirror.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SETS = Path(__file__).resolve().parent.parent / "conf" / "jars"


class FetchError(Exception):
    """A set cannot be installed."""


def main(arguments: list[str] | None = None) -> int:
    """Install the named sets."""
    parser = argparse.ArgumentParser(description="Put sets of JARs, pinned in conf/jars, into this environment.")
    parser.add_argument("sets", nargs="*", metavar="SET", help="a folder of conf/jars")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="where to, if not into Spark's own folder")
    options = parser.parse_args(arguments)
    try:
        spark_jars = find_spark_jars()
        for name in options.sets:
            put_in_place(name, spark_jars, options.into or spark_jars)
    except FetchError as error:
        print(f"fetch_jars: error: {error}", file=sys.stderr)
        return 1
    return 0


def find_spark_jars() -> Path:
    """Return the folder of JARs of this interpreter's pyspark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise FetchError(f"{sys.executable} has no pyspark; run `make setup`")
    return Path(spec.origin).parent / "jars"


def put_in_place(name: str, spark_jars: Path, place: Path) -> None:
    """Install every JAR of the set into `place`, and check its checksum; `spark_jars` has Ivy."""
    folder = SETS / name
    if not (folder / "ivy.xml").is_file():
        raise FetchError(f"no set of JARs named {name}: {folder / 'ivy.xml'} is missing")
    wanted = read_sums(folder / "SHA256SUMS")
    if all(sha256(place / jar) == digest for jar, digest in wanted.items()):
        return
    work = Path(sys.prefix) / "ivy"
    work.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work) as staging:
        fetched = retrieve(folder / "ivy.xml", spark_jars, work, Path(staging))
        compare(folder, wanted, fetched)
        place.mkdir(exist_ok=True)
        for jar in fetched:
            # Under its own name only when it is whole: a killed run leaves no half JAR on a class path.
            half = place / f"{jar.name}.part"
            shutil.copyfile(jar, half)
            half.replace(place / jar.name)
    print(f"{name}: {len(wanted)} JARs put into {os.path.relpath(place)}")


def read_sums(path: Path) -> dict[str, str]:
    """Return SHA-256 by name, from a file in the format of `sha256sum`."""
    sums = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        digest, _, name = line.partition("  ")
        sums[name] = digest
    return sums


def sha256(path: Path) -> str | None:
    """Return the file's SHA-256 in hexadecimal; None if the file does not exist."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def retrieve(ivy_xml: Path, spark_jars: Path, work: Path, into: Path) -> list[Path]:
    """Fetch the JARs of `ivy_xml` with Ivy; returns the files by name."""
    ivy = next(iter(spark_jars.glob("ivy-*.jar")), None)
    if ivy is None:
        raise FetchError(f"no ivy-*.jar in {spark_jars}; this pyspark is not the one of the lock")
    java_home = os.environ.get("JAVA_HOME")
    java = str(Path(java_home, "bin", "java")) if java_home else "java"
    settings = os.environ.get("OFFSETS_IVY_SETTINGS")
    done = subprocess.run(
        [
            java,
            f"-Divy.default.ivy.user.dir={work}",
            "-jar",
            str(ivy),
            *(["-settings", settings] if settings else []),
            *("-cache", str(work / "cache")),
            *("-ivy", str(ivy_xml)),
            *("-types", "jar", "bundle"),
            *("-retrieve", f"{into}/[artifact]-[revision].[ext]"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        log = work / "ivy.log"
        log.write_text(done.stdout + done.stderr, encoding="utf-8")
        raise FetchError(f"the JARs of {ivy_xml.parent.name} cannot be had (is the network there?); Ivy's words: {log}")
    return sorted(into.iterdir())


def compare(folder: Path, wanted: dict[str, str], fetched: list[Path]) -> None:
    """Raises FetchError if the files are not exactly the expected ones."""
    got = {jar.name: sha256(jar) for jar in fetched}
    if got != wanted:
        for name, digest in got.items():
            print(f"{digest}  {name}", file=sys.stderr)
        differing = sorted(name for name in wanted.keys() | got.keys() if wanted.get(name) != got.get(name))
        raise FetchError(f"not what {folder / 'SHA256SUMS'} says: {', '.join(differing)} (above: what was got)")


if __name__ == "__main__":
    sys.exit(main())
