"""Measures how the cost of each step grows with the log and its identities, and computes docs/scaling.md from it.

    python benchmarks/growth.py [--sizes 1:20 5:50 20:100 50:200] [--folder FOLDER]
    python benchmarks/growth.py --docs

A size is millions of identities and millions of records, 10 a batch. Each is measured in a process of its own, and its
figures go to benchmarks/growth.json. 200 million records need some 40 GB of disk.

With `--docs` nothing is measured: the part of docs/scaling.md between its markers is computed from that file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a program, not as a module

from benchmarks.broker import ended_by_sigterm
from benchmarks.living import LivingStore, asked
from benchmarks.log_content import Shape
from benchmarks.processes import ProcessTree
from benchmarks.table import markdown
from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.fold.maintenance import maintain_store
from offsets_pipeline.fold.state.fold import fold_log, reload_partitions
from offsets_pipeline.ingest.segments.segment_ingest import ingest_segments
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.session import build_session
from offsets_pipeline.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Figures = Mapping[str, float]

_HERE = Path(__file__).resolve().parent
FIGURES = _HERE / "growth.json"
DOCS = _HERE.parent / "docs" / "scaling.md"
_BEGIN, _END = "<!-- computed by benchmarks/growth.py --docs -->", "<!-- end -->"
_BATCHES, _SHARES, _READS = 5, 3, 5
_WARM_UP = Shape(commits=20_000, groups=500, records_per_batch=10)
_MILLION = 1_000_000
#: Of a million commits a second the share of one machine like this one, in batches of so many seconds.
_MACHINES, _CORES, _SHARE_SECONDS = 8, 2, 2
_SHARE = _SHARE_SECONDS * _MILLION // _MACHINES
_STEPS = ("ingest", "fold", "reload", "micro-batch", "share", "describe", "compaction")
_HEADS = (
    "identities",
    "records",
    "ingest",
    "fold",
    "reload",
    "micro-batch of 10,000",
    f"of {_SHARE:,}",
    "describe --group",
    "maintain",
    "memory",
)
_BEYOND = f"""\
By the last row:

- *A record* takes {{ingest_us:.2f}} µs of a core to ingest, {{reload_us:.2f}} µs to reload, and {{log:.1f}} bytes of
  the log. *An identity* takes {{state:.1f}} bytes of the published state.
- *A million commits a second* are {{log:.0f}} MB of log a second, {{log_tb:.1f}} TB a day, and ingest keeps
  {{ingest_us:.1f}} cores busy. The share of one of {_MACHINES} machines of {_CORES} cores is {_SHARE:,} commits every
  {_SHARE_SECONDS} s. A micro-batch of so many took {{share}}: {{verdict}}.
