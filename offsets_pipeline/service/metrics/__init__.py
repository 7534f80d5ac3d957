"""Metrics: their names, and their exposition to Prometheus."""
