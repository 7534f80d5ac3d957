"""Fixtures of all tests. Spark starts when a test first asks for the `spark` fixture."""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from benchmarks.s3 import client_variables, create_bucket
from offsets_pipeline.common.config import Settings
from offsets_pipeline.common.config.sections import FoldSettings, SparkSettings
from offsets_pipeline.common.warnings import set_line_times
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from pyspark.sql import SparkSession

    from tests.kafka.brokers import KafkaJvm
    from tests.spark.stores import Workbench

# others than tests assert here, and are to say as much
pytest.register_assert_rewrite(
    "tests.folded_state",
    "tests.published",
    "tests.replays",
    "tests.spark.stores",
    "tests.unit.state.state_files",
)

ROOT = Path(__file__).resolve().parent.parent
#: The mark of the tests that use a fixture.
MARK_OF_FIXTURE = {"spark": "spark", "kafka": "kafka", "run_seed": "chance"}
LONG = "long"
S3_LOG = "s3.log"
LONG_TEST_SECONDS = 1800  # below `faulthandler_timeout` of pyproject.toml
SLOWEST_FIRST = (
    "test_readme.py",
    "test_session.py",
    "kafka",
    "streaming",
    "coordinator",
    "cli",
    "notebooks",
    "test_make.py",
    "spark",
)
SEED = os.environ.get("OFFSETS_TEST_SEED")
USUAL_SEED = 20261121
#: A random share of the tests that `-m` selects, and the seconds for all of them: `make test-sample`.
SHARE = float(os.environ.get("OFFSETS_TEST_SHARE", "1"))
SECONDS = float(os.environ.get("OFFSETS_TEST_SECONDS", math.inf))
#: How often a long test with the fixture `turn` runs, each time with another seed.
TURNS = int(os.environ.get("OFFSETS_TEST_TURNS", "1"))
BEGUN = time.monotonic()
STARTED = pytest.StashKey[float]()
CUT_OFF = pytest.StashKey[bool]()

os.environ.pop("COLUMNS", None)  # a user's pipe has no width

hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.register_profile(LONG, deadline=None, database=None, print_blob=True)
hypothesis.settings.load_profile(LONG if SEED else "repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """Leave long tests out unless `-m` names them."""
    wanted = config.option.markexpr
    if LONG not in wanted:
        config.option.markexpr = f"({wanted}) and not {LONG}" if wanted else f"not {LONG}"


def pytest_report_header() -> str | None:
    """Print the seed of random tests, so that a failed run can be repeated."""
    return f"seed: {SEED} (`make test-long SEED={SEED}` repeats this run)" if SEED else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with the fixture `place` in a folder and on S3; there by `make test` alone if it is marked `on_s3`."""
    if "place" in metafunc.fixturenames:
        marks = {mark.name for mark in metafunc.definition.iter_markers()}
        on_s3 = pytest.param("s3", marks=() if "on_s3" in marks else getattr(pytest.mark, LONG))
        metafunc.parametrize("place", ["folder"] if "local_only" in marks else ["folder", on_s3], indirect=True)
    if "turn" in metafunc.fixturenames:
        metafunc.parametrize("turn", range(TURNS))


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, object, object]:
    """Mark tests that use Spark, a broker or chance, so that `-m` selects them; slowest folders first.

    Long tests get a longer timeout. Of the tests that `-m` selects, the share that the environment asks for is left.
    """
    items.sort(key=_place_in_run)  # two workers: neither ends long after the other
    for item in items:
        if item.get_closest_marker(LONG):
            # Of the function alone: a timeout while pytest reports one ends the worker.
            item.add_marker(pytest.mark.timeout(min(LONG_TEST_SECONDS, SECONDS / 2), func_only=True))
        for fixture in MARK_OF_FIXTURE.keys() & getattr(item, "fixturenames", ()):
            item.add_marker(MARK_OF_FIXTURE[fixture])
    selected = yield
    if SHARE < 1:
        names = sorted(item.nodeid for item in items)  # alike in all workers
        left = set(random.Random(int(SEED or USUAL_SEED)).sample(names, round(len(names) * SHARE)))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in left])
        items[:] = [item for item in items if item.nodeid in left]
    return selected


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin no test in the second half of the time: the test that begins last has as much."""
    item.stash[STARTED] = time.monotonic()
    if time.monotonic() - BEGUN > SECONDS / 2:
        pytest.skip(f"not one of the tests that began within {SECONDS / 2:.0f} s (OFFSETS_TEST_SECONDS)")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, object, object]:
    """Count a test that is not done in a bounded time as not run: a slower machine takes longer.

    What its worker then tears down may fail: the cut may fall between a request to a JVM and its answer.
    """
    is_late = time.monotonic() - item.stash[STARTED] > SECONDS / 2 - 1
    report: pytest.TestReport = yield  # type: ignore[assignment]
    if report.failed and (is_late or item.config.stash.get(CUT_OFF, False)):
        item.config.stash[CUT_OFF] = True
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, f"not done within {SECONDS / 2:.0f} s")
    return report


def _place_in_run(item: pytest.Item) -> int:
    top = Path(os.path.relpath(item.path, ROOT / "tests")).parts[0]
    return SLOWEST_FIRST.index(top) if top in SLOWEST_FIRST else len(SLOWEST_FIRST)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests ignore the developer's settings file."""
    monkeypatch.delenv("OFFSETS_CONF", raising=False)


