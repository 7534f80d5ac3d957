"""Kafka Connect: records of a worker's topics, their replay, and offsets of source connectors. No pyspark."""
