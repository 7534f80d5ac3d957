"""HTTP services: the REST interface of Kafka Connect for an owned store. No pyspark."""
