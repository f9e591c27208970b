"""A plug-in method that fails in one of many ways at its second prompt."""

from __future__ import annotations

from pathlib import Path

_DECODER = """
import ctypes, itertools, os, signal, sys, threading, time
from specbench import decoding
from specbench.decoding import Options as Base, TokenTree

class Options(Base):
    pass

class Decoder(decoding.Decoder):
    begun = 0

    def __init__(self, options, context):
        self.last = -1

    @staticmethod
    def max_rows(options):
        return 2

    def begin(self, prompt):
        Decoder.begun += 1
        self.number = Decoder.begun

    def observe(self, result):
        self.last = result.emitted[-1]

    def draft(self):
        if self.number == 3:
            WAY
        return TokenTree.chain([self.last])
"""

#: (code that fails, part of the error message).
WAYS: tuple[tuple[str, str], ...] = (
    ("raise ValueError('no luck')", "failed in draft (ValueError: no luck"),
    ("sys.exit(0)", "SystemExit(0)"),
    ("os._exit(0)", "by exit code 0, past Python"),
    ("os.kill(os.getpid(), signal.SIGSEGV)", "by SIGSEGV"),
    ("os.abort()", "by SIGABRT"),
    ("ctypes.string_at(0)", "by SIGSEGV"),
    ("time.sleep(600)", "took more than 2 s"),
    ("next(one for one in itertools.count() if one < 0)", "took more than 2 s"),
    ("ctypes.PyDLL(None).sleep(600)", "more than 2 s"),
    ("return None", "a TokenTree is needed"),
    ("return TokenTree.chain([self.last, 1, 2, 3])", "its tree has 4 rows"),
    ("return TokenTree.chain([self.last, 1 << 30])", "its tree has token 1073741824"),
    ("return TokenTree.chain([self.last + 1])", "its tree has root"),
    ("'a' * (1 << 62)", "failed in draft (MemoryError"),
    ("raise MemoryError()", "failed in draft (MemoryError"),
    ("self.draft()", "failed in draft (RecursionError"),
)


def install(site: Path, way: str) -> None:
    """Write what ``pip install specbench-chaos`` would install: a method called ``chaos``."""
    package, info = site / "chaos_method", site / "specbench_chaos-1.0.dist-info"
    for folder in (package, info):
        folder.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "decoder.py").write_text(_DECODER.replace("WAY", way))
    (package / "method.toml").write_text('title = "Chaos"\nsummary = "Fails"\nlossless = true\n')
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: specbench-chaos\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[specbench.methods]\nchaos = chaos_method\n")
