"""Append a broker's offsets topic to the log and fold it: `offsets follow` for spark-submit, with the same options."""

import sys

from offsets_pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main(["follow", *sys.argv[1:]]))
