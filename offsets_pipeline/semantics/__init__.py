"""The rules of `__consumer_offsets` (docs/semantics.md): replay, groups, retention, cleaning. No Spark, Delta or I/O.

The package imports only `record`, the errors, numpy and pyarrow.
"""
