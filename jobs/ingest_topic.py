"""Append a broker's offsets topic to the log: `offsets ingest-topic` for spark-submit, with the same options."""

import sys

from offsets_pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main(["ingest-topic", *sys.argv[1:]]))
