"""The command line `offsets`; the jobs in `jobs/` are its commands for spark-submit."""

from offsets_pipeline.cli.program import main

__all__ = ["main"]
