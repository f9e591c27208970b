"""Error of a projection from this CPU with one thread onto the same CPU with two threads, whose steps are measured too.

The ceilings (bandwidth and peak) of both are measured, so the test covers how steps follow from ceilings, not a
datasheet. Both are measured alternately, because other processes change the bandwidth; figures are medians over turns.

    python benchmarks/projection_error.py [--model smollm2-135m] [--seconds 40] [--turns 2]
"""

from __future__ import annotations

import argparse
import json
import math
from statistics import median

import torch

from specbench.hardware import Profile, Projection
from specbench.hardware.roofline import Ceilings, StepPoint
from specbench.hardware.stored_profile import Settings
from specbench.models import LoadedModel, load
from specbench.profiling import measure_profile

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXTS = (128, 512)


def measured(loaded: LoadedModel, threads: int, seconds: float) -> Profile:
    """Measure a profile with this number of threads."""
    torch.set_num_threads(threads)
    settings = Settings(rows=ROWS, contexts=CONTEXTS, slots=(1,), seconds=seconds)
    return measure_profile(loaded, settings, lambda line: None)


def middle(profiles: list[Profile]) -> tuple[Ceilings, dict[tuple[int, int], StepPoint]]:
    """Return the medians of the ceilings, and of every step that all profiles have."""
    ceilings = Ceilings(
        bytes_per_s=median(p.ceilings.bytes_per_s for p in profiles),
        flops_per_s=median(p.ceilings.flops_per_s for p in profiles),
    )
    by_place = [{(point.rows, point.context): point for point in profile.points} for profile in profiles]
    found = {}
    for place in sorted(set.intersection(*map(set, by_place))):
        points = [points[place] for points in by_place]
        found[place] = points[0].model_copy(update={"seconds": median(point.seconds for point in points)})
    return ceilings, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seconds", type=float, default=40, help="seconds for each profile")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    loaded = load(args.model, dtype="float32", device="cpu")
    profiles: dict[int, list[Profile]] = {1: [], 2: []}
    for _ in range(args.turns):
        for threads, found in profiles.items():
            found.append(measured(loaded, threads, args.seconds))
    here, points = middle(profiles[1])
    there, truth = middle(profiles[2])
    projection = Projection(profiles[1][0].shape, here, points.values(), there)
    table = []
    for (rows, context), point in truth.items():
        band = projection.seconds(rows, context)
        table.append(
            {
                "rows": rows,
                "context": context,
                "one_thread_ms": 1e3 * points[rows, context].seconds if (rows, context) in points else None,
                "measured_ms": 1e3 * point.seconds,
                "projected_ms": 1e3 * band.value,
                "low_ms": 1e3 * band.low,
                "high_ms": 1e3 * band.high,
                "error": band.value / point.seconds - 1,
                "inside": band.low <= point.seconds <= band.high,
            }
        )
    errors = [abs(math.log(row["projected_ms"] / row["measured_ms"])) for row in table]
    report = {
        "ceilings_ratio": {
            "bytes": there.bytes_per_s / here.bytes_per_s,
            "flops": there.flops_per_s / here.flops_per_s,
        },
        "median_error": math.expm1(median(errors)),
        "largest_error": math.expm1(max(errors)),
        "inside_band": sum(row["inside"] for row in table) / len(table),
        "table": table,
    }
    if args.json:
        print(json.dumps(report, indent=2))
        return
    ratio = report["ceilings_ratio"]
    moved, computed = f"bandwidth ×{ratio['bytes']:.2f}", f"matrix products ×{ratio['flops']:.2f}"
    print(f"{args.model} fp32, one thread to two: {moved}, {computed}")
    print(f"{'rows':>5}{'context':>9}{'1 thread':>10}{'2 threads':>11}{'projected':>11}{'band':>18}{'error':>9}")
    for row in table:
        one = f"{row['one_thread_ms']:.1f}" if row["one_thread_ms"] else "–"
        band = f"{row['low_ms']:.1f} to {row['high_ms']:.1f}"
        print(
            f"{row['rows']:5}{row['context']:9}{one:>10}{row['measured_ms']:11.1f}{row['projected_ms']:11.1f}"
            f"{band:>18}{row['error']:+9.0%}"
        )
    print(
        f"error: median {report['median_error']:.0%}, largest {report['largest_error']:.0%}; inside the band: "
        f"{report['inside_band']:.0%} of {len(table)} steps"
    )


if __name__ == "__main__":
    main()
