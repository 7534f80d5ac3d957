"""Streaming queries: the fold with the retention of an owned store, and following a topic."""
