"""A process that works on a store while its coordinator runs, until its standard input ends.

    python beside.py STORE upkeep     compaction, cleaning and vacuum, in a loop
    python beside.py STORE folds      a stream that folds, and a reload every few seconds

Prints "ready", then a line for each round.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import replace

from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.common.config.sections import FoldSettings, SparkSettings
from offsets_pipeline.fold.maintenance import maintain_store
from offsets_pipeline.fold.state.fold import reload_partitions
from offsets_pipeline.fold.stream.fold_stream import start_fold
from offsets_pipeline.fold.stream.folding import Folding
from offsets_pipeline.store.delta import retry
from offsets_pipeline.store.delta.schemas import LOG
from offsets_pipeline.store.log.clean import clean_log
from offsets_pipeline.store.session import build_session
from offsets_pipeline.store.store import Store

RELOAD_EVERY_SECONDS = 5.0
FOLD = FoldSettings(trigger_interval_ms=500, compact_files=5)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def upkeep(store: Store, settings: Settings, ended: threading.Event) -> None:
    while not ended.is_set():
        cleaned = clean_log(store, settings, SystemClock())
        (log,) = (each for each in maintain_store(store, SystemClock(), settings) if each.table == LOG.name)
        say(f"removed {cleaned.removed} files {log.files_before} {log.files}")


def folds(store: Store, settings: Settings, ended: threading.Event) -> None:
    folded = threading.Event()

    def after_fold(records: int) -> None:
        say(f"folded {records}")
        folded.set()

    stream = start_fold(Folding(store, replace(settings, fold=FOLD), SystemClock(), on_fold=after_fold))
    while not ended.wait(RELOAD_EVERY_SECONDS):
        if folded.is_set():  # a reload overtakes the batch that the stream folds meanwhile
            folded.clear()
            say(f"reloaded {reload_partitions(store, None, settings, SystemClock())}")
    stream.stop()
    stream.await_end()


def main(location: str, what: str) -> None:
    spark = SparkSettings(master="local[2]", shuffle_partitions=2, driver_memory="1g")
    settings = Settings(spark=spark, fold=replace(FOLD, expire_in_stream=False))
    store = Store.open(build_session(what, settings), location)
    retry.MAX_RETRIES, retry.MAX_BACKOFF_MS = 100, 500
    ended = threading.Event()
    say("ready")
    work = threading.Thread(target={"upkeep": upkeep, "folds": folds}[what], args=(store, settings, ended))
    work.start()
    sys.stdin.read()
    ended.set()
    work.join()
    say("ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
