"""What the check imports: on an image with torch, triton, transformers, numpy and pandas, only these and a bundle's."""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support import asserting, processes

from benchmarks.gpu_check import sessions as sessions  # torch and transformers, which a child then has already
from benchmarks.gpu_check import vendor
from benchmarks.gpu_check.catalog import PARTS
from benchmarks.gpu_check.records import Journal

OURS = {"benchmarks", "specbench"}

# The parent, with a part in a process of its own.
CHECK = """
import json, sys, time
from pathlib import Path
from benchmarks.gpu_check import __main__ as program, page
from benchmarks.gpu_check.catalog import Part
from benchmarks.gpu_check.records import Journal
program.DEVICE = Part("device", "", 20, "support.planted_parts:device")
program.PARTS = [Part("good", "", 20, "support.planted_parts:of_a_family")]
print(program.check(Path(sys.argv[1]), program.PARTS, 60, rehearse=True))
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A Python environment with the packages of an image, followed by those of a bundle."""
    return processes.bare_image(tmp_path / "image", bundled=True)


def environment() -> dict[str, str]:
    """Without what this process finds by its own."""
    own = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**own, "PYTHONPATH": str(vendor.ROOT)}


def test_the_parent_needs_neither_torch_nor_anything_that_an_image_lacks(image: Path, tmp_path: Path) -> None:
    where = {**environment(), "PYTHONPATH": os.pathsep.join([str(vendor.ROOT), str(Path(__file__).parents[1])])}
    done = subprocess.run([image, "-c", CHECK, tmp_path / "check"], capture_output=True, text=True, env=where)
    assert done.returncode == 0, done.stderr
    *_, code, names = done.stdout.splitlines()
    assert code == "0", done.stdout
    assert {"torch", "transformers", "triton", "pandas", "numpy"} & {*json.loads(names)} <= {"numpy"}
    text = (tmp_path / "check" / "gpu-check.md").read_text()
    assert "| qwen3-8b: jetspec 64 nodes on gsm8k |" in text, "the catalog of publications is read there"


class Image:
    """Lets our own code import what an image with a bundle has, and no more."""

    def __init__(self) -> None:
        self._names = {*processes.modules(), *sys.stdlib_module_names, *OURS}
        self._import = builtins.__import__

    def install(self) -> None:
        """From now on; what of our code is loaded is forgotten, so that it is imported anew."""
        for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
            if not name.startswith("specbench.engine"):
                del sys.modules[name]
        vars(builtins)["__import__"] = self

    def __call__(self, name: str, names: Any = None, *more: Any, **how: Any) -> Any:
        importer = (names or {}).get("__name__", "")
        if importer.partition(".")[0] in OURS and name and name.partition(".")[0] not in self._names:
            raise ModuleNotFoundError(f"{importer} imports {name}, which is on no image and in no bundle", name=name)
        return self._import(name, names, *more, **how)


def test_a_part_needs_nothing_that_an_image_and_a_bundle_lack(tmp_path: Path) -> None:
    """In a child of this process, which has torch already."""

    def rehearsed() -> int:
        Image().install()
        from benchmarks.gpu_check.bench import Bench
        from benchmarks.gpu_check.records import Journal

        for name in ("matplotlib.pyplot", "peft"):
            with pytest.raises(ModuleNotFoundError):
                builtins.__import__(name, {"__name__": "specbench.report"})
        journal = Journal(tmp_path / "figures.jsonl")
        for part in PARTS:
            module, function = part.target.split(":")
            run = getattr(import_module(module), function)
            if part.name == "lossless":  # the others take longer
                for figure in run(Bench(journal, rehearse=True)):
                    journal.figure(part.name, figure)
        return 0

    done = asserting.call(tmp_path / "child", rehearsed).wait()
    assert done.code == 0, done.err
    assert Journal(tmp_path / "figures.jsonl").outcomes()["lossless"].figures


@pytest.mark.slow
def test_the_rehearsal_of_every_part_ends_there(image: Path, tmp_path: Path) -> None:
    folder = tmp_path / "check"
    done = subprocess.run(
        [image, "-m", "benchmarks.gpu_check", "--rehearse", "--seconds", "1500", "--out", folder],
        capture_output=True, text=True, cwd=vendor.ROOT, env=environment(),
    )  # fmt: skip
    outcomes = Journal(folder / "figures.jsonl").outcomes()
    assert {name: outcome.why for name, outcome in outcomes.items() if outcome.why} == {}
    assert list(outcomes) == ["device", *(part.name for part in PARTS)]
    assert all(outcome.figures for name, outcome in outcomes.items() if name != "device")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sys.executable not in (folder / "gpu-check.html").read_text()
