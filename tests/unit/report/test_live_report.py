"""`serve`: the page, its contents and its data over HTTP, and access to them."""

from __future__ import annotations

import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.errors import DamagedTable
from offsets_pipeline.questions.report import live_report
from offsets_pipeline.questions.report.live_report import LiveReport
from offsets_pipeline.questions.report.page import fragment, page
from offsets_pipeline.service.rest.server import Access, RestServer
from tests.unit.report.reports import EMPTY_REPORT, NOW_MS, full_report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from offsets_pipeline.questions.report.model import Report

TOKEN = "a-token-of-enough-length"
HOUR_MS = 3_600_000


@contextmanager
def served(collect: Callable[[], Report], every_ms: int = HOUR_MS, access: Access | None = None) -> Iterator[str]:
    """The service at a free port; yields its address."""
    live = LiveReport(collect, every_ms)
    with RestServer("127.0.0.1", 0, access or Access(), lambda _: live.app, 4_096) as server:
        yield server.address


def get(
    address: str, path: str = "/", method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[int, str, dict[str, str]]:
    """Status, body and headers of an answer."""
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def test_page_contents_and_data_are_of_one_report() -> None:
    report = full_report()
    with served(lambda: report) as address:
        status, text, headers = get(address)
        assert (status, text) == (200, page(report, HOUR_MS))
        assert headers["content-type"] == "text/html; charset=utf-8"
        assert headers["cache-control"] == "no-store"
        assert headers["content-security-policy"].startswith("default-src 'none'; ")
        assert get(address, "/fragment")[1] == fragment(report)
        assert get(address, "/health")[:2] == (200, f"the report is as of {shown_time(NOW_MS)}\n")
        data = json.loads(get(address, "/report.json")[1])
    assert data["groups"]["rows"][1]["group"] == "<script>alert(1)</script>"
    assert data["made_ms"] == NOW_MS
    assert data["lag_over_time"]["series"][0]["points"][1] == list(report.lag_over_time.series[0].points[1])


def test_many_readers_cost_one_reading_of_the_store() -> None:
    begun, readings = threading.Barrier(20), []

    def collect() -> Report:
        readings.append(1)
        return EMPTY_REPORT

    def read(_: int) -> int:
        begun.wait(30)
        return get(address)[0]

    with served(collect) as address, ThreadPoolExecutor(20) as readers:
        assert list(readers.map(read, range(20))) == [200] * 20
    assert len(readings) == 1


def test_a_report_older_than_the_interval_is_read_again() -> None:
    made: list[Report] = []

    def collect() -> Report:
        made.append(replace(EMPTY_REPORT, store=f"store {len(made)}"))
        return made[-1]

    with served(collect, every_ms=0) as address:
        texts = [get(address)[1] for _ in range(3)]
    assert [f"Offsets of store {number}" in text for number, text in enumerate(texts)] == [True] * 3


@pytest.mark.parametrize(("reading_seconds", "rest_seconds"), [(0.5, 3.0), (1.0, 4.0)])
def test_readings_of_the_store_take_at_most_a_fifth_of_the_time(
    monkeypatch: pytest.MonkeyPatch, reading_seconds: float, rest_seconds: float
) -> None:
    now, made = 100.0, []

    def collect() -> Report:
        nonlocal now
        now += reading_seconds
        made.append(now)
        return EMPTY_REPORT

    monkeypatch.setattr(live_report, "time", SimpleNamespace(monotonic=lambda: now))
    live = LiveReport(collect, 3_000)
    for seconds, readings in ((0, 1), (rest_seconds - 0.125, 1), (0.125, 2), (0, 2)):
        now += seconds
        live._current()
        assert len(made) == readings


def test_a_store_that_cannot_be_read_for_a_while_is_told_in_one_line() -> None:
    broken = [True]

    def collect() -> Report:
        if broken[0]:
            raise DamagedTable("version 3 of /data/log is damaged")
        return EMPTY_REPORT

    with served(collect, every_ms=0) as address:
        for path in ("/", "/fragment", "/report.json", "/health"):
            assert get(address, path)[:2] == (503, "version 3 of /data/log is damaged")
        broken[0] = False
        assert get(address)[0] == 200


def test_other_paths_methods_and_hosts_are_refused() -> None:
    with served(lambda: EMPTY_REPORT) as address:
        assert get(address, "/../etc/passwd")[0] == 400
        assert get(address, "/favicon.ico")[0] == 404
        assert get(address, method="POST")[0] == 405
        assert get(address, headers={"Host": "rebound.example"})[0] == 400


def test_a_token_is_required_where_one_is_set(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN, encoding="ascii")
    with served(lambda: EMPTY_REPORT, access=Access(token_file=tmp_path / "token")) as address:
        assert get(address)[0] == 401
        assert get(address, headers={"Authorization": f"Bearer {TOKEN}x"})[0] == 401
        assert get(address, headers={"Authorization": f"Bearer {TOKEN}"})[0] == 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--listen", "0.0.0.0:0"], "without authentication, because it is not a loopback address"),
        (["--listen", "127.0.0.1:0", "--token-file", "none"], "cannot read the token in none"),
    ],
)
def test_command_refuses_an_open_address(
    capsys: pytest.CaptureFixture[str], report_store: Path, options: list[str], message: str
) -> None:
    assert main(["serve", "--store", str(report_store), *options]) == 1
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert message in err


def test_command_refuses_a_folder_that_is_no_store(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["serve", "--store", str(tmp_path), "--listen", "0"]) == 1
    assert "offsets: error: " in capsys.readouterr().err
