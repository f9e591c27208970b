"""A page in a headless browser, at any width, without a network."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--allow-file-access-from-files",
    "--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom",
)  # fmt: skip

# A browser's window has a least width; a frame has none.
_FRAME = """<!DOCTYPE html><body style="margin:0">
<iframe id="page" src="{page}" style="width:{width}px;height:2000px;border:0"></iframe><pre id="seen"></pre>
<script>window.addEventListener("load", () => {{
  const inner = document.getElementById("page").contentWindow, page = inner.document;
  const look = {look};
  document.getElementById("seen").textContent = JSON.stringify(look(page, inner));
}});</script>"""


@dataclass(frozen=True)
class Seen:
    """What a look returned, and what the browser's console said meanwhile."""

    found: Any
    console: list[str]


def look_at(page: Path, width: int, look: str, scratch: Path, *, dark: bool = False) -> Seen:
    """Opens a page and evaluates ``look``, a function of its document and window, in JavaScript.

    Args:
        page: an HTML file.
        width: of the page, CSS pixels.
        look: JavaScript; what it returns has to be JSON.
        scratch: a folder of the test's own.
        dark: whether the reader prefers dark pages.
    """
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"no browser ({', '.join(BROWSERS)}) is installed")
    frame = scratch / f"frame-{width}-{dark}.html"
    frame.write_text(_FRAME.format(page=page.as_uri(), width=width, look=look))
    flags = [*_FLAGS, f"--user-data-dir={scratch / 'profile'}"]
    flags += ["--blink-settings=preferredColorScheme=0"] if dark else []
    done = subprocess.run([browser, *flags, frame.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    said = re.search('<pre id="seen">(.+?)</pre>', done.stdout, re.DOTALL)
    assert said, done.stderr
    return Seen(json.loads(html.unescape(said[1])), [line for line in done.stderr.splitlines() if "CONSOLE" in line])
