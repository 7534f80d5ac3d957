"""Remove records that no replay needs from the log: `offsets clean-log` for spark-submit, with the same options."""

import sys

from offsets_pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main(["clean-log", *sys.argv[1:]]))
