"""Consumer lag: in offsets, in seconds, and as a status. Starts no Spark."""
