"""Use packages from a bundle if the machine lacks them or has older versions. Standard library only."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "vendor"

#: Packages of a bundle, in groups: a group is used as a whole, because its members depend on each other's versions.
#: Each package has its lowest sufficient version; "" means any.
GROUPS: Mapping[str, Mapping[str, str]] = {
    "pydantic": {
        "pydantic": "2.9", "pydantic_core": "", "annotated-types": "", "typing-inspection": "",
        "typing_extensions": "4.14",
    },
    "terminal": {
        "typer": "0.28", "click": "", "annotated-doc": "", "shellingham": "",
        "rich": "13.9", "markdown-it-py": "", "mdurl": "", "Pygments": "",
    },
    "gguf": {"gguf": "0.17"},
    "accelerate": {"accelerate": "1.2"},
    "psutil": {"psutil": ""},
    "nvml": {"nvidia-ml-py": "12.560"},
    "pytest": {"pytest": "8.3", "iniconfig": "", "pluggy": ""},
    "hypothesis": {"hypothesis": "6.120", "sortedcontainers": ""},
}  # fmt: skip

#: Additional packages for Python older than 3.11.
OLD_PYTHON: Mapping[str, Mapping[str, str]] = {"backports": {"tomli": "2.0", "exceptiongroup": ""}}


def use(folder: Path = FOLDER) -> list[str]:
    """Put the groups of a bundle that the machine lacks before its own packages.

    Args:
        folder: folder of the bundle with a folder per group; nothing happens if it does not exist.

    Returns:
        The groups in use.
    """
    listed = folder / "groups.json"
    if not listed.is_file():
        return []
    groups: dict[str, dict[str, str]] = json.loads(listed.read_text(encoding="utf-8"))
    places = {name: str(folder / name) for name in groups}
    own = [path for path in sys.path if path not in places.values()]
    wanted = [name for name, packages in groups.items() if not all(_will_do(*each, own) for each in packages.items())]
    sys.path[:] = [places[name] for name in wanted] + own
    return wanted


def paths() -> list[str]:
    """Return the paths for a process that does not import this package: the project and the groups in use."""
    return [str(ROOT), *(path for path in sys.path if Path(path).parent == FOLDER)]


def _will_do(package: str, least: str, paths: Sequence[str]) -> bool:
    """Whether the machine's own copy of a package is new enough."""
    before = sys.path[:]
    sys.path[:] = list(paths)
    try:
        return _numbers(version(package)) >= _numbers(least)
    except PackageNotFoundError:
        return False
    finally:
        sys.path[:] = before


def _numbers(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: a release candidate counts as its release."""
    found = []
    for part in text.split("."):
        if not part.isdecimal():
            break
        found.append(int(part))
    return tuple(found)
