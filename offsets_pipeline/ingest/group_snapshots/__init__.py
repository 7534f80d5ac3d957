"""Snapshots of a cluster's groups by its Admin API, and the log of the changes between them. No pyspark."""