@pytest.fixture(autouse=True)
def _lines_without_times() -> Iterator[None]:
    """A test that waits for signals leaves no times in the lines of the next one."""
    yield
    set_line_times(are_on=False)


@pytest.fixture
def signal_handlers() -> Iterator[None]:
    """Restores the handlers of SIGTERM and SIGINT after a test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _jvm_of_all_tests_heeds_sigterm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM that ignores SIGTERM cannot take that back, and tests/spark/test_stopping.py needs one that does not."""
    monkeypatch.setattr("offsets_pipeline.cli.stopping.Stopping.spare_jvm", lambda *_: None)


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's folder."""
    return ROOT


@pytest.fixture(scope="session")
def set_up() -> None:
    """An environment that `make` finds up to date; else it would replace the environment in which the tests run."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    make = ["make", "--dry-run", "--silent", "setup", "s3"]
    done = subprocess.run(make, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode or done.stdout.strip():
        pytest.fail(f"this test runs make: run `make setup s3` first\n{done.stdout}{done.stderr}")


@pytest.fixture(scope="session")
def run_seed() -> int:
    """The seed of random tests: the same in each run, unless OFFSETS_TEST_SEED says otherwise."""
    return int(SEED or USUAL_SEED)


@pytest.fixture
def chance(run_seed: int) -> random.Random:
    """Chance for a test, from the seed of the run."""
    return random.Random(run_seed)


@pytest.fixture
def turn_seed(run_seed: int, turn: int) -> int:
    """The seed of one of the OFFSETS_TEST_TURNS turns of a long test: that of the run for the first turn."""
    return run_seed + turn


@pytest.fixture(scope="session")
def captures() -> Path:
    """The folder of recorded brokers' logs; its README describes each."""
    return ROOT / "tests" / "data" / "captures"


@pytest.fixture(scope="session")
def settings() -> Settings:
    """Small: two tasks at a time; streams look often."""
    return Settings(
        spark=SparkSettings(master="local[2]", shuffle_partitions=2, driver_memory="2g"),
        fold=FoldSettings(trigger_interval_ms=100),
    )


