"""Folding the log into the state tables, in a stream or in batch, and keeping both small."""
