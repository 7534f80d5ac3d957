"""25 published stores as other engines read them: Spark, Delta's kernel, Polars, and deltalake in a process of its own.

None of them uses the views of this project.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from offsets_pipeline.questions.query.views import register_views
from tests.published import KEYS, rows_of
from tests.readers.stores import LogOfStore, logs_of_stores, published_store
from tests.spark.frames import assert_same_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    Stores = list[tuple[LogOfStore, Path]]

pytestmark = pytest.mark.slow  # 26 stores

# For a Python that does not find this project.
_BARE_PROGRAM = """
import sys
from importlib.util import find_spec

from deltalake import DeltaTable
from pyarrow import feather

assert find_spec("offsets_pipeline") is None
for path in sys.argv[2:]:
    store, name = path.split("/")[-2:]
    feather.write_feather(DeltaTable(path).to_pyarrow_table(), f"{sys.argv[1]}/{store}-{name}")
"""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    """Logs and their stores."""
    folder = tmp_path_factory.mktemp("published")
    found = [(log, published_store(folder / log.name, log)) for log in logs_of_stores()]
    assert len(found) == 26
    return found


def assert_as_specified(stores: Stores, read: Callable[[Path], pa.Table]) -> None:
    """``read`` returns the rows of the table in a folder."""
    for log, store in stores:
        for name, expected in log.specified().items():
            found = rows_of(name, read(store / name))
            assert found == expected, f"{name} of {log.name}"


def test_polars_reads_the_rows_that_the_specification_replays(stores: Stores) -> None:
    assert_as_specified(stores, lambda table: pl.read_delta(str(table)).to_arrow())


def test_a_process_without_this_project_reads_the_rows_that_the_specification_replays(
    stores: Stores, tmp_path: Path
) -> None:
    tables = [str(store / name) for _, store in stores for name in KEYS]
    places = [each for each in sys.path if each.endswith("site-packages")]
    program = f"import sys\nsys.path += {places}\n{_BARE_PROGRAM}"  # without the finder of an editable installation
    subprocess.run(
        [sys.executable, "-S", "-I", "-c", program, tmp_path, *tables], cwd=tmp_path, check=True, timeout=300
    )
    assert_as_specified(stores, lambda table: feather.read_table(tmp_path / f"{table.parent.name}-{table.name}"))


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.long)])
def test_spark_reads_the_rows_that_the_specification_replays(stores: Stores, spark: SparkSession, every: int) -> None:
    """Of each store, or of each fourth one: Spark takes half a second for a table."""
    assert_as_specified(stores[::every], lambda table: spark.read.format("delta").load(str(table)).toArrow())


def test_tables_have_the_columns_and_rows_of_the_views(stores: Stores, spark: SparkSession) -> None:
    _, store = stores[0]
    session = spark.newSession()
    register_views(session, str(store))
    for name in KEYS:
        table, view = session.read.format("delta").load(str(store / name)), session.table(name).drop("cluster")
        assert_same_rows(table, view)


def test_deltas_kernel_reads_the_rows_that_the_specification_replays(
    stores: Stores, spark: SparkSession, tmp_path: Path
) -> None:
    """It writes the rows that it reads to Parquet files: py4j has no Arrow."""
    jvm = spark._jvm
    assert jvm is not None
    kernel = jvm.io.delta.kernel
    engine = kernel.defaults.engine.DefaultEngine.create(spark._jsc.hadoopConfiguration())
    files, one = engine.getParquetHandler(), kernel.internal.util.Utils.singletonCloseableIterator
    every, no_columns = jvm.java.util.Optional.empty(), jvm.java.util.ArrayList()

    def read(table: Path) -> pa.Table:
        snapshot = kernel.Table.forPath(engine, str(table)).getLatestSnapshot(engine)
        scan = snapshot.getScanBuilder().build()
        state = scan.getScanState(engine)
        schema = kernel.internal.data.ScanStateRow.getPhysicalDataReadSchema(state)
        copies = tmp_path / table.parent.name / table.name
        for batch in scan.getScanFiles(engine).toInMemoryList():
            for file in batch.getRows().toInMemoryList():
                status = kernel.internal.InternalScanFileUtils.getAddFileStatus(file)
                for part in files.readParquetFiles(one(status), schema, every).toInMemoryList():
                    rows = kernel.Scan.transformPhysicalData(engine, state, file, one(part.getData()))
                    files.writeParquetFiles(str(copies), rows, no_columns).toInMemoryList()
        names = [each.getName() for each in snapshot.getSchema().fields()]
        nothing = pa.schema([(name, pa.null()) for name in names]).empty_table()
        found = [pq.read_table(each) for each in copies.glob("*.parquet")]
        return pa.concat_tables(found) if found else nothing

    assert_as_specified(stores, read)
