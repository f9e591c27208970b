"""Every part, rehearsed: the code that a GPU will run, on tiny models, with steps recorded where they are captured."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from support.wording import wording

from benchmarks.gpu_check import sessions
from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.catalog import PARTS
from benchmarks.gpu_check.parts import attention, lossless, model, steps
from benchmarks.gpu_check.parts.tests import CHOSEN, ROOT, results
from benchmarks.gpu_check.records import Figure, Journal
from benchmarks.gpu_check.shapes import WANTED
from specbench.engine import Engine
from specbench.engine.layers import code, skinny
from specbench.planning.methods import plan_methods

CEILINGS = (Figure("copy", 10.0, "GB/s", key="copy"), Figure("product", 0.1, "TFLOP/s", key="flops"))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    journal = Journal(tmp_path / "figures.jsonl")
    for figure in CEILINGS:
        journal.figure("ceilings", figure)
    return Bench(journal, rehearse=True)


def rehearse(bench: Bench, part: str) -> dict[str, Figure]:
    """Figures of a part by name."""
    module, function = next(one.target for one in PARTS if one.name == part).split(":")
    found = list(getattr(import_module(module), function)(bench))
    for figure in found:
        bench.journal.figure(part, figure)
    return {figure.name: figure for figure in found}


def test_steps_of_every_row_count_have_a_prediction(bench: Bench) -> None:
    found = list(steps.run(bench))
    for family in WANTED:
        mine = {figure.name: figure for figure in found if figure.shape.startswith(family)}
        assert mine["graphs captured"].value == 3, "1, 2 and 4 rows are recorded"
        ladder = [mine["AR step"], *(mine[f"step of {rows} rows"] for rows in (2, 4))]
        assert all(figure.value and figure.predicted and "(assumed)" in figure.basis for figure in ladder)
        assert mine["AR decoding"].value
        share = mine["AR step, share of the copy bandwidth"]
        assert share.predicted
        assert share.aim == f">= {0.9 * share.predicted:.3g}"
        for what in ("T=0.8", "T=0.8, top-k 50", "T=0.8, top-p 0.95"):
            assert 0.1 < (mine[f"step of 4 rows at {what} over greedy"].value or 0) < 100
        assert wording(mine["products of few rows"].note)


def test_products_are_settled_once_and_handed_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the kernel of a GPU, whose place a product of torch takes."""
    settled: list[tuple[int, int]] = []
    used: set[tuple[int, int]] = set()

    def kernel(x: Any, weight: Any, bias: Any, config: Any) -> Any:
        used.add(tuple(weight.shape))
        return torch.nn.functional.linear(x, weight, bias)

    def load(products: Any) -> str:
        products._kernel, products._candidates = kernel, lambda *_: []
        return ""

    def choose(products: Any, shape: tuple[int, int], *_: Any) -> Any:
        settled.append(shape)
        config = skinny.Config(1, 1, 1, 1, 1)._asdict()
        return {"out": shape[0], "in": shape[1], "kernel": "own", "config": config}

    monkeypatch.setattr(skinny.SkinnyProducts, "_load", load)
    monkeypatch.setattr(skinny.SkinnyProducts, "_choice", choose)
    monkeypatch.setattr(skinny, "cuda_time", lambda device: None)
    weight = torch.randn(12, 8)
    monkeypatch.setattr(code.LayerBackend, "weights", lambda layers: {(12, 8): [weight]})
    monkeypatch.setattr(steps, "WANTED", WANTED[:1])
    loaded = sessions.model_of(bench, WANTED[0], 64)[1]
    assert loaded is not None
    for settle, kept, timed in ((False, False, 0), (True, True, 1), (False, True, 1)):
        with sessions.session(bench, loaded, plan_methods(["ar"], []), capacity=40, settle=settle) as opened:
            opened.engine.prepare(1)
            used.clear()
            opened.engine.code.products(torch.randn(1, 8), weight)
            if settle:
                sessions.hand_on_products(bench, opened)
        assert (bool(used), len(settled)) == (kept, timed)


