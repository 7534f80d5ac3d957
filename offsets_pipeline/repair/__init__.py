"""Repairs: resetting, restoring and exporting offsets."""
