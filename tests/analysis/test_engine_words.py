"""The line on what the engine set up."""

from __future__ import annotations

from typing import Any

import pytest

from specbench.analysis.engine_words import engine_line

CAPTURED = {"graphs": 14, "capture_s": 2.07, "capture_bytes": 310 << 20}


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (
            {"attention": "triton", "why": "auto: 1.3 times flash", **CAPTURED, "compile_s": None, "late_captures": 0},
            "attention: triton (auto: 1.3 times flash); 14 graphs captured in 2.1 s, 310 MiB",
        ),
        (
            {"attention": "flash", "why": "", "graphs": 1, "capture_s": 0.0, "capture_bytes": None, "compile_s": 11.96},
            "attention: flash; 1 graph captured in 0.0 s; compiled in 12.0 s",
        ),
        (
            {"attention": "reference", "why": "auto: no CUDA device", "graphs": 0},
            "attention: reference (auto: no CUDA device)",
        ),
        ({"attention": "reference", "linears": "own"}, "attention: reference; layers: our own C++"),
        (
            {"linears": "onednn", "why_not_own": "no C++ compiler was found"},
            "layers: transformers' (no C++ compiler was found)",
        ),
        ({"linears": "onednn"}, ""),
        ({"linears": "torch", "fusions": ["norm", "mlp"], "not_fused": {}}, "layers: fused (norm, mlp)"),
        (
            {"fusions": ["norm"], "not_fused": {"mlp": "layer 3 comes out 0.2 off"}},
            "layers: fused (norm; not mlp: layer 3 comes out 0.2 off)",
        ),
        (
            {"heads": [{"linears": "own", "fusions": ["norm"], "not_fused": {"mlp": "no"}, "bf16_products": 3}]},
            "head: our own C++ (products, norm; not mlp: no; 3 with weights in bf16, exactly)",
        ),
        ({"why_not_fused": "triton is not installed"}, "layers: transformers' (triton is not installed)"),
        ({}, ""),
    ],
)
def test_known_facts_are_printed_and_unknown_ones_left_out(report: dict[str, Any], line: str) -> None:
    assert engine_line(report) == line
