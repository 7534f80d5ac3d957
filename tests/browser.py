"""A headless Chromium that renders pages for tests: their console, their layout, and pictures of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import unescape
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_SECONDS = 60
#: Chromium's own setting of `prefers-color-scheme`.
_SCHEMES = {"dark": 0, "light": 1}
_CONSOLE = re.compile(r":CONSOLE[:(]\d+\)?\] (.*)$", re.MULTILINE)

#: Finds texts that lie over each other or are cut off. Writes the findings into the page.
_CHECK = """
<script>
addEventListener("load", () => {
  const found = [];
  const said = each => (each.textContent || each.tagName).trim().slice(0, 40);
  const before = (a, b) => a.right <= b.left + 1 || a.bottom <= b.top + 1;
  const meet = (a, b) => !before(a, b) && !before(b, a);
  const pairs = (all, what) => {
    const boxes = all.map(each => [each, each.getBoundingClientRect()]).filter(([, box]) => box.width && box.height);
    boxes.forEach(([one, a], at) => boxes.slice(at + 1).forEach(([other, b]) => {
      if (!one.contains(other) && !other.contains(one) && meet(a, b))
        found.push(`${what}: ${said(one)} / ${said(other)}`);
    }));
  };
  document.querySelectorAll("svg").forEach(svg => {
    const texts = [...svg.querySelectorAll("text, .mark")], outer = svg.getBoundingClientRect();
    pairs(texts, "texts of a chart overlap");
    texts.forEach(each => {
      const box = each.getBoundingClientRect();
      if (box.left < outer.left - 1 || box.right > outer.right + 1 || box.bottom > outer.bottom + 1)
        found.push(`a text of a chart is cut off: ${said(each)}`);
    });
  });
  document.querySelectorAll("tr").forEach(row => pairs([...row.cells], "cells overlap"));
  pairs([...document.querySelectorAll("main > *, section > *, .tiles > *, .legend > li")], "parts overlap");
  document.querySelectorAll("td, th, dd, dt, p, h1, h2, li, caption").forEach(each => {
    if (each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).display != "inline")
      found.push(`a text is wider than its box: ${said(each)}`);
  });
  if (document.documentElement.scrollWidth > innerWidth) found.push("the page is wider than the window");
  document.body.insertAdjacentHTML("beforeend", `<pre id="checked"></pre>`);
  const texts = document.querySelectorAll("text").length;
  const images = [...document.images].map(each => [each.naturalWidth, each.naturalHeight]);
  document.getElementById("checked").textContent = JSON.stringify({found, texts, images});
});
</script>
"""


@dataclass(frozen=True)
class Seen:
    """What a browser made of a page: lines of its console, faults of its layout, its number of chart texts, and the
    width and height of its images.
    """

    console: list[str]
    faults: list[str]
    chart_texts: int
    images: list[list[int]]


class Browser:
    """Chromium without a window."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program = program
        self._folder = folder

    def picture(self, url: str, to: Path, width: int = 1100, height: int = 2400, scheme: str = "light") -> list[str]:
        """Render a page into a PNG; returns the lines of its console."""
        done = self._run(url, width, height, scheme, f"--screenshot={to}")
        assert to.stat().st_size > 0
        return _CONSOLE.findall(done.stderr)

    def dom(self, url: str, wait_ms: int, width: int = 1100) -> tuple[str, list[str]]:
        """Return the elements of a page after its scripts ran for some time, and the lines of its console."""
        done = self._run(url, width, 2400, "light", "--dump-dom", f"--timeout={wait_ms}")
        return done.stdout, _CONSOLE.findall(done.stderr)

    def look(self, page: str, width: int = 1100, height: int = 2400, scheme: str = "light") -> Seen:
        """Check the layout of a page in HTML."""
        file = self._folder / "checked.html"
        # the page's policy forbids the script that looks at it
        open_page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
        assert open_page.count("</body>") == 1
        file.write_text(open_page.replace("</body>", f"{_CHECK}</body>"), encoding="utf-8")
        done = self._run(file.as_uri(), width, height, scheme, "--dump-dom")
        found = re.findall(r'<pre id="checked">(\{.*?)</pre>', done.stdout, re.DOTALL)
        assert len(found) == 1, done.stderr[-2000:]
        told = json.loads(unescape(found[0]))
        return Seen(_CONSOLE.findall(done.stderr), told["found"], told["texts"], told["images"])

    def _run(self, url: str, width: int, height: int, scheme: str, *what: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                self._program,
                *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
                *(
                    "--disable-extensions",
                    "--no-first-run",
                    "--disable-background-networking",
                    "--enable-logging=stderr",
                ),
                f"--user-data-dir={self._folder / 'profile'}",
                f"--blink-settings=preferredColorScheme={_SCHEMES[scheme]}",
                f"--window-size={width},{height}",
                *what,
                url,
            ],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )


def find_browser(folder: Path) -> Browser:
    """Return the installed browser. Without one it skips the test, or fails it if OFFSETS_TEST_BROWSER is set (CI)."""
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        missing = "no browser: install Debian's package chromium to render the pictures"
        if os.environ.get("OFFSETS_TEST_BROWSER"):
            pytest.fail(missing)
        pytest.skip(missing)
    return Browser(program, folder)
