"""The log table: its rows, how they are appended, which log partition a group belongs to."""