def test_concurrency_times_steps_that_were_captured_beforehand(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = sessions.decode
    calls: list[int] = []

    def counted(opened: Any, *given: Any) -> Any:
        calls.append(opened.report()["late_captures"])
        return decode(opened, *given)

    monkeypatch.setattr(sessions, "decode", counted)
    found = rehearse(bench, "concurrency")
    assert len(calls) == 8, "warm-up and timed, of two methods, at 1 and 2 sequences"
    assert calls == [0] * 8
    assert wording(found["jf, 2 sequences"].note)
    monkeypatch.setattr(Engine, "prepare", lambda *_, **__: None)
    calls.clear()
    rehearse(bench, "concurrency")
    assert calls[-1] > 0, "what a step has captured for itself is late"


def test_jetspec_rounds_have_phases_and_give_what_the_lot_decides(bench: Bench) -> None:
    object.__setattr__(bench, "size", replace(bench.size, budgets=(6,)))  # each takes a second
    found = rehearse(bench, "jetspec")
    for rows in bench.size.budgets:
        for mean in bench.size.acceptance:
            name = f"JetSpec, {rows} rows, {mean:g} tokens a round"
            assert f"{mean:g}" in found[f"{name}: round"].note
            for phase in ("draft", "build", "forward", "accept", "commit", "observe"):
                assert found[f"{name}: {phase}"].value


def test_wild_trees_and_the_oracle_say_what_captured_ar_says(bench: Bench) -> None:
    found = rehearse(bench, "lossless")
    for name in ("wild trees", "captured AR"):
        assert found[f"{name}: answers exactly those expected"].value == bench.size.answers
        assert found[f"{name}: answers that part otherwise"].value == 0
    assert (found["tokens that a wild tree gave"].value or 0) > 1.5, "the hidden text is found"


def test_a_text_that_is_not_ars_is_counted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle's second text is changed in its last token."""
    original = lossless._texts
    calls: list[int] = []

    def wrong(records: object) -> dict[str, list[int]]:
        found = original(records)  # type: ignore[arg-type]
        calls.append(1)
        if len(calls) == 3:
            last = found["dummy/1"][-1]
            found["dummy/1"][-1] = (last + 1) % 300
        return found

    monkeypatch.setattr(lossless, "_texts", wrong)
    found = rehearse(bench, "lossless")
    parted = found["captured AR: answers that part otherwise"]
    assert (parted.value, parted.met) == (1, False)
    assert f"{bench.size.answer_tokens - 1}" in parted.note


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ("ceilings", ["copy bandwidth", "read bandwidth", "matrix product"]),
        ("eager", ["AR step with graphs off", "transformers generate, a token"]),
        ("kernels", ["step of 1 rows: kernels", "step of 4 rows: launches a layer", "step of 4 rows: device busy"]),
        ("concurrency", ["ar, 1 sequences", "jf, 2 sequences", "jf over ar, 2 sequences"]),
        pytest.param(  # Triton's interpreter takes seconds for a step
            "attention",
            ["tree attention, 4 rows after 40: a layer", "SDPA with a dense mask, 4 rows after 16: a layer"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "compiled", ["compiled AR step", "plain AR step", "compiled step of 4 rows"], marks=pytest.mark.slow
        ),
        ("masked", ["pass over a masked block, 32 rows", "pass over a masked block, 32 or 8 rows"]),
        (
            "model",
            ["jacobi: answers that part from AR's", "jacobi: answers that part at a tie", "jacobi: decoding"],
        ),
        pytest.param("tests", ["tests of tests/decoding/test_tree.py"], marks=pytest.mark.slow),
    ],
)
def test_a_part_measures_what_it_says(bench: Bench, part: str, names: list[str]) -> None:
    found = rehearse(bench, part)
    assert [name for name in names if name not in found or found[name].value is None] == []
    assert all(figure.met is not False for figure in found.values() if figure.unit == "failures")


