"""The coordinator of an owned log: it commits and fetches offsets, and stores them in the Delta table `log` alone.

No module here imports pyspark. Handlers validate a request and *return records*. Only a replay of the log changes the
state, and loading is the same replay (docs/adr/0013).
"""
