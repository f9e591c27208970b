"""``profile --nodes``: its tables at two widths, as JSON, and what it refuses, all without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from support.wording import wording

from specbench.cli.profile import _nodes_report
from specbench.hardware import gpus
from specbench.profiling.nodes import CARDS, COPIED, NodeCount, StepNodes

ASKED = ("profile", "--nodes", "--model", "config:tiny", "--rows", "4", "--contexts", 500)


@pytest.fixture
def no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "seen", list)


@pytest.mark.parametrize("columns", [80, 140])
def test_the_tables(cli: Any, no_card: None, columns: int) -> None:
    said = cli.ok(*ASKED, columns=columns)
    lines = said.out.splitlines()
    assert max(map(len, lines)) <= columns
    assert lines[0].startswith("nodes of a step: predicted, not measured · config:tiny bfloat16")
    assert wording(" ".join(said.out.split()))
    assert "…" not in said.out
    assert said.err == ""
    (times,) = [line.split() for line in lines if line.startswith("predicted ms")]
    assert times == ["predicted", "ms", "layers", *CARDS]
    told = json.loads(cli.ok(*ASKED, "--json").out)
    for step in told["steps"]:
        name = "sampled" if step["sampled"] else "AR" if step["rows"] == 1 else "tree"
        rows = ["1", "row"] if step["rows"] == 1 else [str(step["rows"]), "rows"]
        start = [f"{name},", *rows, "fused" if step["fused"] else "transformers"]
        counts, ms = (line.split()[4:] for line in lines if line.split()[:4] == start)
        (layer,) = {*step["nodes_of_layers"]}
        assert [*map(int, counts[:3])] == [layer, step["nodes_outside"], step["nodes"]]
        assert counts[3:] == [f"{step['weight_bytes'] / 1e3:.0f}", "kB", f"{step['cache_bytes'] / 1e3:.0f}", "kB"]
        assert [*map(float, ms)] == [pytest.approx(step["predicted_ms"][card], abs=6e-3) for card in CARDS]


def test_json_says_what_was_assumed_and_names_the_cards(cli: Any) -> None:
    found = json.loads(cli.ok(*ASKED, "--gpu", "H200, l4,h200-sxm", "--slots", 2, "--dtype", "fp32", "--json").out)
    assert {key: found[key] for key in ("predicted", "model", "dtype", "context", "slots", "assumed_node_s")} == {
        "predicted": True,
        "model": "config:tiny",
        "dtype": "float32",
        "context": 500,
        "slots": 2,
        "assumed_node_s": 2.25e-6,
    }
    assert {(step["rows"], step["sampled"]) for step in found["steps"]} == {(1, False), (4, False), (4, True)}
    for step in found["steps"]:
        nbytes = step["weight_bytes"] + step["cache_bytes"]
        assert step["nodes"] == sum(step["nodes_of_layers"]) + step["nodes_outside"]
        for card, bandwidth in (("h200", 4.8e12 * COPIED), ("l4", 3e11 * COPIED)):
            assert step["predicted_ms"].pop(card) == pytest.approx(1e3 * nbytes / bandwidth + 2.25e-3 * step["nodes"])
        assert step["predicted_ms"] == {}


def test_this_machines_card_is_the_one_that_is_predicted_for(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "seen", lambda: ["NVIDIA H100 PCIe"])
    found = json.loads(cli.ok(*ASKED, "--json").out)
    assert {card for step in found["steps"] for card in step["predicted_ms"]} == {"h100-pcie"}


def printed(count: NodeCount, *cards: str, columns: int = 80) -> str:
    console = Console(width=columns, highlight=False, markup=False)
    with console.capture() as captured:
        console.print(_nodes_report(count, [gpus.find(card) for card in cards]))
    return captured.get()


STEP = StepNodes(512, True, True, (9, 10, 9), 30, weight_bytes=15.1e9, cache_bytes=1.51e8, flops=1e12)
COUNT = NodeCount("some", "bfloat16", 1024, 3, 16e9, ("norm",), {"mlp": "its MLP is not of the kind"}, "", (STEP,))


def test_many_cards_take_several_tables_and_layers_that_differ_are_a_range() -> None:
    said = printed(COUNT, *(gpu.name for gpu in gpus.GPUS))
    assert max(map(len, said.splitlines())) <= 80
    assert "…" not in said
    tables = [line.split()[3:] for line in said.splitlines() if line.startswith("predicted ms")]
    assert len(tables) > 3
    assert [card for some in tables for card in some] == [gpu.name for gpu in gpus.GPUS]
    row = "sampled, 512 rows fused 9–10 30 58 15.1 GB 151 MB"
    flat = " ".join(said.split())
    assert row in flat
    assert "3 sequences" in flat
    assert wording(flat)


def test_what_does_not_fit_has_no_time_and_what_computes_longer_is_marked() -> None:
    said = printed(COUNT, "h200", "l4")
    assert said.splitlines()[-1] != "–: weights and cache, 16.0 GB, are more than its memory."
    large = replace(COUNT, held_bytes=25e9, steps=(replace(STEP, flops=4e12),))
    said = printed(large, "h200", "l4")
    (row,) = [line.split() for line in said.splitlines() if line.startswith("sampled")][1:]
    assert row[-3:] == ["*", "4.17", "–"]  # 4 TFLOP at 989.5 TFLOP/s, and 58 nodes
    (row,) = [line.split() for line in printed(COUNT, "h200").splitlines() if line.startswith("sampled")][1:]
    assert row[-2:] == ["fused", "4.13"]  # 15.1 GB at 0.885 of 4.3 TB/s, and 0.151 GB at all of it
    assert said.splitlines()[-2:] == [
        "*: its FLOPs take longer than its bytes.",
        "–: weights and cache, 25.0 GB, are more than its memory.",
    ]
    assert "*: its FLOPs" not in printed(COUNT, "h200", "l4")
    assert wording(printed(replace(COUNT, fusions=(), why_not_fused="its layers have no self_attn"), "h200"))


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("--seconds 5", 2, "--seconds is for measuring, which --nodes does not; leave it out"),
        ("--device cpu", 2, "--device is for measuring"),
        ("--attention triton", 2, "--attention is for measuring"),
        ("--graphs off", 2, "--graphs is for measuring"),
        ("--compile", 2, "--compile is for measuring"),
        ("--native off", 2, "--native is for measuring"),
        ("--out there", 2, "--out is for measuring"),
        ("--dtype int8", 2, "weights of int8 are for CPUs; give another --dtype"),
        ("--gpu h2000", 2, "unknown GPU 'h2000'; did you mean h200"),
        ("--gpu ,", 2, "--gpu names nothing; give names of list gpus"),
        ("--contexts 1,2", 2, "--contexts 1,2: --nodes takes one number, as --contexts 1024"),
        ("--slots 1,2", 2, "--slots 1,2: --nodes takes one number, as --slots 1"),
        ("--rows 513", 2, "--rows 513: give whole numbers from 1 to 512"),
        ("--slots 9", 2, "64 rows of 9 sequences are more than the 512 that are captured; give fewer"),
        ("--contexts 8129", 2, "takes 8192 positions: with 64 rows, give --contexts of at most 8128"),
        ("--model config:tinny", 2, "unknown config 'tinny'; did you mean tiny?"),
    ],
)
def test_mistakes(cli: Any, options: str, code: int, message: str) -> None:
    assert message in cli.refused(code, "profile", "--nodes", "--model", "config:tiny", *options.split())


def test_help_and_mistakes_need_no_torch() -> None:
    commands = [
        ["profile", "--help"],
        ["profile", "--nodes", "--seconds", "5"],
        ["profile", "--nodes", "--gpu", "h2000"],
    ]
    code = (
        "import sys; from specbench.cli.app import main\n"
        f"for command in {commands}:\n"
        "    main(command)\n"
        "    assert not {'torch', 'transformers', 'triton'} & {*sys.modules}, command"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "--nodes" in done.stdout
