"""A broker's segment files as a source of the log."""
