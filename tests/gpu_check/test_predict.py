"""Predictions: by hand, and those of every part without a GPU."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support.wording import wording

from benchmarks.gpu_check import __main__ as program
from benchmarks.gpu_check import forecast, predict, shapes
from benchmarks.gpu_check.bench import TINY, Bench, Size
from benchmarks.gpu_check.catalog import PARTS, Part
from benchmarks.gpu_check.nodes import ceilings_of
from benchmarks.gpu_check.parts import attention, concurrency
from benchmarks.gpu_check.predict import Known
from benchmarks.gpu_check.records import Figure, Journal, number
from specbench.cli.app import main
from specbench.hardware import gpus
from specbench.hardware.gpus import find
from specbench.hardware.roofline import Ceilings
from specbench.hardware.stored_profile import datasheet
from specbench.planning.methods import plan_methods

FAST = Ceilings(bytes_per_s=4e12, flops_per_s=8e14)
QUICK = ("kernels", "concurrency")
SMALL = replace(Size(), concurrency=(1, 4), contexts=(1024,))


def on(card: str, size: Size = SMALL) -> Known:
    """What is known of a card."""
    peaks = datasheet(find(card), "bfloat16")
    assert peaks is not None
    return Known(size, ceilings_of(find(card), "bfloat16"), "bfloat16", find(card), peaks)


def by_name(figures: Iterable[Figure]) -> dict[str, float]:
    """What figures predict, by what they are of."""
    found = {}
    for figure in figures:
        assert figure.value is None
        assert figure.predicted is not None
        found[figure.name] = figure.predicted
    return found


def test_a_step_is_kernels_and_the_longer_of_bytes_and_flops() -> None:
    shape, known = shapes.whole("qwen3-8b"), Known(Size(), FAST)
    few, many, wide = known.ladder(shape, (1, 64, 512)).values()
    # 36 layers of 4096 and 12288, 32 heads and 8 KV heads of 128, 151936 words in two tables, one read by the row.
    weights = 36 * (4096 * 128 * 48 + 4096 * 4096 + 3 * 4096 * 12288) + 151936 * 4096
    small = 36 * (2 * 4096 + 2 * 128) + 4096

    def moved(rows: int, library: float = 1.0) -> float:
        return 2 * (weights + small + rows * 4096) / library + 36 * 8 * 256 * (1024 + 2 * rows) * 2

    assert few.seconds == pytest.approx(354 * 2.25e-6 + moved(1) / 4e12)
    assert few.basis == "354 kernels (counted) × 2.25 µs (assumed) + 15.3 GB / 4000 GB/s"
    assert many.seconds == pytest.approx(390 * 2.25e-6 + moved(64, 0.885) / 4e12)
    assert many.basis == "390 kernels (counted) × 2.25 µs (assumed) + 15.3 GB / 3545 GB/s"
    flops = 2 * 512 * (weights + 36 * 32 * 256 * (1024 + 512))
    assert wide.seconds == pytest.approx(390 * 2.25e-6 + flops / 8e14)
    assert wide.basis.startswith("390 kernels (counted) × 2.25 µs (assumed) + ")
    assert wide.basis.endswith(" TFLOP / 800 TFLOP/s")
    rounds = known.round_of_head(few, 4e9)
    assert rounds.seconds == pytest.approx(few.seconds + predict.HEAD_NODES * 2.25e-6 + 1e-3 + 0.3e-3)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("AR step", 4.3, 4.5), ("step of 64 rows", 4.8, 5.1),
        ("JetSpec, 64 rows, 4 tokens a round: round", 6.1, 6.5), ("EAGLE-3, 60 rows, depth 8: round", 7.0, 7.5),
    ],
)  # fmt: skip
def test_an_h200_is_predicted_as_it_was_estimated(name: str, low: float, high: float) -> None:
    """By hand, of a copy at 4.3 TB/s, before anything was measured; of each the range is about as wide."""
    part = import_module(f"benchmarks.gpu_check.parts.{'jetspec' if 'round' in name else 'steps'}")
    found = {figure.name: figure for figure in predict.with_range(part.predicted, on("h200")) if "8b" in figure.shape}
    figure = found[name]
    assert figure.predicted is not None
    assert figure.low is not None
    assert figure.high is not None
    assert low <= figure.predicted <= high
    assert low - 0.15 < figure.low < figure.predicted < figure.high < high + 0.15
    assert figure.expected.startswith(f"{number(figure.predicted)} (")


def test_attention_takes_the_longer_of_its_bytes_and_its_flops() -> None:
    # A layer of 28 heads and 4 KV heads of 128, 1023 tokens further than one.
    nbytes, per_row = 1023 * 4 * 256 * 2, 2 * 28 * 256 * 1023
    for rows, ceilings, seconds in (
        (64, Ceilings(bytes_per_s=4.8e12, flops_per_s=9.895e14), 64 * per_row / 9.895e14),
        (64, Ceilings(bytes_per_s=1e12, flops_per_s=9.895e14), nbytes / 1e12),
        (2, Ceilings(bytes_per_s=4.8e12, flops_per_s=9.895e14), nbytes / 4.8e12),
    ):
        known = Known(replace(SMALL, attention_rows=rows), ceilings)
        found = by_name(attention.predicted(known))
        assert len(found) == 3
        assert [*found.values()] == [pytest.approx(1e6 * seconds)] * 3


def test_jf_has_its_bound_as_a_dry_run_has_it() -> None:
    found = by_name(concurrency.predicted(on("h200")))
    out = io.StringIO()
    grid = ["--method", "jf", "--grid", "n=16", "--grid", "concurrency=1,4", "--task", "humaneval", "--gpu", "h200"]
    with contextlib.redirect_stdout(out):
        assert main(["sweep", "--model", "config:qwen2.5-7b", *grid, "--dry-run", "--json"]) == 0
    for cell in json.loads(out.getvalue())["cells"]:
        count = cell["concurrency"]
        if cell["label"] != "ar":
            assert cell["rows"] == plan_methods(["jf"], ["jf.n=16"])[1].max_rows == 77
            assert found[f"jf over ar, {count} sequences"] == pytest.approx(4 / cell["times_ar"])
            assert found[f"jf, {count} sequences"] == pytest.approx(4 * count / cell["step_s"])
    one = on("h200").crowd(shapes.whole("qwen2.5-7b"), 4)
    assert one.nodes is not None
    assert one.nodes.nodes == 282
    assert found["ar, 4 sequences"] == pytest.approx(4 / one.seconds)


def test_a_prediction_that_fails_costs_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(known: Known) -> Iterator[Figure]:
        yield Figure("one", None, aim=">= 2", predicted=3.0, basis="by hand")
        raise RuntimeError("triton of another kind")

    journal = Journal(tmp_path / "figures.jsonl")
    assert predict.expected(Bench(journal, rehearse=True), broken).fields("one") == {}, "no ceilings are known"
    for figure in (Figure("copy", 10.0, key="copy"), Figure("product", 0.1, key="flops")):
        journal.figure("ceilings", figure)
    found = predict.expected(Bench(journal, rehearse=True), broken)
    fields = {"predicted": 3.0, "low": 3.0, "high": 3.0, "basis": "by hand"}
    assert (found.fields("one"), found.aim("one")) == (fields, ">= 2")
    assert (found.fields("two"), found.aim("two")) == ({}, "")
    assert wording(capsys.readouterr().err)


# ------------------------------------------------------------------------------------------------------------ --predict


def cells(text: str) -> dict[str, list[str]]:
    """Rows of a table by their first cell."""
    rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| "))
    return {row[0]: row[1:] for row in rows}


def test_predictions_are_a_table_of_cards(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "check", lambda *_, **__: pytest.fail("nothing is to be measured"))
    assert program.main(["--predict", "H200, b200,h200-sxm", "--only", "ceilings,kernels,model"]) == 0
    output = capsys.readouterr().out
    assert cells(output) == {
        "figure": ["predicted, h200", "predicted, b200"],
        "---": ["---", "---"],
        "copy bandwidth, GB/s": ["4,300", "7,167"],
        "read bandwidth, GB/s": ["4,300", "7,167"],
        "matrix product, TFLOP/s": ["989.5", "2,250"],
        "qwen3-8b: step of 1 rows: kernels": ["354", "354"],
        "qwen3-8b: step of 1 rows: launches a layer, kernels": ["9.833", "9.833"],
        "qwen3-8b: step of 64 rows: kernels": ["390", "390"],
        "qwen3-8b: step of 64 rows: launches a layer, kernels": ["10.83", "10.83"],
    }
    assert output.startswith("Predicted, not measured: bfloat16, ")
    assert len({len(line) for line in output.splitlines() if line.startswith("|")}) == 1


def test_a_model_that_a_card_has_no_memory_for_is_not_predicted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As no card of the list has so little memory, one is made."""
    small = replace(find("l4"), memory_gb=16)
    monkeypatch.setattr(gpus, "find", lambda name: small if name == "l4" else find(name))
    assert program.main(["--predict", "l4,h200", "--only", "kernels"]) == 0
    output = capsys.readouterr().out
    assert cells(output)["qwen3-8b: step of 1 rows: kernels"] == ["–", "354"]
    assert output.splitlines()[-1].startswith("–: ")


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, id=part.name, marks=() if part.name in QUICK else pytest.mark.slow)
        for part in PARTS
        if part.predicts and part.name != "ceilings"  # a rehearsal's CPU has no datasheet
    ],
)
def test_what_is_predicted_without_a_gpu_is_what_the_check_measures(tmp_path: Path, part: Part) -> None:
    """Names and units are equal, without additional figures."""
    journal = Journal(tmp_path / "figures.jsonl")
    for figure in (Figure("copy", 10.0, key="copy"), Figure("product", 0.1, key="flops")):
        journal.figure("ceilings", figure)
    bench = Bench(journal, rehearse=True)
    for family in shapes.WANTED:  # what compiled steps are held against
        journal.figure("steps", Figure("AR step", 1.0, shape=f"{family}{shapes.STAND_IN}", key="ar_ms"))
    measured = {forecast.named(one).replace(shapes.STAND_IN, ""): one for one in run(part, bench)}
    foretold = {forecast.named(one): one for one in predicted(part)}
    assert foretold
    unmeasured = {name for name in foretold if not measured.get(name)}
    # ``specbench profile`` measures the knee and ``specbench run`` EAGLE-3, and flash-attn needs a GPU.
    elsewhere = ("knee", "flash", "EAGLE-3")
    assert [name for name in unmeasured if not any(word in name for word in elsewhere)] == []
    assert {name for name, one in measured.items() if one.predicted is not None} == {*foretold} - unmeasured


def run(part: Part, bench: Bench) -> list[Figure]:
    module, function = part.target.split(":")
    return list(getattr(import_module(module), function)(bench))


def predicted(part: Part) -> list[Figure]:
    module: Any = import_module(part.target.partition(":")[0])
    return list(module.predicted(on("h200", TINY)))
