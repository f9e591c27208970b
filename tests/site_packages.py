"""Packages of other people: pip installs them into a folder, which this process or a child gets on its path."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specbench.common import registry


def install(package: Path, site: Path) -> None:
    """Installs a source tree into the folder ``site``, without a network; the tree itself is left as it is."""
    copy = site.with_name(f"{site.name}-source") / package.name
    shutil.copytree(package, copy)
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(site), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def visible(site: Path) -> Iterator[None]:
    """What is in ``site`` is installed for as long as this lasts."""
    before = set(sys.modules)
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()
    registry._found.cache_clear()
    try:
        yield
    finally:
        sys.path.remove(str(site))
        registry._found.cache_clear()
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(site)):
                del sys.modules[name]


def python(*args: object, cwd: Path, site: Path | None = None) -> subprocess.CompletedProcess[str]:
    """``python *args`` in ``cwd``, with what is in ``site`` besides all else."""
    env = dict(os.environ) if site is None else {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, *map(str, args)]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)
