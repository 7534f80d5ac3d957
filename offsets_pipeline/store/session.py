"""The Spark session: uses the session of spark-submit if there is one, else starts one with this program's options.

Nothing starts at import. Options of spark-submit (--master, --conf, --properties-file) override this module's options.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import SparkConf, SparkContext, SparkFiles
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from offsets_pipeline.common.config.sections import AUTO_MEMORY
from offsets_pipeline.errors import CatalogMissing, DependencyMissing, NotOnConnect
from offsets_pipeline.store.delta import s3_access

if TYPE_CHECKING:
    from offsets_pipeline.common.config import Settings

OLDEST_JAVA = 17

_TASKS_SECONDS = 30  # more than Spark leaves a Python worker whose task is killed: four, and its present request

_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_NOISE = (b"WARNING: Using incubator modules:", b"Deleted ")

DELTA_CONF: Mapping[str, str] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

_WORK_CONF: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # 65536 records have some 10 MB of keys and values: enough for numpy to work in bulk.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    # The type that the tasks of an ingest write. Spark's default is INT96, which Parquet has deprecated.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # The snapshots of these tables' transaction logs are small; the default of 50 tasks costs seconds per write.
    "spark.databricks.delta.snapshotPartitions": "1",
}

_LOCAL_CONF: Mapping[str, str] = {
    # Works without a network, and does not depend on how the machine's name resolves.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}

#: Of a session that runs for weeks and has little to do at a time: a heap that shrinks, and the quick compiler.
_SMALL_LOCAL_CONF: Mapping[str, str] = {
    **_LOCAL_CONF,
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=25 "
    "-XX:TieredStopAtLevel=1",
}
_HEAP, _SMALL_HEAP = "2g", "512m"  # Spark refuses less than 450 MB
# Values of Hadoop's options that this module has set: others are the user's.
_set_by_program: dict[str, set[str]] = {}


def build_session(
    app_name: str, settings: Settings, extra_conf: Mapping[str, str] | None = None, *, is_small: bool = False
) -> SparkSession:
    """Return the running session, or start one.

    Sets `extra_conf` on a session that already runs in this process. Under spark-submit only `extra_conf` overrides
    the given options; this module's other options fill the gaps.

    Args:
        app_name: Spark's name of the application.
        settings: its `spark` section has the master and the sizes.
        extra_conf: Spark options that override this module's options.
        is_small: whether a JVM that it starts takes little memory.

    Raises:
        DependencyMissing: there is no Java, or one older than Spark needs.
    """
    extra = dict(extra_conf or {})
    running = _running_session()
    if running is not None:
        for key, value in extra.items():
            running.conf.set(key, value)
        return _with_tasks_set_up(running)

    if _is_of_connect(settings):
        return _connected(settings, extra)
    builder = SparkSession.builder.appName(app_name)
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit started the JVM, then this process
        conf = _program_conf(settings)
        SparkContext._ensure_initialized()  # noqa: SLF001 (connects to the JVM; before that SparkConf is empty)
        given = dict(SparkConf().getAll())
        master = given.get("spark.master", "")
    else:
        check_java()
        master = settings.spark.master
        builder = builder.master(master)
        heap = settings.spark.driver_memory
        if heap == AUTO_MEMORY:
            heap = _SMALL_HEAP if is_small else _HEAP
        conf = {**_program_conf(settings), "spark.driver.memory": heap}
        if master.startswith("local"):
            conf |= _SMALL_LOCAL_CONF if is_small else _LOCAL_CONF
        if not _is_installed("delta-spark_*.jar"):
            conf["spark.jars.packages"] = _delta_package()
        given = {}
    if master.startswith("local"):  # a cluster's machines have a Python of their own
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    for key, value in ({k: v for k, v in conf.items() if k not in given} | extra).items():
        builder = builder.config(key, value)
    with _without_noise():
        return _with_tasks_set_up(builder.getOrCreate())


def on_connect(session: SparkSession) -> bool:
    """Whether the session is of a Spark Connect server, which has no JVM and no context here."""
    return getattr(session, "sparkContext", None) is None


def wait_for_tasks() -> None:
    """Wait until no task of the program's Spark runs, for `_TASKS_SECONDS` at most.

    The tasks beside one that failed go on for some seconds, and may write files. Does nothing without a JVM here.
    """
    context = SparkContext._active_spark_context  # noqa: SLF001 - None: nothing has needed Spark yet, or Spark Connect
    if context is None:
        return
    tracker: Any = context._jsc.sc().statusTracker()  # noqa: SLF001 - PySpark's own has no executors
    until = time.monotonic() + _TASKS_SECONDS
    while any(each.numRunningTasks() for each in tracker.getExecutorInfos()) and time.monotonic() < until:
        time.sleep(0.1)


def require_context(session: SparkSession, what: str) -> None:
    """Check that the session has a context of its own, whose queries call functions of this process.

    Raises:
        NotOnConnect: it is of a Spark Connect server.
    """
    if on_connect(session):
        raise NotOnConnect(
            f"{what} is a stream of this process, which a Spark Connect server cannot call; run it by spark-submit "
            "or with another master (setting [spark] master)"
        )


def require_lasting_catalog(session: SparkSession, schema: str, what: str) -> None:
    """Check that the catalog of a schema outlives the session. A server's does, as long as the server runs.

    Raises:
        CatalogMissing: it is in the memory of this process.
    """
    of_spark = "." not in schema or schema.startswith("spark_catalog.")
    if of_spark and not on_connect(session) and session.conf.get("spark.sql.catalogImplementation") == "in-memory":
        raise CatalogMissing(
            f"cannot {what}: this session's catalog ends with the session; configure a persistent one, such as "
            "spark.sql.catalogImplementation=hive in SPARK_CONF_DIR or for spark-submit"
        )


def _is_of_connect(settings: Settings) -> bool:
    return bool(os.environ.get("SPARK_REMOTE")) or settings.spark.master.startswith("sc://")


def _connected(settings: Settings, extra: Mapping[str, str]) -> SparkSession:
    """A session on a Spark Connect server, whose JARs and options are its own but for those that a session may set."""
    builder = SparkSession.builder
    if not os.environ.get("SPARK_REMOTE"):
        builder = builder.remote(settings.spark.master)
    session = builder.getOrCreate()
    shuffles = {"spark.sql.shuffle.partitions": str(settings.spark.shuffle_partitions)}
    for key, value in {**_WORK_CONF, **shuffles, **extra}.items():
        session.conf.set(key, value)
    return _with_tasks_set_up(session)


def _running_session() -> SparkSession | None:
    """The session of this process.

    It need not be the active one: after a stream has run here, that is its last batch's, and other threads have none.
    """
    found = SparkSession._instantiatedSession  # noqa: SLF001 (the builder would first set options)
    return None if found is None or found.sparkContext._jsc is None else found  # noqa: SLF001 (None: stopped)


def _set_up_hadoop(session: SparkSession) -> None:
    """Set Hadoop's options for S3 as the variables of now ask for; one that spark-submit or a user has set stays."""
    started_with = {} if on_connect(session) else dict(session.sparkContext.getConf().getAll())
    for key, value in {**s3_access.hadoop_options(), **s3_access.hadoop_keys()}.items():
        present = session.conf.get(key, None) or started_with.get(f"spark.hadoop.{key}", None)
        known = _set_by_program.setdefault(key, set())
        if present is None or present in known:
            session.conf.set(key, value)
            known.add(value)


