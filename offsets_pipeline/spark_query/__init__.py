"""Kafka offsets of Structured Streaming queries: from checkpoints and progress events into groups, and back."""
