"""The one HTTP server of all services, and metrics."""
