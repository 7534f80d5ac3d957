"""Taking the log back out: a broker's segment files, written from the table `log`."""
