"""Bare image: a Python that finds what an image for GPUs has and nothing else of this machine.

That is torch, triton, transformers, numpy, pandas and what they require, without what a bundle brings: some releases of
transformers require pydantic and typer, and images with others have neither.
"""

from __future__ import annotations

import sys
import venv
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from benchmarks.gpu_check import vendor

PACKAGES = ("torch", "triton", "transformers", "numpy", "pandas", "setuptools")
BROUGHT = [name for group in vendor.GROUPS.values() for name in group]


def make(folder: Path, *, bundled: bool = False) -> Path:
    """The interpreter of an environment whose packages are links to those that are installed here.

    Args:
        folder: for it.
        bundled: with the packages that a bundle brings.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    place = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for found in [*closure(), *(_installed(BROUGHT) if bundled else ())]:
        for top in _tops(found):
            if not (place / top).exists():
                (place / top).symlink_to(str(found.locate_file(top)))
    return folder / "bin" / "python"


def modules() -> set[str]:
    """First names of the modules of image and bundle together."""
    packages = [*closure(), *_installed(BROUGHT)]
    return {top.partition(".")[0] for found in packages for top in _tops(found)}


def closure() -> list[Distribution]:
    """The packages of the image, with all that they require."""
    brought = {_plain(name) for name in BROUGHT} - {"typing-extensions"}
    return [found for name, found in _with_requirements({}, PACKAGES).items() if name not in brought]


def _tops(found: Distribution) -> set[str]:
    """Files and folders of a package, as they lie beside those of others."""
    return {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def _with_requirements(known: dict[str, Distribution], wanted: Iterable[str]) -> dict[str, Distribution]:
    for found in _installed(name for name in wanted if _plain(name) not in known):
        known[_plain(found.name)] = found
        _with_requirements(known, _required(found))
    return known


def _installed(names: Iterable[str]) -> Iterator[Distribution]:
    """Those of some packages that are here: a platform may do without one, and a user without an optional one."""
    for name in names:
        with suppress(PackageNotFoundError):
            yield distribution(name)


def _required(found: Distribution) -> Iterator[str]:
    for line in found.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name
