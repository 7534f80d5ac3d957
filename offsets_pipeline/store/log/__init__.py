"""The table `log`: appends, reads, compaction of its files, and cleaning; and the metadata of its partitions."""
