"""Export of the table `log` to segment files that a broker can load."""
