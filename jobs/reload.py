"""Rebuild the state of log partitions from their log: `offsets reload` for spark-submit, with the same options."""

import sys

from offsets_pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main(["reload", *sys.argv[1:]]))
