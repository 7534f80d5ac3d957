"""Kafka's __consumer_offsets log, replayed into Delta Lake tables by Apache Spark."""

__version__ = "0.2.0"