@pytest.fixture(scope="session")
def spark(settings: Settings) -> Iterator[SparkSession]:
    """The one Spark session of the run, started through the program's own build_session."""
    from offsets_pipeline.store.session import build_session  # noqa: PLC0415 (imports pyspark: not for unit tests)

    session = build_session(
        "tests",
        settings,
        {
            # Many small jobs and none long: the second compiler never pays for itself (a fifth less time), nor does
            # code that Spark generates and compiles for each (a quarter less). Processes have that code, as for users:
            # `make run` in tests/test_readme.py.
            # Without it the quick compiler has 48 MB for its code: after some minutes they are full, and Java spends a
            # quarter of its time looking for code to drop.
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def workbench(spark: SparkSession, settings: Settings) -> Workbench:
    """Operations on stores for tests."""
    from tests.spark.stores import Workbench  # noqa: PLC0415 (imports pyspark)

    return Workbench(spark, settings)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaJvm]:
    """One JVM in which brokers run, for all tests that ask for one.

    It starts a broker on the segments that a test gives it: `with kafka.broker(segments, 5) as broker`; one that lives
    through a test is of tests/kafka/live.py.
    """
    from tests.kafka.brokers import KafkaJvm, fetch_kafka  # noqa: PLC0415 (only these tests need it)

    fetch_kafka()
    jvm = KafkaJvm(tmp_path_factory.mktemp("kafka"))
    yield jvm
    jvm.close()


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a local S3-compatible server, which logs its requests to the file S3_LOG.

    It is a process: some clients keep Python's lock while they wait for an answer.
    """
    from benchmarks.broker import free_ports  # noqa: PLC0415 (for these tests alone)
    from tests.waiting import wait_until  # noqa: PLC0415

    (port,) = free_ports(1)
    log = tmp_path_factory.getbasetemp() / S3_LOG
    with log.open("w") as file:
        command = [str(Path(sys.executable).with_name("moto_server")), "--host", "127.0.0.1", "--port", str(port)]
        server = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        wait_until("an S3 server", lambda: "Running on" in log.read_text(encoding="utf-8"))
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="session")
def s3mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a local S3-compatible server of another make."""
    from tests.s3mock import s3mock  # noqa: PLC0415 (as above)

    with s3mock(tmp_path_factory.mktemp("s3mock")) as url:
        yield url


@pytest.fixture(scope="module")
def s3(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URI of a bucket, which the variables `AWS_*` let this process open; on moto without a parameter."""
    make: str = getattr(request, "param", "moto")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in client_variables(request.getfixturevalue(make)).items():
            patch.setenv(name, value)
        yield create_bucket(f"bucket-{make}")  # Hadoop keeps the client of a bucket


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder for stores, or a prefix of a bucket, with the methods of a path that tests use."""
    if request.param == "folder":
        yield tmp_path
        return
    from tests.places import S3Path, remove_place  # noqa: PLC0415 (imports pyarrow)

    bucket = request.getfixturevalue("s3")
    if "spark" in request.fixturenames:
        from offsets_pipeline.store.session import build_session  # noqa: PLC0415 (imports pyspark)

        build_session("tests", request.getfixturevalue("settings"))  # which takes the variables of S3
    found = S3Path(f"{bucket}/{tmp_path.name}")
    yield found
    if found.exists():
        remove_place(found)  # moto looks at every object of a bucket to list a prefix


@pytest.fixture(scope="session")
def empty(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """An empty store of so many log partitions, of these semantics; made once a run: take a copy to change anything."""
    from offsets_pipeline.store.store import Store  # noqa: PLC0415 (imports pyspark)

    made: dict[StoreProperties, Path] = {}

    def store(offsets_partitions: int, semantics: CoordinatorSemantics = MODERN) -> Path:
        properties = StoreProperties(MIRRORED, offsets_partitions, coordinator_semantics=semantics)
        if properties not in made:
            location = tmp_path_factory.mktemp("empty") / "store"
            Store.create(spark, str(location), properties)
            made[properties] = location
        return made[properties]

    return store


@pytest.fixture(scope="session")
def folded(
    workbench: Workbench, empty: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """The store with a capture's log, folded by a stream as its broker loads it; take a copy to change anything."""
    from tests.logs import capture_partitions, capture_semantics  # noqa: PLC0415 (only these tests need it)
    from tests.places import copied  # noqa: PLC0415 (imports pyarrow)
    from tests.spark.stores import segments_of  # noqa: PLC0415 (imports pyspark)

    made: dict[str, Path] = {}

    def store(capture: str) -> Path:
        if capture not in made:
            # a copy of an empty store saves creating eight tables each time
            made_before = empty(capture_partitions(capture), capture_semantics(capture))
            location = copied(made_before, tmp_path_factory.mktemp("folded") / capture)
            workbench.ingest(location, segments_of(capture))
            workbench.fold(location)
            made[capture] = location
        return made[capture]

    return store
