"""Questions to a store."""
