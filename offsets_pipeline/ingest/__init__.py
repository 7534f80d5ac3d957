"""Copies the log of a Kafka broker into the table `log`: from segment files, or from a live topic."""
