"""The registered methods with the options that the contract tests run them with: their defaults, and these.

A new method is tested with its defaults as soon as its folder is there. Give it option sets here that reach every
branch of its drafting; small sizes make a stop or a budget fall inside a block more often. The first set of a method is
also what it runs with on a real model, where a wide tree is dear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import targets

from specbench.common import registry
from specbench.decoding.protocol import Method
from specbench.engine.engine import Engine
from specbench.results.schema import BASELINE
from specbench.runner.methods import plan_methods

#: Texts whose bytes are tokens of the tiny models.
CORPUS = Path(__file__).parent / "small_data" / "corpus.jsonl"

OPTION_SETS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "jacobi": [
        {"n": 5},
        {"n": 1},
        {"n": 4, "init": "pad"},
        {"n": 5, "window": "sliding", "init": "uniform"},
        {"n": 6, "init": "uniform", "prefill_draft": False},
        {"n": 4, "window": "sliding", "prefill_draft": False},
    ],
    "cllm": [{"n": 4}, {"n": 1}, {"n": 4, "init": "pad"}, {"n": 6, "init": "uniform"}],
    "lookahead": [
        {"W": 3, "N": 4, "G": 2},
        {"W": 1, "N": 2, "G": 1, "pool_from_prompt": True},  # no guess but the pool's
        {"W": 1, "N": 4, "G": 1, "pool_from_prompt": True},
        {"W": 4, "N": 2, "G": 3},  # nothing goes with the prompt
        {"W": 5, "N": 3, "G": 2, "pool_from_prompt": True},
        {"W": 3, "N": 4, "G": 3, "pool_from_prompt": True, "full_accept_bonus": False},
        {"W": 5, "N": 3, "G": 3, "pool_from_prompt": True, "shift": "accepted"},
        {"W": 4, "N": 3, "G": 2, "init": "const"},
        {"W": 4, "N": 3, "G": 2, "accept_window": True},
        {"W": 4, "N": 4, "G": 2, "accept_window": True, "shift": "accepted", "init": "const"},
        {"W": 3, "N": 3, "G": 2, "pool_from_prompt": True, "lru": "generated", "share_prefixes": False},
        {"preset": "released", "W": 3, "N": 4, "G": 2},
        {"W": 4, "N": 4, "G": 2, "init": "vocabulary", "layout": "ngrams", "pool_from_prompt": True},
        {"W": 3, "N": 3, "G": 2, "shift": "rows", "first_key": "guess", "pool_from_prompt": True},
        {"preset": "llama.cpp", "W": 4, "N": 4, "G": 3},
    ],
    "pld": [
        {"k": 4, "branches": 3},
        {"k": 4, "order": "latest"},
        {"k": 3, "branches": 2, "full_only": False},
        {"k": 3, "max_ngram": 2, "min_ngram": 2},
        {"k": 1, "max_ngram": 1},
        {"preset": "transformers", "k": 4},
        {"k": 4, "fallback": "recycling"},
    ],
    "suffix": [
        {"tree": True, "factor": 3.0, "k": 9, "min_prob": 0.0},
        {"requests": 2, "depth": 6, "factor": 2.0},
        {"requests": 50, "tree": True, "offset": 2.0, "min_prob": 0.2, "k": 12},
        {"fallback": "recycling budget=9", "min_score": 2.0},
    ],
    "recycling": [
        {"budget": 12},
        {"tree": "0 1 00 01 000 2", "warm": True},
        {"preset": "released", "budget": 20},
        {"budget": 10, "retrieve": "suffix min_score=1.5 requests=3"},
    ],
    "sam": [
        {"k": 5, "full_only": False},
        {"k": 3, "alpha": 1.0},
        {"k": 6, "fallback": "logitspec budget=8", "min_match": 2},
        {"k": 4, "corpus": str(CORPUS), "len_bias": 0, "full_only": False},
    ],
    "logitspec": [
        {"budget": 10, "k": 4},
        {"budget": 40, "max_ngram": 1},
        {"budget": 12, "retrieve": "pld k=5"},
    ],
    "jf": [
        {"n": 6, "K": 2, "r": 0.5, "pool": 3},
        {"n": 5, "K": 3, "r": 0.0},
        {"n": 1, "K": 2, "r": 1.0, "pool": 2},
        {"preset": "vanilla", "n": 5},
        {"preset": "M", "n": 6, "r": 0.5, "init": "pad", "prefill_draft": False},
        {"preset": "R", "n": 6, "init": "uniform"},
        {"preset": "released", "n": 6, "K": 2, "r": 0.5, "pool": 4},
        {"preset": "released", "n": 10, "K": 2, "r": 0.3, "pool": 6},  # where recycled guesses are accepted
        {"preset": "released", "n": 5, "multiblock": False, "init": "uniform", "prefill_draft": False},
        {"preset": "released", "n": 4, "r": 0.0, "recycling": False, "init": "pad"},
        {"preset": "released", "n": 1},
    ],
    "msn": [
        {"tree": "chain", "m": 3},
        {"tree": "chain", "m": 1},
        {"preset": "released"},
        {"retrieval": "pld", "tie": "first"},
        {"retrieval": "off", "fill": "stale_root"},
        {"tree": "[[0], [0, 0], [2], [0, 0, 1], [0, 0, 1, 0], [2, 3]]", "retrieval": "pld"},
    ],
    "sps": [{"k": 3}, {"k": 1}, {"k": 8}],
    "jetspec": [
        {"budget": 40, "width": 36},
        {"tree": "accum-logp", "budget": 48, "width": 40, "depth": 2},
        {"tree": "auto", "budget": 64, "width": 60},
        {"head": "random-dflash", "budget": 60, "width": 50, "depth": 4},
        {"budget": 24, "width": 20, "retrieve": "suffix min_score=0.5"},
    ],
    "eagle3": [
        {"budget": 40, "width": 30, "depth": 2},
        {"tree": "chain", "depth": 4, "budget": 4},
        {"budget": 24, "width": 6, "depth": 5},
        {"budget": 9, "width": 64, "depth": 1},
        {"head": "random-parallel", "budget": 50, "width": 40, "depth": 4},
        {"head": "random-parallel", "tree": "chain", "depth": 3},
        {"budget": 24, "width": 20, "depth": 3, "retrieve": "suffix min_score=0.5"},
    ],
}

#: What a method cannot run without. In the tests any draft model's name stands for a near copy of the target; a head
#: that knows nothing is right by guessing much.
NEEDED: Mapping[str, Mapping[str, Any]] = {
    "sps": {"draft": "config:tiny"},
    "jetspec": {"head": "random", "width": 64, "budget": 96},
    "eagle3": {"head": "random", "width": 64, "budget": 96, "depth": 2},
}
#: The part of it that presets leave open.
_BARE = {"sps": {"draft": "config:tiny"}, "jetspec": {"head": "random"}, "eagle3": {"head": "random"}}


def with_options(name: str, options: Mapping[str, Any]) -> Method:
    """A registered method, made as the command line makes it: a preset may be among the options."""
    needed = (_BARE if "preset" in options else NEEDED).get(name, {})
    given = {**needed, **options}
    return plan_methods([name], [f"{name}.{option}={value}" for option, value in given.items()])[-1]


def ready(method: Method, engine: Engine) -> Method:
    """The method with what its sequences share on this engine, made once."""
    # Kept with the engine and given up with it: what is shared may refer to it, so that no table of ours would let go.
    made: dict[str, Method] = vars(engine).setdefault("_methods_made_ready", {})
    key = f"{method.name} {method.options!r}"
    if key not in made:
        made[key] = method.ready(targets.target(engine))
    return made[key]


def label(name: str, options: Mapping[str, Any]) -> str:
    """The test's id."""
    return " ".join([name, *(f"{option}={value}" for option, value in options.items() if value != str(CORPUS))])


#: Every method as it comes.
DEFAULTS: dict[str, Method] = {name: with_options(name, {}) for name in registry.methods()}

ALL: dict[str, Method] = DEFAULTS | {
    label(name, options): with_options(name, options)
    for name in registry.methods()
    for options in OPTION_SETS.get(name, [])
}


def lossless(methods: Mapping[str, Method]) -> dict[str, Method]:
    """Those that claim to be; the baseline is left out, for it is what the others are compared with."""
    return {key: method for key, method in methods.items() if method.lossless and method.name != BASELINE}


LOSSLESS = lossless(ALL)
