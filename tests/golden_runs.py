"""The fixed record set of the golden report: one run of everything that a report can show."""

from __future__ import annotations

import json
from pathlib import Path

from support import runs
from support.engines import CATEGORIES
from support.runs import EXACT, LOSSY, answers, traced

from specbench.results.judgments import JUDGMENTS, JudgeSpec, Judgment
from specbench.results.request_schema import PHASES, GpuTrace, RequestRecord
from specbench.results.schema import TaskSpec

_TEXTS = [
    "def", " add", "(a", ", b", "):", "\n", "    return", " a", " +", " b", "<script>", "alert(1)", "</script>", "•",
    *[" x"] * 12,
]  # fmt: skip


def write(out: Path) -> list[Path]:
    """Writes the runs; equal calls write equal files."""
    return [_code(out), _lossy(out), _chat(out), _simulated(out), _unfinished(out)]


def _code(out: Path) -> Path:
    """Scored, traced, with a projection: a faster method, two settings of a slower one."""
    phases = {name: [1 / 256 * (at + 1)] * 6 for at, name in enumerate(PHASES)}
    pooled = traced(_TEXTS, [5, 5, 5, 4, 3, 3], "a" + "bbbbc" * 3 + "bbbcbbcbbc", ["prefill", "pool", "bonus"])
    guessed = traced(_TEXTS, [2] * 12 + [1], "a" + "bc" * 12 + "c", ["prefill", "guess", "bonus"])
    alone = traced(_TEXTS, [1] * 25, "a" + "b" * 25, ["prefill", "bonus"])
    gpu = GpuTrace(
        sm_clock_mhz=1410, memory_clock_mhz=1593, temperature_c=51, energy_j=20.0, power_w=300.0, throttled=[]
    )  # fmt: skip
    records = [
        *answers("ar", 8, decode_s=1.0, step_s=[1 / 25] * 25, gpu=gpu, **alone),
        *answers("lookahead", 8, decode_s=0.5, step_s=[1 / 12] * 6, phases_s=phases, gpu=gpu, **pooled),
        *answers("jacobi", 8, decode_s=1.25, measures={"stable": 1.5}, **guessed),
        *answers("jacobi#2", 8, output_tokens=26, target_forwards=20, decode_s=1.5, draft_forwards=40),
    ]
    path = runs.folder(
        out, runs.run_config(["lookahead", "jacobi", "jacobi#2"], 8), records,
        lossless=dict.fromkeys(["ar", "lookahead", "jacobi"], EXACT), right=lambda one: one.prompt_id < "p/6",
        metrics=("base", "plus"),
        engine={"attention": "triton", "why": "auto: 1.3 times flash", "graphs": 14, "capture_s": 2.5},
    )  # fmt: skip
    band = {"value": 3.0, "low": 2.5, "high": 3.5}
    projection = {"gpu": "b200", "device": "NVIDIA A100-SXM4-80GB", "context": 100, "schema_version": 1}
    rows = {"ar": {"decode_tok_s": band}, "lookahead": {"decode_tok_s": band, "speedup": band}}
    (path / "projection-b200.json").write_text(json.dumps({**projection, "rows": rows}))
    return path


def _lossy(out: Path) -> Path:
    """Sampled, not scored: a lossy method, whose speed stays untold."""
    records = [
        *answers("ar", 8, target_forwards=24, decode_s=1.0),
        *answers("fast", 8, target_forwards=4, decode_s=0.125),
        *answers("slow", 8, target_forwards=24, decode_s=1.0),
    ]
    made = runs.run_config(["fast", "slow"], 8)
    made = made.model_copy(update={"sampling": made.sampling.model_copy(update={"temperature": 0.7, "seed": 3})})
    return runs.folder(out, made, records, lossless={"ar": EXACT, "fast": LOSSY, "slow": EXACT})


def _chat(out: Path) -> Path:
    """Categories, two judges' worth of ratings, four sequences at once, too few prompts for an interval."""
    categories = list(CATEGORIES.values())
    records = [
        *answers("ar", 4, target_forwards=24, decode_s=1.0, category=lambda at: categories[at % 2]),
        *answers("pld", 4, target_forwards=12, decode_s=0.75, category=lambda at: categories[at % 2]),
    ]
    task = TaskSpec(
        name="mt-bench", version=1, options={}, prompts=4, requests=4, metric="", judge=True, prompts_sha256="b" * 64
    )
    path = runs.folder(out, runs.run_config(["pld"], 4, task=task, concurrency=4), records, lossless={"pld": LOSSY})
    judge = JudgeSpec(id="a judge <b>", kind="endpoint", endpoint="localhost:1")
    ratings = [_rating(judge, one, at) for at, one in enumerate(records)]
    (path / JUDGMENTS).write_text("".join(f"{rating.model_dump_json()}\n" for rating in ratings))
    return path


def _rating(judge: JudgeSpec, one: RequestRecord, at: int) -> Judgment:
    return Judgment(
        request=one.request_id, method=one.method, prompt_id=one.prompt_id, repeat=0, turn=1, category=one.category,
        judge=judge, prompt="single-v1", prompt_sha256="c" * 64, rating=6 + at % 3, text="fine",
    )  # fmt: skip


def _simulated(out: Path) -> Path:
    """Dummy weights with simulated acceptance."""
    records = [*answers("ar", 8, target_forwards=24, decode_s=1.0), *answers("jf", 8, target_forwards=6, decode_s=0.25)]
    made = runs.run_config(["jf"], 8, lot=["jf"])
    made = made.model_copy(update={"model": made.model.model_copy(update={"dummy": True})})
    return runs.folder(out, made, records)


def _unfinished(out: Path) -> Path:
    """Killed: what is there is shown, and said not to be all."""
    records = [*answers("ar", 7, target_forwards=24, decode_s=1.0), *answers("msn", 7, target_forwards=8, decode_s=0.5)]
    return runs.folder(out, runs.run_config(["msn"], 8), records, finish=False)
