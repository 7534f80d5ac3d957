"""A client of Kafka's brokers without Spark: metadata, offsets, and raw record batches as a fetch returns them."""