def test_a_tie_of_a_real_model_is_reported_and_fails_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    original = model.check_lossless

    def with_ties(*given: Any) -> Any:
        checked = original(*given)
        for tally, ties, lossy in zip(checked.tallies.values(), (2, 0), (0, 1), strict=True):
            tally.update(numeric_tie=ties, lossy=lossy, noise_floor=0.25)
        return checked

    monkeypatch.setattr(model, "check_lossless", with_ties)
    found = list(model.lossless(bench, "config:tiny", ["jacobi", "pld"]))
    assert [(one.name, one.value, one.unit, one.met) for one in found] == [
        ("jacobi: answers that part from AR's", 0, "failures", True),
        ("jacobi: answers that part at a tie", 2, "answers", None),
        ("pld: answers that part from AR's", 1, "failures", False),
        ("pld: answers that part at a tie", 0, "answers", None),
    ]
    assert found[1].note.endswith("float32; a tie is a gap within 0.25")


def test_attention_that_cannot_be_had_costs_no_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(bench: Bench, loaded: Any, name: str, rows: int, context: int) -> float:
        if name == broken:
            raise ImportError("undefined symbol: a_name_of_another_build\nand more")
        return 1.0 + context

    monkeypatch.setattr(attention, "_seconds", seconds)
    for broken, other in (("reference", "triton"), ("triton", "reference")):
        found = rehearse(bench, "attention")
        missing = found[attention._NAMES[broken]]
        assert missing.value is None
        assert wording(missing.note)
        for context in bench.size.contexts:
            assert found[attention._named(other, bench.size.attention_rows, context)].value
            assert attention._named(broken, bench.size.attention_rows, context) not in found


def test_a_file_of_tests_is_a_figure(tmp_path: Path) -> None:
    """One process runs all files; one that ends it costs the figures of none before it."""
    text = {
        "test_good.py": "def test_a(): pass\ndef test_b(): pass\n",
        "test_bad.py": "import pytest\ndef test_a(): pass\n@pytest.mark.parametrize('x', ['y z'])\n"
        "def test_b(x): assert 0\n",
        "test_skipped.py": "import pytest\n@pytest.mark.skip\ndef test_a(): pass\n",
        "test_ends.py": "import os\ndef test_a(): pass\ndef test_b(): os.abort()\n",
        "test_never.py": "def test_a(): pass\n",
    }
    for name, lines in text.items():
        (tmp_path / name).write_text(lines)
    found = {Path(one.name).name: one for one in results({f"{tmp_path / name}": {} for name in text})}
    assert {name: one.value for name, one in found.items()} == {
        "test_good.py": 0, "test_bad.py": 1, "test_skipped.py": 1, "test_ends.py": 1, "test_never.py": 1,
    }  # fmt: skip
    assert "test_b[y z]" in found["test_bad.py"].note
    assert found["test_good.py"].note == "2 passed"


def test_the_chosen_tests_are_in_the_suite() -> None:
    for file, tests in CHOSEN.items():
        text = (ROOT / file).read_text()
        assert [name for name in tests if f"def {name}(" not in text] == []


def test_steps_of_few_rows_are_timed_with_short_tiles_and_those_of_many_with_tall_ones() -> None:
    class Timed:
        def prepare(self, rows: int, *, context: int) -> None: ...

        def report(self) -> dict[str, Any]:
            kind = {"attention": "triton", "top_k": 0, "taps": []}
            short = {"step_s": {1: 1.0, 8: 1.5, 16: 1.2}, "padded_to": {1: 1, 8: 16, 16: 16}}
            tall = {"step_s": {16: 2.0, 32: 2.5}, "padded_to": {16: 16, 32: 32}}
            return {"steps": [{**kind, **tall}, {**kind, **short}, {**kind, "taps": [1], "step_s": {1: 9.0}}]}

    found = sessions.step_times(cast("Engine", Timed()), 32, 100)
    assert found == {1: (1.0, 1), 8: (1.2, 16), 16: (2.0, 16), 32: (2.5, 32)}
