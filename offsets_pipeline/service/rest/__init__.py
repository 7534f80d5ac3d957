"""The HTTP server of all services: access rules, limits, TLS. No pyspark."""
