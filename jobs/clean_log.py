"""Remove from the old part of the log what no replay needs: `offsets clean-log` for spark-submit, same options."""

import sys

from offsets_pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main(["clean-log", *sys.argv[1:]]))
