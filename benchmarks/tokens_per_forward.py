"""Measure tokens per forward and host time of AR and every registered method, on real prompts, greedy.

Tokens per forward do not depend on the machine; the milliseconds do. Host time is the time of a step without the
target's forward: drafting, building inputs, acceptance, keeping the KV entries, and the decoder's bookkeeping (median
over steps).

    python benchmarks/tokens_per_forward.py [--prompts 20] [--tokens 128] [--method jf,msn --set jf.n=16] [--json]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

import torch

from specbench.analysis.figures import method_figures
from specbench.planning.methods import runnable
from specbench.planning.plan import Plan
from specbench.planning.resolving import resolve
from specbench.results import RequestRecord
from specbench.runner import Session, prepare, session_of
from specbench.runner.loading import load_models
from specbench.runner.prompts import Prepared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--task", default="humaneval")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--method", default=",".join(runnable()), help="default: all that run without settings")
    parser.add_argument("--set", action="append", default=[], dest="settings", help="METHOD.OPTION=VALUE")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    plan = Plan(
        method=args.method,
        settings=args.settings,
        task=args.task,
        model=args.model,
        dtype="float32" if not torch.cuda.is_available() else "auto",
        max_new_tokens=args.tokens,
        limit=args.prompts,
        first=True,  # as for the figures quoted so far
        base="none",
        trace=True,
    )
    if not args.json:
        print(f"{'method':16}{'TPF':>7}{'rows/step':>11}{'step ms':>9}{'host ms':>9}{'= AR':>6}  own figures")
    for row in rows(plan):
        own = " ".join(f"{name}={value:.2f}" for name, value in row["measures"].items())
        figures = (
            f"{row['tokens_per_forward']:7.3f}{row['rows_per_step']:11.1f}{row['step_ms']:9.1f}{row['host_ms']:9.2f}"
        )
        print(json.dumps(row) if args.json else f"{row['method']:16}{figures}{row['exact']:>6}  {own}", flush=True)


def rows(plan: Plan) -> Any:
    """Yield a dictionary for each finished method, AR first; ``exact`` counts answers equal to AR's token for token."""
    resolved = resolve(plan)
    loaded, _ = load_models(resolved)
    prepared = prepare(resolved.plan, resolved.tasks[0], loaded)
    with session_of(resolved, loaded, prepared.longest + prepared.budget) as session:
        yield from _rows(session, prepared)


def _rows(session: Session, prepared: Prepared) -> Iterator[dict[str, Any]]:
    baseline: dict[str, RequestRecord] = {}
    for method in session.methods:
        records = {r.prompt_id: r for r in session.decode(method, [*map(prepared.request, prepared.prompts)])}
        baseline = baseline or records
        figures = method_figures(list(records.values()))
        yield {
            "method": method.label,
            "options": method.options.model_dump(mode="json"),
            "tokens_per_forward": figures.tokens_per_forward,
            "rows_per_step": figures.rows_per_step,
            "step_ms": 1e3 * (figures.step_s or 0.0),
            "host_ms": 1e3 * (figures.phases or {})["host_s"],
            "exact": sum(records[key].output_ids == baseline[key].output_ids for key in records),
            "measures": figures.measures,
        }


if __name__ == "__main__":
    main()
