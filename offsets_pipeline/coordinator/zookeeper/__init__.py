"""The ZooKeeper tree in which Kafka's first consumers keep offsets, and text dumps of it."""
