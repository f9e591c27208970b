"""The rooms: which there are, what their doors hand out, and which of them never bring torch."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import specbench

PACKAGE = Path(specbench.__file__ or "").parent
LINKED = {"methods", "tasks"}
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py") if path.parent.name not in LINKED)
LAPTOP = ["common", "decoding", "evals", "hardware", "report", "results"]

# Every module and every name of a door; the sandbox's child finds its neighbours by bare names, as it is run.
EVERYTHING = """
import pkgutil, sys
from importlib import import_module
from pathlib import Path
room = import_module("specbench." + sys.argv[1])
sys.path.append(str(Path(room.__path__[0]) / "sandbox"))
found = [room.__name__, *(module.name for module in pkgutil.walk_packages(room.__path__, room.__name__ + "."))]
for name in found:
    module = import_module(name)
    for public in dir(module):
        getattr(module, public)
heavy = sorted({"torch", "transformers"} & sys.modules.keys())
print(len(found), *heavy)
"""


def modules() -> list[str]:
    """All modules of the package but for those that run a program when they are imported."""
    found = [module.name for module in pkgutil.walk_packages([str(PACKAGE)], "specbench.")]
    return [name for name in found if not name.endswith(("__main__", "sandbox.child"))]


def door(room: str) -> dict[str, object]:
    """What a room hands out, by name."""
    package = import_module(f"specbench.{room}")
    return {name: getattr(package, name) for name in names(package)}


def names(package: ModuleType) -> list[str]:
    inside = {module.name for module in pkgutil.iter_modules(package.__path__)}
    given = {name for name in dir(package) if not name.startswith("__")} - {"TYPE_CHECKING", "door"}
    return sorted(name for name in given if not (name in inside and isinstance(getattr(package, name), ModuleType)))


def test_there_are_at_most_fourteen() -> None:
    assert 10 <= len(ROOMS) <= 14, ROOMS
    deep = [path for path in PACKAGE.glob("*/*/*/*.py") if path.relative_to(PACKAGE).parts[0] not in LINKED]
    assert not deep, "inner folders are one deep"


@pytest.mark.parametrize("room", ROOMS)
def test_a_door_has_few_names_and_each_is_there(room: str) -> None:
    found = door(room)
    assert 2 <= len(found) <= 8, sorted(found)
    # A module of that name would take the name's place as soon as somebody imports it.
    inside = {module.name for module in pkgutil.iter_modules(import_module(f"specbench.{room}").__path__)}
    assert not inside & found.keys()


@pytest.mark.parametrize("room", ROOMS)
def test_a_name_that_no_door_has_is_an_error(room: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'specbench.{room}' has no attribute 'nothing'"):
        _ = import_module(f"specbench.{room}").nothing


def test_functions_of_the_package_outlive_the_import_of_every_module() -> None:
    for name in modules():
        import_module(name)
    assert callable(specbench.load)
    assert not isinstance(specbench.load, ModuleType)
    assert "load" in dir(specbench)
    for room in ROOMS:
        assert not any(isinstance(value, ModuleType) for value in door(room).values())


@pytest.mark.parametrize("room", LAPTOP)
def test_a_laptops_room_brings_no_torch(room: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EVERYTHING, room], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    number, *heavy = done.stdout.split()
    assert int(number) > 3
    assert heavy == []


@pytest.mark.parametrize("module", ["runner.plan", "sweeps.table", "cli.app"])
def test_so_do_the_modules_that_plan_and_read(module: str) -> None:
    code = f"import sys, specbench.{module}; sys.exit(bool({{'torch', 'transformers'}} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
