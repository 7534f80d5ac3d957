"""Delta tables: creating, reading, committing and compacting them without Spark."""
