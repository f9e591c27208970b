"""Methods and tasks of other packages: found, listed, and refused in one line when something is wrong with them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support import processes
from support.asserting import refusal
from support.wording import wording

from specbench.cli.app import main
from specbench.common import registry
from specbench.common.errors import UsageError
from specbench.decoding.protocol import Method
from specbench.planning.methods import plan_methods

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


def install(
    site: Path,
    name: str = "guess",
    *,
    value: str = "guess_pkg",
    distribution: str = "specbench-guess",
    toml: str | None = 'title = "Guessing"\nlossless = true\n',
    decoder: str = DECODER,
) -> None:
    """What ``pip install specbench-guess`` would leave in site-packages."""
    files = {"guess_pkg/__init__.py": "", "guess_pkg/decoder.py": decoder, "guess_pkg/method.toml": toml}
    info = f"{distribution.replace('-', '_')}-1.0.dist-info"
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
    files[f"{info}/entry_points.txt"] = f"[specbench.methods]\n{name} = {value}\n"
    for file, content in files.items():
        (site / file).parent.mkdir(exist_ok=True)
        if content is not None:
            (site / file).write_text(content)


def planned(site: Path, *settings: str) -> Method:
    """What a run with ``--method guess`` makes of it."""
    with processes.visible(site):
        return plan_methods(["guess"], settings)[1]


def refused(site: Path, *settings: str) -> str:
    """The line that says why it is not used."""
    text = refusal(UsageError, planned, site, *settings)
    return text


def test_a_method_of_another_package_is_found_and_used_like_our_own(tmp_path: Path) -> None:
    install(tmp_path)
    with processes.visible(tmp_path):
        names, card = set(registry.methods()), registry.method("guess")
        assert "guess_pkg.decoder" not in sys.modules, "naming a method must not run its code"
        method = plan_methods(["guess"], ["guess.rows=5"])[1]
    assert names == {*registry.methods(), "guess"}
    assert (card.origin, card.info["title"], card.folder) == ("specbench-guess", "Guessing", tmp_path / "guess_pkg")
    # It says only what differs from the usual.
    assert (method.max_rows, method.top_k, method.measures) == (5, 0, {})


def test_it_brings_presets_and_figures_of_its_own(tmp_path: Path) -> None:
    install(tmp_path, toml=PRESETS)
    found = planned(tmp_path, "guess.preset=7/7")
    assert (found.max_rows, found.measures) == (7, {"luck": "guesses that were right"})
    assert planned(tmp_path, "guess.preset=7/7", "guess.r=4").max_rows == 4
    assert wording(refused(tmp_path, "guess.preset=broken"))


def test_the_command_lists_it_and_says_what_is_wrong_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path)
    with processes.visible(tmp_path):
        assert main(["list", "methods", "--json"]) == 0
    text = capsys.readouterr().out
    json.loads(text)
    assert "guess" in text
    assert "specbench-guess" in text
    (tmp_path / "guess_pkg" / "decoder.py").write_text("import no_such_module")
    with processes.visible(tmp_path):
        assert main(["run", "--method", "guess", "--task", "humaneval", "--model", "config:tiny"]) == 2
    result = capsys.readouterr().err
    assert "Traceback" not in result
    assert "no_such_module" in result


def test_no_name_is_taken_twice(tmp_path: Path) -> None:
    for part, names in (("ours", ["jacobi"]), ("others", ["guess", "guess"])):
        (tmp_path / part).mkdir()
        for name, distribution in zip(names, ("specbench-guess", "specbench-other"), strict=False):
            install(tmp_path / part, name, distribution=distribution)
    with processes.visible(tmp_path / "ours"):
        (theirs,) = registry.broken("method").values()
        assert registry.method("jacobi").origin == registry.OWN, "ours stands"
    assert wording(str(theirs.error))
    others = refused(tmp_path / "others")
    assert all(part in others for part in ("'guess'", "specbench-guess", "specbench-other"))
    with processes.visible(tmp_path / "others"):
        assert "guess" not in registry.methods(), "which one would be meant is chance"


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no such package": (
        {"decoder": "import no_such_module.inner"},
        "decoder.py imports no_such_module.inner, which is",
    ),
    "from one": (
        {"decoder": "from no_such_module import x"},
        "decoder.py imports no_such_module, which is not installed",
    ),
    "syntax": ({"decoder": "x = 1\ndef broken("}, "decoder.py is not valid Python in line 2"),
    "bytes": ({"decoder": "x = 1\0"}, "decoder.py is not valid Python"),
    "brackets": ({"decoder": "x = " + 300 * "(" + 300 * ")"}, "decoder.py is not valid Python"),
    "no toml": ({"toml": None}, "no readable method.toml"),
    "toml": ({"toml": "title = "}, "no readable method.toml"),
    "nowhere": ({"value": "no_such_package"}, "points at 'no_such_package'"),
    "its package raises": (
        {"value": "guess_pkg.inner", "around": "1 / 0"},
        "failed (ZeroDivisionError: division by zero",
    ),
    "its package leaves": ({"value": "guess_pkg.inner", "around": "raise SystemExit(0)"}, "ended the command"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_one_is_listed_and_disturbs_no_other(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes, reason = BROKEN[case]
    around = changes.pop("around", None)
    install(tmp_path, **changes)
    if around is not None:
        (tmp_path / "guess_pkg" / "__init__.py").write_text(around)
    with processes.visible(tmp_path):
        assert main(["list", "methods"]) == 0
        listed = " ".join(capsys.readouterr().out.split())
        assert main(["list", "methods", "--json"]) == 0
        rows = {row["method"]: row for row in json.loads(capsys.readouterr().out)}
        plan_methods(["ar", "pld"], [])
        assert main(["run", "--method", "guess", "--model", "config:tiny", "--out", str(tmp_path / "out")]) in (2, 6)
        error = capsys.readouterr().err
        assert "guess_pkg.decoder" not in sys.modules
    assert "guess" in listed
    assert "broken: " in listed
    assert reason in rows["guess"]["broken"]
    assert rows["jacobi"]["broken"] == ""
    assert {row["method"] for row in rows.values() if row["broken"]} == {"guess"}
    assert "guess" in error
    assert "Traceback" not in error


def test_an_import_that_may_fail_breaks_nothing(tmp_path: Path) -> None:
    guarded = "try:\n    import no_such_module\nexcept ImportError:\n    pass\n\ndef late():\n    import other_one\n"
    install(tmp_path, decoder=guarded + DECODER)
    with processes.visible(tmp_path):
        assert registry.broken("method") == {}
        assert plan_methods(["guess"], [])[1].name == "guess"


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        pytest.param({"value": "guess_pkg.decoder"}, ["'guess_pkg.decoder'", "not a package"], id="a module"),
        pytest.param({"decoder": "Options = 1"}, ["Options"], id="no such class"),
        pytest.param({"decoder": DECODER.replace("class Decoder", "class Coder")}, ["Decoder"], id="other name"),
        pytest.param({"decoder": DECODER.replace("(decoding.Decoder)", "")}, ["Decoder"], id="another base"),
    ],
)
def test_what_is_wrong_with_a_package_is_one_line_that_names_it(
    tmp_path: Path, changes: dict[str, Any], parts: list[str]
) -> None:
    install(tmp_path, **changes)
    error = refused(tmp_path)
    assert all(part in error for part in ["guess", "specbench-guess", *parts]), error


OTHER_NAMES = {
    "prompt-lookup": "pld", "promptlookup": "pld", "prompt_lookup": "pld", "ngram": "pld", "PLD": "pld",
    "lade": "lookahead", "eagle-2": "eagle", "hass": "eagle", "eagle-3": "eagle3", "EAGLE3": "eagle3", "nextn": "mtp",
    "draft-model": "sps", "speculative": "sps", "consistency": "cllm", "hydra": "eagle3",
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_another_name_of_a_method_leads_to_it(name: str) -> None:
    for find in (registry.method, registry.trainable):
        text = refusal(UsageError, find, name)
        assert f" {OTHER_NAMES[name]} (" in text
        assert name in text
        assert ("not in specbench" in text) == (name == "hydra")


def test_no_two_methods_claim_one_name() -> None:
    cards = registry.methods().values()
    claimed = [
        registry._letters(each) for card in cards for key in ("aliases", "similar") for each in card.info.get(key, [])
    ]
    names = [registry._letters(card.name) for card in cards]
    assert len({*claimed, *names}) == len(claimed) + len(names)
