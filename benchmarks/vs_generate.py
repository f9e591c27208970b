"""Compare the engine with transformers ``generate``: same weights and prompts, interleaved in one run, greedy.

Two pairs: AR against plain ``generate``, and our ``pld`` against ``generate(prompt_lookup_num_tokens=10)``. Prints
tokens per second of all four, both ratios with their paired-bootstrap intervals, and AR's share of the memory-bandwidth
limit: a decode step must read every weight once, so it takes at least weight bytes / measured read bandwidth. On a CPU
with a C++ compiler, specbench's probe measures the bandwidth.

    python benchmarks/vs_generate.py [--prompts 12] [--tokens 64] [--model smollm2-135m] [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from specbench.analysis.stats import paired_ratio
from specbench.common import EnvironmentRefused, registry
from specbench.decoding import Method
from specbench.hardware.bandwidth import BandwidthProbe
from specbench.models import LoadedModel, load
from specbench.planning.methods import plan_methods
from specbench.runner import Request, Session, StopRule

LOOKUP = 10  # tokens that a lookup drafts, in both


@dataclass(frozen=True)
class Timed:
    """One answer: its ids, the seconds from the first token to the last, and the tokens that arrived in this time.

    The first forward of a lookup may bring several tokens; they count towards neither side's decode time.
    """

    ids: list[int]
    seconds: float
    tokens: int


def read_bandwidth(nbytes: int, device: torch.device) -> float:
    """Bytes per second for reading a buffer larger than any cache: by the probe on a CPU, else by the fastest sum."""
    if device.type == "cpu":
        with suppress(EnvironmentRefused), BandwidthProbe() as probe:
            return probe.read(torch.get_num_threads(), readings=15)
    buffer = torch.ones(nbytes // 4, dtype=torch.float32, device=device)
    return nbytes / min(_seconds(lambda: buffer.sum().item()) for _ in range(15))


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class _Arrivals:
    """A streamer that records when ``generate`` hands over tokens, and how many."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []

    def put(self, value: Any) -> None:
        self.seen.append((time.perf_counter(), value.numel()))

    def end(self) -> None: ...


def by_generate(model: Any, ids: Sequence[int], tokens: int, **options: Any) -> Timed:
    """Decode with transformers' own loop and default cache. The model must have its native attention."""
    arrivals = _Arrivals()
    prompt = torch.tensor([list(ids)], device=model.device)
    with torch.inference_mode():
        out = model.generate(
            prompt,
            # otherwise generate guesses it and masks chat-template tokens that equal the pad token
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=tokens,
            do_sample=False,
            streamer=arrivals,
            **options,
        )
    _, (start, first), *later = arrivals.seen  # the first call of put has the prompt
    found: list[int] = out[0, len(ids) :].tolist()
    return Timed(found, later[-1][0] - start, len(found) - first)


def by_session(session: Session, method: Method, ids: Sequence[int], tokens: int) -> Timed:
    """Decode with a method on the engine, timed as in a run."""
    (record,) = session.decode(method, [Request("prompt", 0, ids, StopRule(frozenset(), (), tokens, str))])
    return Timed(record.output_ids, record.decode_s, record.output_tokens - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    loaded = load(args.model, dtype="float32" if not torch.cuda.is_available() else "auto")
    result = race(loaded, args.prompts, args.tokens)
    if args.json:
        print(json.dumps(result, indent=2))
        return
    for name, value in result.items():
        print(f"{name:32} {value:.4g}" if isinstance(value, float) else f"{name:32} {value}")


def race(loaded: LoadedModel, prompts: int, tokens: int) -> dict[str, Any]:
    """Run all arms on every prompt in random order, after one untimed pass of each."""
    model = loaded.model
    # Stop tokens are ordinary tokens here for all arms, so that all answers have the same length.
    model.generation_config.eos_token_id = None
    module = registry.task("humaneval").load()
    texts = module.Task(module.Options()).prompts(loaded.has_chat_template)[: prompts + 1]
    encoded = [loaded.encode(prompt) for prompt in texts]
    session = Session(loaded, plan_methods(["pld"], []), capacity=max(map(len, encoded)) + tokens)
    ar, pld = session.methods

    def generate(ids: Sequence[int], **options: Any) -> Timed:
        session.engine.detach()
        try:
            return by_generate(model, ids, tokens, **options)
        finally:
            session.engine.attach()

    arms: dict[str, Callable[[Sequence[int]], Timed]] = {
        "generate": generate,
        "engine": lambda ids: by_session(session, ar, ids, tokens),
        "generate_lookup": lambda ids: generate(ids, prompt_lookup_num_tokens=LOOKUP),
        "engine_pld": lambda ids: by_session(session, pld, ids, tokens),
    }
    for arm in arms.values():
        arm(encoded[0])  # warm-up, on a prompt that is not timed
    timed: dict[str, list[Timed]] = {name: [] for name in arms}
    rng = random.Random(0)
    for ids in encoded[1:]:
        for name in rng.sample(list(arms), len(arms)):
            timed[name].append(arms[name](ids))
    bandwidth = read_bandwidth(loaded.spec.weight_bytes, model.device)
    step = median(one.seconds / one.tokens for one in timed["engine"])
    floor = loaded.spec.weight_bytes / bandwidth
    return {
        "model": f"{loaded.spec.name} {loaded.spec.dtype} {model.device}",
        "prompts": prompts,
        "tokens_each": tokens,
        "ids_equal": len({str([one.ids for one in answers]) for answers in timed.values()}) == 1,
        **{f"{name}_tok_s": sum(o.tokens for o in arm) / sum(o.seconds for o in arm) for name, arm in timed.items()},
        **_ratio("engine_over_generate", timed["generate"], timed["engine"]),
        **_ratio("pld_over_generate_lookup", timed["generate_lookup"], timed["engine_pld"]),
        "engine_step_ms": 1e3 * step,
        "read_bandwidth_gb_s": bandwidth / 1e9,
        "floor_ms": 1e3 * floor,
        "share_of_floor": floor / step,
    }


def _ratio(name: str, theirs: Sequence[Timed], ours: Sequence[Timed]) -> dict[str, Any]:
    """Return their seconds per token divided by ours, pooled, with its interval, and the median over prompts."""
    pairs = [([one.seconds for one in arm], [float(one.tokens) for one in arm]) for arm in (theirs, ours)]
    ratio = paired_ratio(pairs[0], pairs[1], seed=0)
    each = [(t.seconds / t.tokens) / (o.seconds / o.tokens) for t, o in zip(theirs, ours, strict=True)]
    return {
        name: ratio.value,
        f"{name}_low": ratio.interval.low if ratio.interval else None,
        f"{name}_high": ratio.interval.high if ratio.interval else None,
        f"{name}_median_prompt": median(each),
    }


if __name__ == "__main__":
    main()
