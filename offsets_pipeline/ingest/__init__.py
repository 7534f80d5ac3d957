"""Landing logs from elsewhere in the log table."""
