"""What has no public name in Python: classes of the JVM, and Delta's own objects there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession


def java_class(spark: SparkSession, name: str) -> Any:  # noqa: ANN401 - py4j knows no types
    """A class by its whole name, nested ones with a `$`; calling it makes an object.

    Written as `jvm.org.apache...` py4j asks the JVM for each part of the name, and the JVM looks for a class of that
    name in every JAR: a third of the time of a small ingest and its fold.
    """
    jvm = spark._jvm  # noqa: SLF001 - that is how to reach it
    assert jvm is not None  # noqa: S101 - only Spark Connect has none
    return getattr(jvm, name)


def option(spark: SparkSession, value: object = None) -> Any:  # noqa: ANN401 - py4j knows no types
    """A Scala Option: none of None."""
    return java_class(spark, "scala.Option").apply(value)


def scala_seq(spark: SparkSession, items: Sequence[Any]) -> Any:  # noqa: ANN401 - py4j knows no types
    """A Scala Seq."""
    array = java_class(spark, "java.util.ArrayList")()
    for item in items:
        array.add(item)
    return java_class(spark, "org.apache.spark.api.python.PythonUtils").toSeq(array)


def newest_snapshot(spark: SparkSession, delta_log: Any) -> Any:  # noqa: ANN401 - of the JVM
    """Delta's snapshot of the table's newest version; Delta's public interface takes a Spark job to describe it."""
    nothing = option(spark)
    stale_is_fine = False
    return delta_log.update(stale_is_fine, nothing, nothing)


def metadata_of(snapshot: Any) -> dict[str, Any]:  # noqa: ANN401 - of the JVM
    """The metadata action of a snapshot, or of a transaction, with the names of Delta's protocol."""
    action: dict[str, dict[str, Any]] = json.loads(snapshot.metadata().json())
    return action["metaData"]


def last_transaction(snapshot: Any, application: str) -> int:  # noqa: ANN401 - of the JVM
    """The last transaction of an application as of a snapshot of Delta's; -1: none yet."""
    summed_up = snapshot.checksumOpt()  # what Delta writes beside a commit; to look further takes a Spark job
    known = summed_up.get().setTransactions() if summed_up.isDefined() else summed_up
    if known.isDefined():
        found = [known.get().apply(index) for index in range(known.get().size())]
        return max((int(each.version()) for each in found if each.appId() == application), default=-1)
    last = snapshot.transactions().get(application)
    return int(last.get()) if last.isDefined() else -1
