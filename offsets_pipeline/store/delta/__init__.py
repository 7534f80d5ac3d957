"""Delta tables: creating, reading, committing and compacting them. The one package that does so, without Spark."""
