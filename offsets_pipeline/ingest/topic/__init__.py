"""A broker's live topic as a source of the log."""
