"""Metrics: their registry, and the server that answers Prometheus."""
