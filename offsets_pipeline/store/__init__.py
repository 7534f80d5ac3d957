"""A store: its Delta tables, the log among them, and which process works on it."""
