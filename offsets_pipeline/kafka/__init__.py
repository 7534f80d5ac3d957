"""Kafka's formats and protocols, without Spark: records and brokers."""
