"""`offsets fold`, `reload` and `verify`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from offsets_pipeline.cli.opened import open_store
from offsets_pipeline.cli.output import show_status, write_rows
from offsets_pipeline.cli.progress_bar import progress_bar, tasks
from offsets_pipeline.cli.stopping import Stopping
from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.common.input_text import counted
from offsets_pipeline.common.warnings import set_line_times, warn
from offsets_pipeline.errors import StateDiffers
from offsets_pipeline.fold.state.fold import reload_partitions
from offsets_pipeline.fold.state.verify import verify_store
from offsets_pipeline.fold.stream.fold_stream import start_fold
from offsets_pipeline.fold.stream.folding import Folding, Publisher
from offsets_pipeline.store.delta.filesystems import arrow_folder
from offsets_pipeline.store.lease import END, FOLD, WAIT, Lease

if TYPE_CHECKING:
    from offsets_pipeline.cli.section_state import Fold, Reload, Verify
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.fold.maintenance import Upkeep


def fold(options: Fold, settings: Settings) -> int:
    """Fold the log until stopped, or all that it has now; returns the exit status. Raises LeaseHeld, LeaseLost."""
    total = expired_offsets = expired_groups = 0

    def on_fold(records: int) -> None:
        nonlocal total
        total += records
        show_status(f"{counted(records, 'record')} folded")

    def on_expiry(offsets: int, groups: int) -> None:
        nonlocal expired_offsets, expired_groups
        expired_offsets += offsets
        expired_groups += groups
        show_status(f"{counted(offsets, 'offset')} and {counted(groups, 'group')} expired")

    def on_upkeep(done: Sequence[Upkeep]) -> None:
        before, after = sum(each.files_before for each in done), sum(each.files for each in done)
        show_status(f"upkeep done: {before} files before, {after} after; {sum(each.on_disk for each in done)} on disk")

    set_line_times(are_on=not options.available_now)
    store, clock = open_store(options.store, settings), SystemClock()
    lease = Lease(arrow_folder(store.folder()), "fold", (FOLD,), settings, clock, warn)
    with lease.held(options.if_held or (END if options.available_now else WAIT)):
        folding = Folding(store, settings, clock, on_fold=on_fold, on_expiry=on_expiry, on_upkeep=on_upkeep, warn=warn)
        status = 0
        if options.available_now:
            with progress_bar("folding", tasks):
                folding.fold_to_end()
        else:
            stream = start_fold(folding)
            stopping = Stopping(stream.stop, store.spark)
            lease.when_lost(stream.stop)
            stream.await_end()
            status = stopping.status(has_an_end=False)
    expired = f"; {counted(expired_offsets, 'offset')} and {counted(expired_groups, 'group')} expired"
    sys.stdout.write(
        f"{counted(total, 'record')} folded in {options.store}{expired if expired_offsets or expired_groups else ''}\n"
    )
    return status


def reload(options: Reload, settings: Settings) -> None:
    """Rebuild the state of these log partitions, or of all."""
    store = open_store(options.store, settings)
    with progress_bar("replaying", tasks):
        records = reload_partitions(store, list(options.partitions) or None, settings, SystemClock(), options.semantics)
        Publisher(store, settings.fold, SystemClock(), warn).finish()
    sys.stdout.write(f"{counted(records, 'record')} replayed in {options.store}\n")


def verify(options: Verify, settings: Settings) -> None:
    """Compare the state with a replay of the log. Raises StateDiffers."""
    store = open_store(options.store, settings)
    with progress_bar("comparing", tasks):
        result = verify_store(store, settings.fold, independent=options.independent)
    if not result.equal:
        counts = ", ".join(f"{count} in {table}" for table, count in result.differences.items())
        raise StateDiffers(
            f"{options.store} differs from its log: {counts} (first: {result.examples[0]}); "
            "`offsets reload` rebuilds the state"
        )
    sys.stdout.write(
        f"equal: {counted(result.offsets, 'offset')} and {counted(result.groups, 'group')} match a replay of the "
        f"{counted(result.records, 'folded record')} of {counted(result.log_partitions, 'log partition')}\n"
    )
    digests = {(at, table): digest for at, table, digest in result.digests}
    tables = sorted({table for _, table in digests})
    rows = [[at, *(digests.get((at, table)) for table in tables)] for at in sorted({at for at, _ in digests})]
    if rows:
        write_rows(["log_partition", *tables], rows, "table")
