"""Engine AR against transformers ``generate``: same weights, same prompts, one run, interleaved, greedy.

Prints tokens per second of both, the ratio with its paired-bootstrap interval, and the share of the memory-bandwidth
floor: a decode step must read every weight once, so it cannot be shorter than weight bytes / measured read bandwidth.

    python benchmarks/vs_generate.py [--prompts 12] [--tokens 64] [--model smollm2-135m] [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from specbench import registry
from specbench.engine.engine import Engine
from specbench.engine.tree import TokenTree
from specbench.models import LoadedModel, load
from specbench.stats import paired_ratio

Timed = tuple[list[int], float]  # tokens, decode seconds (first token to last)


def read_bandwidth(nbytes: int, device: torch.device) -> float:
    """Best bytes per second of a sum over a buffer as large as the weights, beyond any cache."""
    buffer = torch.ones(nbytes // 4, dtype=torch.float32, device=device)
    return nbytes / min(_seconds(lambda: buffer.sum().item()) for _ in range(15))


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class _FirstToken:
    """A streamer that notes when ``generate`` hands over its first new token."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def put(self, value: Any) -> None:
        self.at.append(time.perf_counter())

    def end(self) -> None: ...


def by_generate(model: Any, ids: Sequence[int], tokens: int) -> Timed:
    """transformers' own loop with its default cache; called while the model has its native attention."""
    streamer = _FirstToken()
    prompt = torch.tensor([list(ids)], device=model.device)
    with torch.inference_mode():
        out = model.generate(
            prompt,
            # else it is guessed, and chat-template tokens that equal the pad token are masked out of the prompt
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=tokens,
            do_sample=False,
            streamer=streamer,
        )
    # the first put is the prompt, the second the first new token
    return out[0, len(ids) :].tolist(), streamer.at[-1] - streamer.at[1]


def by_engine(engine: Engine, ids: Sequence[int], tokens: int) -> Timed:
    """The engine's AR: a tree of one row per forward."""
    slot = engine.alloc()
    out = list(engine.prefill(slot, ids).emitted)
    start = time.perf_counter()
    while len(out) < tokens:
        out += engine.step({slot: TokenTree.chain(out[-1:])})[slot].emitted
    elapsed = time.perf_counter() - start
    engine.free(slot)
    return out, elapsed


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
    """Alternates the two on every prompt, in random order, after one untimed pass of each."""
    model = loaded.model
    # Stop tokens are ordinary tokens here, for both arms: all answers have the same length.
    model.generation_config.eos_token_id = None
    module = registry.task("humaneval").load()
    texts = module.Task(module.Options()).prompts(loaded.has_chat_template)[: prompts + 1]
    encoded = [loaded.encode(prompt) for prompt in texts]
    engine = Engine(model, capacity=max(map(len, encoded)) + tokens)

    def generate(ids: Sequence[int]) -> Timed:
        engine.close()
        try:
            return by_generate(model, ids, tokens)
        finally:
            engine.attach()

    arms: dict[str, Callable[[Sequence[int]], Timed]] = {
        "generate": generate,
        "engine": lambda ids: by_engine(engine, ids, tokens),
    }
    for arm in arms.values():
        arm(encoded[0])  # warm-up, on a prompt that is not timed
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    outputs: dict[str, list[list[int]]] = {name: [] for name in arms}
    rng = random.Random(0)
    for ids in encoded[1:]:
        for name in rng.sample(list(arms), len(arms)):
            out, elapsed = arms[name](ids)
            outputs[name].append(out)
            seconds[name].append(elapsed)
    count = [tokens - 1.0] * len(seconds["engine"])
    ratio = paired_ratio((seconds["generate"], count), (seconds["engine"], count), seed=0)
    bandwidth = read_bandwidth(loaded.spec.weight_bytes, model.device)
    step = median(seconds["engine"]) / (tokens - 1)
    floor = loaded.spec.weight_bytes / bandwidth
    return {
        "model": f"{loaded.spec.name} {loaded.spec.dtype} {model.device}",
        "prompts": len(count),
        "tokens_each": tokens,
        "ids_equal": outputs["engine"] == outputs["generate"],
        "generate_tok_s": sum(count) / sum(seconds["generate"]),
        "engine_tok_s": sum(count) / sum(seconds["engine"]),
        "engine_over_generate": ratio.value,
        "interval_low": ratio.interval.low if ratio.interval else None,
        "interval_high": ratio.interval.high if ratio.interval else None,
        "median_prompt_ratio": median(g / e for g, e in zip(seconds["generate"], seconds["engine"], strict=True)),
        "engine_step_ms": 1e3 * step,
        "read_bandwidth_gb_s": bandwidth / 1e9,
        "floor_ms": 1e3 * floor,
        "share_of_floor": floor / step,
    }


if __name__ == "__main__":
    main()
