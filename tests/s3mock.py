"""An S3 server of another make than moto: Adobe's S3Mock, in a JVM."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.broker import free_ports
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Makes of servers, for the fixture `s3` of a test that asks each.
EACH_MAKE = pytest.mark.parametrize(
    "s3", ["moto", pytest.param("s3mock", marks=[pytest.mark.process, pytest.mark.slow])], indirect=True
)
FETCH_JARS = Path(__file__).parents[1] / "scripts" / "fetch_jars.py"
_SECONDS_TO_START = 120  # four on a quiet machine
S3MOCK_JARS = Path(sys.prefix) / "s3mock"


@contextmanager
def s3mock(folder: Path) -> Iterator[str]:
    """Run the server with a folder for its log; gives its URL."""
    subprocess.run([sys.executable, str(FETCH_JARS), "--into", str(S3MOCK_JARS), "s3mock"], check=True)
    (jar,) = S3MOCK_JARS.glob("s3mock-*.jar")
    port, tls_port = free_ports(2)
    url, log = f"http://127.0.0.1:{port}", folder / "s3mock.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                *("java", "-Xmx400m", "-XX:TieredStopAtLevel=1", "-jar", jar),
                *(f"--com.adobe.testing.s3mock.httpPort={port}", f"--server.port={tls_port}"),
            ],
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
    try:

        def answers() -> bool:
            assert process.poll() is None, log.read_text()
            try:
                urllib.request.urlopen(url).close()
            except urllib.error.HTTPError:
                return True
            except OSError:
                return False
            return True

        wait_until("S3Mock answers", answers, _SECONDS_TO_START)
        yield url
    finally:
        process.terminate()
        process.wait()
