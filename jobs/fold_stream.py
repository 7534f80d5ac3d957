"""Fold the log into the state tables, the main job: `offsets fold` for spark-submit, with the same options."""

import sys

from offsets_pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main(["fold", *sys.argv[1:]]))
