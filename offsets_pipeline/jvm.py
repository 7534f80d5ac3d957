"""Classes of the JVM that have no public name in Python."""

from __future__ import annotations

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
