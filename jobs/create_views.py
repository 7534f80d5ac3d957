"""Create the views in a catalog: `offsets create-views` for spark-submit, with the same options."""

import sys

from offsets_pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main(["create-views", *sys.argv[1:]]))
