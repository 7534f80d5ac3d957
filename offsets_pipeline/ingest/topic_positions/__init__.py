"""Positions of topics: log start and log end of their partitions, now and at the times at which they were sampled."""