def _with_tasks_set_up(session: SparkSession) -> SparkSession:
    """Give tasks what opens files on S3, the JVM's and Python's, and streaming sources Spark's files.

    The driver's part of a Python source looks for the modules of --py-files in this subfolder, which Spark never fills.
    """
    _set_up_hadoop(session)
    if on_connect(session):  # the tasks' variables and files are the server's
        return session
    session.sparkContext.environment.update(s3_access.task_environment())
    with suppress(FileExistsError):
        Path(SparkFiles.getRootDirectory(), "streaming_job").symlink_to(".")
    return session


def check_s3(settings: Settings) -> None:
    """Check that Spark can open `s3://`: before its start its JARs, else its class path; not those of a server.

    Raises:
        DependencyMissing: Spark has no S3A.
    """
    if _is_of_connect(settings):
        return
    if "PYSPARK_GATEWAY_PORT" in os.environ or SparkContext._jvm is not None:  # noqa: SLF001 (is there a JVM?)
        SparkContext._ensure_initialized()  # noqa: SLF001 (connects to the JVM of spark-submit)
        jvm: Any = SparkContext._jvm  # noqa: SLF001
        found = bool(jvm.org.apache.spark.util.Utils.classIsLoadable(_S3A))
    else:
        found = _is_installed("hadoop-aws-*.jar")
    if not found:
        raise DependencyMissing(
            "Spark cannot open s3://: the JARs of hadoop-aws are missing; run `make s3`, or give spark-submit "
            "--packages org.apache.hadoop:hadoop-aws of Spark's Hadoop version"
        )


