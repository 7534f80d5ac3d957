"""What only the log can answer: states of the past, every commit, every deletion and its cause. No Spark.

All functions work on Arrow tables of log rows; `log_history.py` reads these rows from a store. Spark calls the same
functions in its tasks (query/views.py).
"""
