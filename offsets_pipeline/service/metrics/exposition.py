"""Exposes metrics to Prometheus in a file and over HTTP. Imported only by a process that may do so."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client.exposition import write_to_textfile
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import CollectorRegistry

from offsets_pipeline.common.closing import Closing
from offsets_pipeline.common.foreign_errors import first_line
from offsets_pipeline.common.periodic import Periodic
from offsets_pipeline.errors import TargetNotWritable
from offsets_pipeline.service.metrics.metric_families import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from prometheus_client.metrics_core import Metric

    from offsets_pipeline.service.metrics.metric_families import Values, ValueSource
    from offsets_pipeline.service.rest.server import RestServer

_CLASSES: Mapping[str, Callable[..., Any]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "summary": SummaryMetricFamily,
}
_COUNT_SECONDS = 30.0  # between two counts of the state tables
_WRITE_SECONDS = 2.0


class _Collector:
    """Collects the present values of a source.

    The program has no `Counter` or `Gauge` of prometheus_client: they add series `_created`, and write files if the
    environment of the embedding process says so (PROMETHEUS_MULTIPROC_DIR).
    """

    def __init__(self, source: ValueSource) -> None:
        self._source = source

    def collect(self) -> Iterator[Metric]:
        return _families(self._source())


def _families(values: Values) -> Iterator[Metric]:
    """The metrics that have a value."""
    for name, value in values.items():
        of = FAMILIES[name]
        family = _CLASSES[of.type](name, of.help, labels=of.labels)
        series: Mapping[Any, Any] = value if isinstance(value, Mapping) else {(): value}
        for at, each in series.items():
            if each is not None:
                labels = at if isinstance(at, tuple) else (str(at),)
                family.add_metric(labels, *(each if isinstance(each, tuple) else (each,)))
        if family.samples:
            yield family


def registry_of(*sources: ValueSource) -> CollectorRegistry:
    """Return a registry that reads these sources for each exposition."""
    registry = CollectorRegistry()
    for source in sources:
        registry.register(_Collector(source))
    return registry


def write_metrics(registry: CollectorRegistry, path: Path) -> None:
    """Replace a file with all metrics, atomically. Raises TargetNotWritable."""
    try:
        write_to_textfile(str(path), registry)
    except OSError as error:
        raise TargetNotWritable(f"cannot write metrics to {path}: {error.strerror}") from error


class Exposition(Closing):
    """Exposes metrics in a file or at a port until `close`, or the end of `with`; passes later failures to ``warn``.

    Raises TargetNotWritable if the file cannot be written, ServiceUnavailable if the address cannot be bound.
    """

    def __init__(
        self, file: Path | None, address: tuple[str, int] | None, warn: Callable[[str], None], *sources: ValueSource
    ) -> None:
        """``sources`` are read for each exposition."""
        self._file = file
        self._warn = warn
        self._periodic: list[Periodic[None]] = []
        self._registry = registry_of(*sources)
        if file is not None:
            write_metrics(self._registry, file)
        self._server: RestServer | None = None
        if address is not None:
            from offsets_pipeline.service.metrics.metrics_server import serve_metrics  # noqa: PLC0415 - the extra `serve`

            self._server = serve_metrics(self._registry, *address)

    def start(self, *counted: ValueSource) -> None:
        """Read the sources ``counted`` every half minute and rewrite the file every two seconds, each in a thread.

        Does nothing without a file and a port.
        """
        if self._file is None and self._server is None:
            return
        found: dict[ValueSource, Values] = {source: {} for source in counted}
        for source in counted:
            self._registry.register(_Collector(partial(found.__getitem__, source)))

        def count() -> None:
            for source in counted:
                found[source] = source()

        self._start("figures", count, _COUNT_SECONDS, "cannot count the state tables")
        if self._file is not None:
            write = partial(write_metrics, self._registry, self._file)
            self._start("metrics-file", write, _WRITE_SECONDS, "metrics are not up to date")

    def _start(self, name: str, run: Callable[[], None], rest_seconds: float, failing: str) -> None:
        periodic = Periodic(
            run,
            round(rest_seconds * 1000),
            rests=True,
            warn=self._warn,
            describe=lambda error: f"{failing}: {first_line(error)}",
            at_end=run,
            name=name,
        )
        self._periodic.append(periodic)
        periodic.start()

    def close(self) -> None:
        """Count and write once more, then close the port."""
        for each in self._periodic:
            each.close()
        if self._server is not None:
            self._server.stop()
