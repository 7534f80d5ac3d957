"""Append segment files to the log: `offsets ingest-segments` for spark-submit, with the same options."""

import sys

from offsets_pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main(["ingest-segments", *sys.argv[1:]]))
