"""A live topic as a source of the log."""
