"""Plans of `offsets reset-offsets`: where groups are, where partitions begin and end, and what to commit."""
