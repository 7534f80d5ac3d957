"""Prometheus' own tool, which evaluates rules and queries over metrics that tests give it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_SECONDS = 60
_OF_TIME = "_timestamp_seconds"
_FIRING = 'sum without (alertstate, severity) (ALERTS{alertstate="firing"})'


class Promtool:
    """`promtool` with the project's rules; ``folder`` is for its files."""

    def __init__(self, program: str, rules: Path, folder: Path) -> None:
        self._program = program
        self._rules = rules
        self._folder = folder

    def run(self, *arguments: object) -> str:
        """Run a command; returns its output. Fails the test if the tool does."""
        done = subprocess.run(
            [self._program, *map(str, arguments)], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def assert_firing(
        self, scrapes: Sequence[tuple[float, str]], expected: Mapping[int, Mapping[str, Sequence[str]]]
    ) -> None:
        """Check which alerts fire.

        Args:
            scrapes: times in seconds since 1970, and expositions, one for each minute. The last one lasts. Prometheus'
                test begins at the time 0, so metrics that are times are moved: they keep their age at the scrape.
            expected: by minute and by alert, the labels of what fires, such as `group="billing"`.
        """
        series: dict[str, list[str]] = {}
        for minute, (scraped_s, text) in enumerate(scrapes):
            for sample in (each for family in text_string_to_metric_families(text) for each in family.samples):
                values = series.setdefault(series_of(sample.name, sample.labels), [])
                values += ["stale" if values else "_"] * (minute - len(values))
                moved_s = 60 * minute - scraped_s if sample.name.endswith(_OF_TIME) else 0
                values.append(repr(sample.value + moved_s))
        lasting = max(expected) + 1 - len(scrapes)
        for values in series.values():
            if len(values) < len(scrapes):
                values.append("stale")  # as Prometheus marks a series that a scrape no longer has
            elif lasting > 0:
                values.append(f"{values.pop()}x{lasting}")
        alerts = [
            {"expr": _FIRING, "eval_time": f"{minute}m"}
            | {"exp_samples": [{"labels": _alert(name, labels), "value": 1} for name in of for labels in of[name]]}
            for minute, of in expected.items()
        ]
        self.test({name: " ".join(values) for name, values in series.items()}, alerts)

    def assert_have_data(self, queries: Sequence[str], families: Mapping[str, Sequence[str]]) -> None:
        """Check that each query finds samples where each metric has one; ``families`` are its labels by its name."""
        series = {series_of(name, dict.fromkeys(labels, "x")): "1x10" for name, labels in families.items()}
        one = [{"labels": "{}", "value": 1}]
        self.test(
            series, [{"expr": f"count({each}) > bool 0", "eval_time": "10m", "exp_samples": one} for each in queries]
        )

    def test(self, series: Mapping[str, str], queries: Sequence[Mapping[str, object]]) -> None:
        """Evaluate queries over series of a value a minute, beside the rules."""
        found = [{"series": name, "values": values} for name, values in series.items()]
        document = {
            "rule_files": [str(self._rules)],
            "evaluation_interval": "1m",
            "tests": [{"interval": "1m", "input_series": found, "promql_expr_test": queries}],
        }
        file = self._folder / "rules.test.yml"
        file.write_text(json.dumps(document), encoding="utf-8")
        self.run("test", "rules", file)


def series_of(name: str, labels: Mapping[str, str]) -> str:
    return f"{name}{{{', '.join(f'{label}={json.dumps(value)}' for label, value in labels.items())}}}"


def _alert(name: str, labels: str) -> str:
    return f'{{alertname="{name}"{", " if labels else ""}{labels}}}'


def find_promtool(rules: Path, folder: Path) -> Promtool:
    """Return the installed tool. Without one it skips the test, or fails it if OFFSETS_TEST_PROMTOOL is set (CI)."""
    program = shutil.which("promtool")
    if program is None:
        missing = "no promtool: install Debian's package prometheus to test the rules"
        if os.environ.get("OFFSETS_TEST_PROMTOOL"):
            pytest.fail(missing)
        pytest.skip(missing)
    return Promtool(program, rules, folder)