- *A billion identities* are {{state:.0f}} GB of published state. The share of one of {{machines}} machines of
  {_CORES} cores is {{each:.0f}} million: this row reloaded it in {{reload}}."""


def measure(identities: int, records: int, folder: Path) -> Figures:
    """Return the seconds of each step, and bytes, for a log of so many identities and records."""
    settings, clock = Settings(), SystemClock()
    shape = Shape(commits=records, groups=identities // 10, records_per_batch=10)
    sizes = ("--commits", str(shape.commits), "--groups", str(shape.groups), "--records-per-batch", "10")
    segments = folder / "segments"  # made by another process, whose memory ends with it
    subprocess.run([sys.executable, _HERE / "generate.py", segments, *sizes], check=True, stdout=subprocess.DEVNULL)
    spark = build_session("benchmarks", settings)
    spark.sparkContext.setLogLevel("ERROR")
    LivingStore.made(spark, settings, _WARM_UP, folder / "small").fold(_BATCHES)
    store = Store.create(spark, str(folder / "store"), StoreProperties(MIRRORED, shape.offsets_partitions))
    seconds: dict[str, float] = {}

    def timed(what: str, work: Callable[[], object]) -> None:
        begun = time.perf_counter()
        work()
        seconds[what] = time.perf_counter() - begun

    with ProcessTree(os.getpid()).watched() as processor_time:
        timed("ingest", lambda: ingest_segments(spark, store.location, [str(segments)], settings, clock))
    seconds["ingest, of processors"] = processor_time.seconds
    shutil.rmtree(segments)
    shutil.copytree(store.location, folder / "copy")
    copy = Store.open(spark, str(folder / "copy"))
    timed("fold", lambda: fold_log(copy, settings, clock))
    shutil.rmtree(folder / "copy")
    with ProcessTree(os.getpid()).watched() as processor_time:
        timed("reload", lambda: reload_partitions(store, None, settings, clock))
    seconds["reload, of processors"] = processor_time.seconds
    living = LivingStore(settings, shape, folder, store)
    seconds["micro-batch"] = statistics.median(living.fold(_BATCHES))
    seconds["share"] = statistics.median(living.fold(_SHARES, _SHARE))
    groups = store.read("consumer_groups").select("group_id").limit(_READS).collect()
    seconds["describe"] = statistics.median(asked(living, "--group", row["group_id"]) for row in groups)
    memory = ProcessTree(os.getpid()).memory_mib()
    timed("compaction", lambda: maintain_store(store, clock))
    stored = living.stored()
    log_bytes = stored.pop("log")[1]
    return {
        "identities": living.identities,
        "records": records,
        **seconds,
        "log bytes": log_bytes,
        "state bytes": sum(each[1] for each in stored.values()),
        "memory MiB": memory,
    }


def computed(figures: Sequence[Figures]) -> str:
    """Return the computed part of docs/scaling.md: what was measured, and what one machine's share of more takes."""
    rows = [
        [f"{each['identities'] / _MILLION:.1f} M", f"{each['records'] / _MILLION:.0f} M"]
        + [_seconds(each[name]) for name in _STEPS]
        + [f"{each['memory MiB'] / 1024:.1f} GB"]
        for each in figures
    ]
    last = figures[-1]
    ingest, reload = (last[f"{step}, of processors"] / last["records"] for step in ("ingest", "reload"))
    log, state = last["log bytes"] / last["records"], last["state bytes"] / last["identities"]
    beyond = _BEYOND.format(
        ingest_us=ingest * 1e6,
        reload_us=reload * 1e6,
        log=log,
        log_tb=log * 0.0864,
        state=state,
        share=_seconds(last["share"]),
        verdict=_verdict(last["share"]),
        machines=math.ceil(1e9 / last["identities"]),
        each=last["identities"] / _MILLION,
        reload=_seconds(last["reload"]),
    )
    return f"{markdown([_HEADS, *rows])}\n\n{beyond}"


def _verdict(share: float) -> str:
    needed = math.ceil(_MACHINES * share / _SHARE_SECONDS)
    return f"{_MACHINES} keep up" if share <= _SHARE_SECONDS else f"{_MACHINES} do not keep up, {needed} would"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def with_computed(page: str, figures: Sequence[Figures]) -> str:
    """Return docs/scaling.md with the part between its markers as the figures say."""
    before, _, rest = page.partition(_BEGIN)
    return f"{before}{_BEGIN}\n\n{computed(figures)}\n\n{_END}{rest.partition(_END)[2]}"


def _measured(size: str, folder: Path | None) -> Figures:
    with tempfile.TemporaryDirectory(prefix="offsets-growth-", dir=folder) as temporary:
        command = [sys.executable, __file__, "--measure", size, "--folder", temporary]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=["1:20", "5:50", "20:100", "50:200"], metavar="MILLIONS:MILLIONS")
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    parser.add_argument("--docs", action="store_true", help="compute docs/scaling.md")
    parser.add_argument("--measure", metavar="MILLIONS:MILLIONS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.docs:
        figures = json.loads(FIGURES.read_text(encoding="utf-8"))
        DOCS.write_text(with_computed(DOCS.read_text(encoding="utf-8"), figures), encoding="utf-8")
        return
    if options.measure:
        identities, records = (int(float(each) * _MILLION) for each in options.measure.split(":"))
        print(json.dumps(measure(identities, records, options.folder)))
        return
    with ended_by_sigterm():
        measured = []
        for size in options.sizes:
            print(f"growth: {size}", file=sys.stderr, flush=True)
            measured.append(_measured(size, options.folder))
            FIGURES.write_text(f"{json.dumps(measured, indent=1)}\n", encoding="utf-8")
    print(computed(measured))


if __name__ == "__main__":
    main()
