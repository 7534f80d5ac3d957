"""The coordinator of an owned log: takes commits, answers questions, with the Delta table `log` as its only memory.

Nothing here imports pyspark. Handlers validate and *return records*; a replay of what is in the log is all that ever
changes state, and loading is the same replay (docs/adr/0013).
"""
