"""Compare the state with a replay of the log: `offsets verify` for spark-submit, with the same options."""

import sys

from offsets_pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main(["verify", *sys.argv[1:]]))
