"""The rooms: which there are, what their doors hand out, and which of them never bring torch."""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from support import asserting
from support.wording import wording

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


def door(room: str) -> dict[str, str]:
    """What a room's ``__init__`` names, and the module that each name is from."""
    tree = ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [statement for statement in tree.body if isinstance(statement, ast.If)]
    imports = [statement for statement in block.body if isinstance(statement, ast.ImportFrom)]
    return {alias.name: str(each.module) for each in imports for alias in each.names}


DOORS = {f"specbench.{room}": door(room) for room in ROOMS}


def test_there_are_at_most_fourteen() -> None:
    assert 10 <= len(ROOMS) <= 14, ROOMS
    deep = [path for path in PACKAGE.glob("*/*/*/*.py") if path.relative_to(PACKAGE).parts[0] not in LINKED]
    assert not deep, "inner folders are one deep"


@pytest.mark.parametrize("room", ROOMS)
def test_a_door_hands_out_the_few_names_that_it_has_and_no_module_takes_the_place_of_one(room: str) -> None:
    found, package = door(room), import_module(f"specbench.{room}")
    assert 1 <= len(found) <= 40, sorted(found)
    assert not {module.name for module in pkgutil.iter_modules([str(PACKAGE / room)])} & found.keys()
    for name, module in found.items():
        assert getattr(package, name) is getattr(import_module(module), name)
        assert name in dir(package)
    with pytest.raises(AttributeError, check=wording):
        _ = package.nothing


def test_what_a_module_misses_is_no_name_that_the_door_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> ModuleType:
        raise AttributeError("module 'torch' has no attribute 'float7'")

    monkeypatch.setattr("specbench.common.doors.import_module", broken)
    with pytest.raises(ImportError, check=wording):
        _ = import_module("specbench.results").RunConfig


def test_functions_of_the_package_outlive_the_import_of_every_module(tmp_path: Path) -> None:
    def imports() -> int:
        for name in modules():
            import_module(name)
        assert callable(specbench.load)
        assert "load" in dir(specbench)
        for room, names in DOORS.items():
            for name in names:
                assert not isinstance(getattr(import_module(room), name), ModuleType), (room, name)
        return 0

    done = asserting.call(tmp_path, imports).wait()
    assert done.code == 0, done.err


def imported() -> dict[str, set[str]]:
    """Module -> all that it imports, also within functions; a name of a door counts as the module that it is from."""
    found: dict[str, set[str]] = {}
    for folder in (PACKAGE, PACKAGE / "methods", PACKAGE / "tasks"):
        for file in folder.rglob("*.py"):
            parts = file.relative_to(PACKAGE).with_suffix("").parts
            name = ".".join(("specbench", *parts)).removesuffix(".__init__")
            found[name] = set(_imports(ast.parse(file.read_text(encoding="utf-8"))))
    return found


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        for other in node.orelse:
            yield from _imports(other)
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            yield DOORS.get(node.module, {}).get(alias.name) or f"{node.module}.{alias.name}"
            yield node.module
    for child in ast.iter_child_nodes(node):
        yield from _imports(child)


def reached(
    starts: Iterable[str], graph: Mapping[str, set[str]], without: Collection[tuple[str, str]] = ()
) -> set[str]:
    """All that modules reach."""
    seen = set(starts)
    waiting = list(seen)
    while waiting:
        module = waiting.pop()
        for other in graph.get(module, ()):
            if other not in seen and (module, other) not in without:
                seen.add(other)
                waiting.append(other)
    return seen


def test_no_room_of_a_laptop_reaches_torch_through_a_door_or_a_function() -> None:
    graph = imported()
    assert "torch" in reached(["specbench.runner.session"], graph)  # by which it is seen that doors are looked through
    for room in LAPTOP:
        mine = [name for name in graph if name.startswith(f"specbench.{room}.")]
        # It asks torch for the device within functions, for those that have it loaded.
        found = reached(mine, graph, without=[("specbench.hardware.environment", "torch")])
        assert len(mine) > 3
        assert not {"torch", "transformers"} & found, room


def test_a_decoder_reaches_no_clock_no_stop_rule_and_no_files() -> None:
    graph = imported()
    rooms = ("runner", "results.folder", "results.read", "results.request_log", "evals", "report", "sweeps", "cli")
    for module in [name for name in graph if re.fullmatch(r"specbench\.methods\.\w+\.decoder", name)]:
        found = reached([module], graph)
        assert "specbench.decoding.tree" in found
        assert not [name for name in found if name.startswith(tuple(f"specbench.{room}" for room in rooms))], module


@pytest.mark.parametrize("room", LAPTOP)
def test_a_laptops_room_brings_no_torch(room: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EVERYTHING, room], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    number, *heavy = done.stdout.split()
    assert int(number) > 3
    assert heavy == []


def test_so_do_the_modules_that_plan_and_read() -> None:
    code = "import sys, specbench.runner.plan, specbench.sweeps.table, specbench.cli.app; "
    code += "sys.exit(bool({'torch', 'transformers'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
