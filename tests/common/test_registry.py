"""Methods and tasks of other packages: found, listed, and refused in one line when something is wrong with them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from specbench.common import registry
from specbench.common.errors import UsageError

DECODER = """
from specbench import decoding
from specbench.decoding.tree import TokenTree
from specbench.common.options import Options as Base, option

class Options(Base):
    rows: int = option(3, "r", help="rows")

class Decoder(decoding.Decoder):
    def __init__(self, options, context): self.last = -1
    @staticmethod
    def max_rows(options): return options.rows
    def observe(self, result): self.last = result.emitted[-1]
    def draft(self): return TokenTree.chain([self.last])
"""

# What the CLI does with a name, and what comes out of it. Its own process: the registry is read once per process.
USE = """
import json, sys
from specbench.common import registry
from specbench.common.errors import UsageError
from specbench.runner.methods import plan_methods
try:
    card = registry.method("guess")
    imported = "guess_pkg.decoder" in sys.modules
    method = plan_methods(["guess"], sys.argv[1:] or ["guess.rows=5"])[1]
    print(json.dumps({
        "names": sorted(registry.methods()), "origin": card.origin, "title": card.info["title"],
        "folder": str(card.folder), "imported": imported, "rows": method.max_rows,
        "measures": method.measures, "top_k": method.top_k,
    }))
except UsageError as error:
    print(json.dumps({"error": str(error)}))
"""


def install(
    site: Path,
    name: str = "guess",
    *,
    value: str = "guess_pkg",
    distribution: str = "specbench-guess",
    toml: str | None = 'title = "Guessing"\nlossless = true\n',
    decoder: str = DECODER,
    group: str = "specbench.methods",
) -> None:
    """What ``pip install specbench-guess`` would leave in site-packages."""
    package = site / "guess_pkg"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "decoder.py").write_text(decoder)
    if toml is not None:
        (package / "method.toml").write_text(toml)
    info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")


def python(site: Path, *args: str, settings: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Python with ``site`` on its path besides the packages that are installed: the command line, or :data:`USE`."""
    cli = f"sys.argv = {['specbench', *args]!r}; from specbench.cli.app import entry; entry()"
    use = f"sys.argv = {['-c', *settings]!r}\n" + USE
    code = f"import sys; sys.path.insert(0, {str(site)!r})\n" + (cli if args else use)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def used(site: Path, *settings: str) -> dict[str, Any]:
    done = python(site, settings=settings)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_method_of_another_package_is_found_and_used_like_our_own(tmp_path: Path) -> None:
    install(tmp_path)
    found = used(tmp_path)
    assert found["names"] == sorted([*registry.methods(), "guess"])
    assert (found["origin"], found["title"]) == ("specbench-guess", "Guessing")
    assert Path(found["folder"]) == tmp_path / "guess_pkg"
    assert found["rows"] == 5
    assert found["imported"] is False  # naming a method must not run its code


PRESETS = """
title = "Guessing"
lossless = true
[measures]
luck = "guesses that were right"
[presets."7/7"]
rows = 7
[presets.broken]
row = 7
"""


def test_it_brings_presets_and_figures_of_its_own(tmp_path: Path) -> None:
    install(tmp_path, toml=PRESETS)
    found = used(tmp_path, "guess.preset=7/7")
    assert (found["rows"], found["measures"]) == (7, {"luck": "guesses that were right"})
    assert used(tmp_path, "guess.preset=7/7", "guess.r=4")["rows"] == 4


def test_a_preset_of_an_option_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    install(tmp_path, toml=PRESETS)
    error = used(tmp_path, "guess.preset=broken")["error"]
    assert "option of guess 'row'; did you mean rows" in error


def test_a_decoder_says_only_what_differs_from_the_usual(tmp_path: Path) -> None:
    install(tmp_path)
    assert (used(tmp_path)["top_k"], used(tmp_path)["measures"]) == (0, {})


def test_it_is_listed_with_where_it_comes_from(tmp_path: Path) -> None:
    install(tmp_path)
    done = python(tmp_path, "list", "methods", "--json")
    assert done.returncode == 0, done.stderr
    text = done.stdout
    json.loads(text)
    assert "guess" in text
    assert "specbench-guess" in text


def test_a_name_of_our_own_is_not_to_be_taken(tmp_path: Path) -> None:
    install(tmp_path, "jacobi")
    error = used(tmp_path)["error"]
    assert "method 'jacobi' of specbench-guess is registered by specbench already" in error


def test_two_packages_cannot_bring_the_same_name(tmp_path: Path) -> None:
    install(tmp_path)
    install(tmp_path, distribution="specbench-other")
    error = used(tmp_path)["error"]
    assert "'guess'" in error
    assert "specbench-guess" in error
    assert "specbench-other" in error


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        pytest.param({"decoder": "import no_such_module"}, ["cannot be imported", "no_such_module"], id="import"),
        pytest.param({"toml": None}, ["no readable method.toml"], id="no toml"),
        pytest.param({"toml": "title = "}, ["no readable method.toml"], id="broken toml"),
        pytest.param({"value": "no_such_package"}, ["'no_such_package'"], id="no package"),
        pytest.param({"value": "no_such_package.inner"}, ["no_such_package"], id="no parent package"),
        pytest.param({"value": "guess_pkg.decoder"}, ["'guess_pkg.decoder'", "no package"], id="a module"),
        pytest.param({"decoder": "def broken("}, ["cannot be imported"], id="syntax error"),
        pytest.param({"decoder": "Options = 1"}, ["Options"], id="no such class"),
        pytest.param({"decoder": DECODER.replace("class Decoder", "class Coder")}, ["Decoder"], id="other name"),
        pytest.param({"decoder": DECODER.replace("(decoding.Decoder)", "")}, ["Decoder"], id="another base"),
    ],
)
def test_what_is_wrong_with_a_package_is_one_line_that_names_it(
    tmp_path: Path, changes: dict[str, Any], parts: list[str]
) -> None:
    install(tmp_path, **changes)
    error = used(tmp_path)["error"]
    assert all(part in error for part in ["guess", "specbench-guess", *parts]), error
    assert "\n" not in error


def test_the_cli_says_it_in_one_line_and_exits_2(tmp_path: Path) -> None:
    install(tmp_path, decoder="import no_such_module")
    done = python(tmp_path, "run", "--method", "guess", "--task", "humaneval", "--model", "config:tiny")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "no_such_module" in done.stderr


def test_our_own_are_found_without_being_installed() -> None:
    assert {"ar", "jacobi"} <= set(registry.methods())
    assert "humaneval" in registry.tasks()
    assert registry.method("jacobi").origin == "specbench"
    assert registry.method("jacobi").package == "specbench.methods.jacobi"


def test_an_unknown_name_answers_with_near_ones() -> None:
    with pytest.raises(UsageError, match="unknown method 'jakobi'; did you mean jacobi"):
        registry.method("jakobi")
    with pytest.raises(UsageError, match="unknown task 'human-eval'; did you mean humaneval"):
        registry.task("human-eval")
