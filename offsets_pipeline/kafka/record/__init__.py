"""The wire format of Kafka's log: records of `__consumer_offsets` and the segment files that hold them.

numpy and pyarrow only; nothing here imports pyspark.
"""