def check_java() -> None:
    """Check the Java that Spark would start.

    Raises:
        DependencyMissing: there is no Java, or one older than Spark needs.
    """
    need = f"Spark needs Java {OLDEST_JAVA} or newer"
    remedy = "install one, and put it in PATH or set JAVA_HOME"
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java"))) if home else shutil.which("java")
    where = f"JAVA_HOME, which is {home}" if home else "PATH"
    if java is None:
        raise DependencyMissing(f"no Java in {where}: {need}; {remedy}")
    version = _java_version(Path(java))
    if version is None:
        raise DependencyMissing(f"cannot find out the version of {java}: {need}; {remedy}")
    if version < OLDEST_JAVA:
        raise DependencyMissing(f"{java} is Java {version}: {need}; {remedy}")


def _java_version(java: Path) -> int | None:
    """The major version: 8 for "1.8.0_402", 17 for "17.0.15"; None if it cannot be read."""
    try:
        # Every JDK since 9 has this file. It saves the start of a JVM.
        said = (java.resolve().parent.parent / "release").read_text(encoding="utf-8")
    except OSError:
        try:
            done = subprocess.run([str(java), "-version"], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603 (the user's own Java)
        except (OSError, subprocess.TimeoutExpired):
            return None
        said = done.stdout + done.stderr
    found = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None


def _program_conf(settings: Settings) -> dict[str, str]:
    warehouse = tempfile.mkdtemp(prefix="offsets-warehouse-")
    atexit.register(shutil.rmtree, warehouse, ignore_errors=True)
    hadoop = s3_access.hadoop_options()
    for key, value in hadoop.items():  # an earlier value may still be that of a session
        _set_by_program.setdefault(key, set()).add(value)
    return {
        **DELTA_CONF,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **_WORK_CONF,
        **{f"spark.hadoop.{key}": value for key, value in hadoop.items()},
        "spark.sql.shuffle.partitions": str(settings.spark.shuffle_partitions),
        # Without this option Spark creates an empty folder in the working directory.
        "spark.sql.warehouse.dir": warehouse,
    }


@contextmanager
def _without_noise() -> Iterator[None]:
    """Filter the output of a JVM that starts in this context: drops lines of `_NOISE`, and sends the rest to stderr.

    Spark adds an incubator module to every JVM, and no option suppresses the JVM's warning of it. Delta prints the
    result of VACUUM to stdout, where only the program's own output belongs.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit's JVM runs already, and has printed its warning
        yield
        return
    stderr, (from_jvm, to_filter) = os.dup(2), os.pipe()

    def forward() -> None:
        with open(from_jvm, "rb") as lines, open(stderr, "wb", buffering=0) as out:  # noqa: PTH123 (descriptors)
            for line in lines:
                if not line.startswith(_NOISE):
                    out.write(line)

    ours: dict[int, int] = {}
    for descriptor in (1, 2):
        with suppress(OSError):  # it may be closed
            ours[descriptor] = os.dup(descriptor)
    for descriptor in ours:
        os.dup2(to_filter, descriptor)
    os.close(to_filter)
    # A daemon: it lives as long as the JVM, which keeps the pipe open.
    threading.Thread(target=forward, name="jvm-stderr", daemon=True).start()
    try:
        yield
    finally:
        for descriptor, duplicate in ours.items():
            os.dup2(duplicate, descriptor)
            os.close(duplicate)


def _is_installed(jar: str) -> bool:
    return any(Path(_find_spark_home(), "jars").glob(jar))


def _delta_package() -> str:
    """Maven coordinates of Delta, for a Spark that was not set up with `make setup`."""
    from delta import configure_spark_with_delta_pip  # noqa: PLC0415 (needed for this alone)

    builder = configure_spark_with_delta_pip(SparkSession.Builder())
    return str(builder._options["spark.jars.packages"])  # noqa: SLF001 (the builder has no getter)
