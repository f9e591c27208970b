"""The rooms: which there are, what their doors hand out, and which of them never bring torch."""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
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
LAPTOP = ["analysis", "common", "decoding", "evals", "hardware", "planning", "report", "results"]

#: Lines of each room. What adds a capability may raise a budget, and says why in its commit.
BUDGETS = {
    "analysis": 6180,  # campaigns; acceptance in definitions of six tools; percentiles, lengths, checks; imports; load
    "backends": 4465,  # many requests at once over HTTP; SGLang, TensorRT-LLM, LMDeploy; all modes of llama.cpp
    "cli": 3715,  # campaigns, reproduce; check-run, acceptance curves, logit processors; imports; engines' modes
    "common": 3080,  # a data file of one object; lines to a child that does not read
    "decoding": 2365,  # decoders that fill masked blocks
    "engine": 11790,  # recurrent layers; logit processors, grammars; heads in C++; passes over masked positions
    "evals": 5300,  # recorded conversations; ShareGPT's, which training read too; a base that three tasks had each
    "heads": 1840,
    "hardware": 1705,  # counted experts
    "models": 3760,  # packed, quantised weights; templates; huge pages; diffusion models; trained folders
    "planning": 1945,  # logit processors, grammar files; lengths of contexts; rates; refusals for masked blocks
    "profiling": 1135,  # counted experts
    "quality": 810,
    "report": 11220,  # tables with two axes, reproductions; acceptance, waiting times, users; load; texts of models
    "results": 3860,  # campaigns; acceptance, percentiles, figures by length; logit processors; three other tools; load
    "runner": 5480,  # a judge of several runs; kept prefixes, grown prompts; open-loop load; masked blocks; slow times
    "sweeps": 3096,  # campaigns; curves over the draft length; an engine for each concurrency
    "training": 6530,  # masks of block diffusion; a trained head is trained on
}

# Every module and every name of a door; the sandbox's child finds its neighbours by bare names, as it is run.
EVERYTHING = """
import pkgutil, sys
from functools import cache
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


DOORS = {f"specbench.{room}": door(room) for room in ROOMS if room != "cli"}  # the top: no room imports it


def python_files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*.py") if "__pycache__" not in file.parts]


def test_a_folder_has_at_most_twenty_files() -> None:
    full = {str(each): len([*each.glob("*.py")]) for each in {file.parent for file in python_files(PACKAGE)}}
    assert {name: count for name, count in full.items() if count > 20} == {}


def test_inner_folders_are_one_deep() -> None:
    assert not [path for path in PACKAGE.glob("*/*/*/*.py") if path.relative_to(PACKAGE).parts[0] not in LINKED]


def test_a_file_name_is_in_at_most_two_rooms() -> None:
    rooms: dict[str, set[str]] = {}
    for room in ROOMS:
        for file in python_files(PACKAGE / room):
            if file.stem != "__init__":
                rooms.setdefault(file.stem, set()).add(room)
    assert {name: found for name, found in rooms.items() if len(found) > 2} == {}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_keeps_its_line_budget(room: str) -> None:
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in python_files(PACKAGE / room))
    assert lines <= BUDGETS[room], (
        "merge or remove something first; a new capability may raise the budget, with a reason"
    )


@cache
def imports_of(root: Path) -> tuple[tuple[Path, str, str], ...]:
    """(file, module, name) of every import of the package in the files of a folder."""
    found = []
    for file in python_files(root):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("specbench"):
                found += [(file, str(node.module), alias.name) for alias in node.names]
            if isinstance(node, ast.Import):
                found += [(file, alias.name, "") for alias in node.names if alias.name.startswith("specbench.")]
    return tuple(found)


@pytest.mark.parametrize("room", [*ROOMS, *sorted(LINKED)])
def test_a_room_imports_another_only_through_its_door(room: str) -> None:
    past = []
    for file, module, name in imports_of(PACKAGE / room):
        other = module.split(".")[1] if "." in module else ""
        through = module == f"specbench.{other}" and name in DOORS.get(module, {})
        if other in {*ROOMS} - {room} and not through and module != "specbench.common.doors":
            past.append((file.name, module, name))
    assert past == []


@pytest.mark.parametrize("room", [name.partition(".")[2] for name in DOORS])
def test_a_door_hands_out_its_names(room: str) -> None:
    found, package = door(room), import_module(f"specbench.{room}")
    own = {module.name for module in pkgutil.iter_modules([str(PACKAGE / room)])}
    assert not {name for name, module in found.items() if name in own and module != package.__name__}, (
        "name of a module"
    )
    for name, module in found.items():
        source = module if module != package.__name__ else f"{module}.{name}"
        there = import_module(source)
        assert getattr(package, name) is (there if source != module else getattr(there, name))
        assert name in dir(package)
    with pytest.raises(AttributeError, match="nothing"):
        _ = package.nothing


def test_doors_hand_out_only_what_is_imported() -> None:
    top = PACKAGE.parent
    used = {
        (module, name)
        for root in (PACKAGE, PACKAGE / "methods", PACKAGE / "tasks", top / "tests", top / "benchmarks")
        for file, module, name in imports_of(root)
        if file.parent.name != module.rpartition(".")[2] or file.name != "__init__.py"
    }
    assert {(room, name) for room, names in DOORS.items() for name in names} - used == set()


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
            for name, module in names.items():
                found = getattr(import_module(room), name)
                assert isinstance(found, ModuleType) == (module == room), (room, name)
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
            handed = DOORS.get(node.module, {}).get(alias.name)
            yield handed if handed and handed != node.module else f"{node.module}.{alias.name}"
            yield node.module
    for child in ast.iter_child_nodes(node):
        yield from _imports(child)


def reached(starts: Iterable[str], graph: Mapping[str, set[str]]) -> set[str]:
    """All that modules import, and what those import."""
    seen = set(starts)
    waiting = list(seen)
    while waiting:
        module = waiting.pop()
        for other in graph.get(module, ()):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return seen


def test_no_room_of_a_laptop_reaches_torch_through_a_door_or_a_function() -> None:
    graph = imported()
    assert "torch" in reached(["specbench.runner.session"], graph)  # by which it is seen that doors are looked through
    for room in LAPTOP:
        mine = [name for name in graph if name.startswith(f"specbench.{room}.")]
        found = reached(mine, graph)
        assert len(mine) > 3
        assert not {"torch", "transformers"} & found, room


def test_a_decoder_reaches_no_clock_no_stop_rule_and_no_files() -> None:
    graph = imported()
    rooms = ("analysis", "runner", "results.folder", "results.request_log", "evals", "report", "sweeps", "cli")
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
    code = "import sys, specbench.planning.plan, specbench.sweeps.table, specbench.cli.app; "
    code += "sys.exit(bool({'torch', 'transformers'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
