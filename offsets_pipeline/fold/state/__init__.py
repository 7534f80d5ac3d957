"""The state tables: what a fold of the log writes, and how it is read back."""
