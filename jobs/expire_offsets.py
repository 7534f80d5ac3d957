"""Expire the offsets of an owned store: `offsets expire-offsets` for spark-submit, with the same options."""

import sys

from offsets_pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main(["expire-offsets", *sys.argv[1:]]))
