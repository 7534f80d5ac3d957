"""Sample positions of topics into a store: `offsets sample-topic-offsets` for spark-submit, with the same options."""

import sys

from offsets_pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main(["sample-topic-offsets", *sys.argv[1:]]))
