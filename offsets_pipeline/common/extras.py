"""Extras of the package, which `pip install offsets-pipeline` leaves out: the extra of a module that is missing."""

from __future__ import annotations

from collections.abc import Mapping

#: By top-level module: its extra, and what the extra is in an error. `pyproject.toml` has the same extras.
EXTRAS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("pyspark", "py4j", "delta", "pandas"), ("spark", "Spark")),
    "obstore": ("s3", "a client of object stores"),
    **dict.fromkeys(("starlette", "uvicorn"), ("serve", "an HTTP server")),
    "kazoo": ("zookeeper", "a client of ZooKeeper"),
}
#: Limits of streaming sources, which the source of `follow` and `ingest-topic` has: new in Spark 4.2.
_SPARK_4_2 = "pyspark.sql.streaming.datasource"


def needed_extra(missing: ModuleNotFoundError) -> str | None:
    """What is missing and the command that installs it, in one line; None if the module is of no extra."""
    if missing.name == _SPARK_4_2:
        return "this command needs Spark 4.2: pip install 'pyspark==4.2.*'"
    extra, what = EXTRAS.get((missing.name or "").partition(".")[0], ("", ""))
    return f"this command needs {what}: pip install 'offsets-pipeline[{extra}]'" if extra else None
