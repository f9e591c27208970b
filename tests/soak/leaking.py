"""Leaking: a method of another package that keeps eight megabytes, a file and a thread of every request."""

from __future__ import annotations

import sys
from pathlib import Path

_DECODER = """
import mmap
import threading
from specbench import decoding
from specbench.decoding import Options as Base, TokenTree

KEPT, FILES, OVER = [], [], threading.Event()

class Options(Base):
    pass

class Decoder(decoding.Decoder):
    def __init__(self, options, context):
        self.last = -1
        KEPT.append(mmap.mmap(-1, 8 << 20))  # pages of its own: a heap may have as much to spare
        KEPT[-1].write(b"x" * (8 << 20))
        FILES.append(open("/dev/null"))
        threading.Thread(target=OVER.wait, daemon=True).start()

    @staticmethod
    def max_rows(options):
        return 1

    def observe(self, result):
        self.last = result.emitted[-1]

    def draft(self):
        return TokenTree.chain([self.last])
"""


def install(site: Path) -> None:
    """What ``pip install specbench-leaking`` would leave in a folder of packages: a method called ``leaking``."""
    package, info = site / "leaking_method", site / "specbench_leaking-1.0.dist-info"
    for folder in (package, info):
        folder.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "decoder.py").write_text(_DECODER)
    (package / "method.toml").write_text('title = "Leaking"\nsummary = "Keeps"\nlossless = true\n')
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: specbench-leaking\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[specbench.methods]\nleaking = leaking_method\n")


def release() -> None:
    """Gives back all that it has kept."""
    kept = sys.modules["leaking_method.decoder"]
    kept.OVER.set()
    kept.KEPT.clear()
    for file in kept.FILES:
        file.close()
