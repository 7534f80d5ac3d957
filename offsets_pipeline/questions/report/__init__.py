"""The report: one page about the groups of a store, as a file or served live. Starts no Spark."""
