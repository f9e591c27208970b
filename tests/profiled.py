"""A profile as it is on disk, made up: of a GPU with a datasheet, and of whatever a test changes in it."""

from __future__ import annotations

from typing import Any

from specbench.hardware.profile import CONTEXTS, ROWS, Profile, base_context
from specbench.hardware.roofline import Ceilings, ModelShape, bound_s, knee, step_cost

# Qwen3-8B in bfloat16.
SHAPE = ModelShape.model_validate(
    {
        "matmul": 6945767424, "head": 622329856, "embedding": 622329856, "embedding_width": 4096, "tied": False,
        "small": 308224, "weight_bytes": 2, "cache_bytes": 2,
        "attention": [{"layers": 36, "query_heads": 32, "kv_heads": 8, "key_size": 128, "value_size": 128}],
    }
)  # fmt: skip
MEASURED = {"copy_bytes_per_s": 4.1e12, "read_bytes_per_s": 4.2e12, "flops_per_s": 7.1e14}
DATASHEET = {"bytes_per_s": 4.8e12, "flops_per_s": 9.895e14}


def made_up(contexts: tuple[int, ...] = CONTEXTS, slots: tuple[int, ...] = (2, 4, 8, 16), **changes: Any) -> Profile:
    """Every step takes a tenth more than its bound and a fifth of a millisecond."""
    base = base_context(contexts)
    ceilings = Ceilings(bytes_per_s=MEASURED["read_bytes_per_s"], flops_per_s=MEASURED["flops_per_s"])
    cells = [(rows, context, 1) for context in contexts for rows in ROWS]
    cells += [(rows, base, several) for several in slots for rows in (1, 4, 16, 64)]
    points = []
    for rows, context, several in cells:
        seconds = 2e-4 + 1.1 * bound_s(step_cost(SHAPE, rows, context, several), ceilings)
        times = {"seconds": seconds, "low_s": 0.98 * seconds, "high_s": 1.03 * seconds, "steps": 25}
        points.append({"rows": rows, "context": context, "slots": several, **times})
    return Profile.model_validate(
        {
            "model": {
                "name": "config:qwen3-8b", "source": "config:qwen3-8b", "revision": None, "fingerprint": "f" * 64,
                "dtype": "bfloat16", "device": "cuda", "parameters": SHAPE.parameters,
                "weight_bytes": 2 * SHAPE.parameters, "dummy": True,
            },
            "environment": {"device": {"kind": "cuda", "name": "NVIDIA H200"}, "cpu": {"model": "a CPU"}},
            "settings": {},
            "engine": {"attention": "triton", "why": "", "graphs": 14, "capture_s": 4.0, "linears": "own"},
            "shape": SHAPE,
            "measured": {**MEASURED, "buffer_bytes": 4 << 30, "matmul_size": 8192, "repeats": 15},
            "gpu": "h200",
            "datasheet": DATASHEET,
            "base_context": base,
            "knee": knee(SHAPE, ceilings, base),
            "points": points,
            "free_rows": [{"context": context, "rows": 96, "below": 128, "tolerance": 0.1} for context in contexts],
            "left_out": [],
            **changes,
        }
    )  # fmt: skip
