"""Streaming queries: the fold, with retention if the store is owned, and the follower of a topic."""
