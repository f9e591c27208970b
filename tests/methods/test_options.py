"""Options of the methods: what is refused with the option's name, and the figures that a method announces."""

from __future__ import annotations

import random

import pytest
from support.wording import wording

from specbench.common import registry
from specbench.common.errors import UsageError
from specbench.decoding.protocol import Context
from specbench.methods.jf.decoder import Decoder, Options
from specbench.runner.methods import plan_methods

#: By method: settings, and a part of the message.
REFUSED = {
    "cllm": {"n=0": "block_size", "n=513": "block_size", "init=noise": "init"},
    "jf": {
        "r=1.2": "activation_ratio", "r=-0.1": "activation_ratio", "n=0": "block_size", "K=0": "num_blocks",
        "pool=0": "pool_size", "variant=blog": "variant", "variant=released K=3": "num_blocks 1 or 2",
    },
    "lookahead": {
        "N=1": "ngram_size", "W=0": "window_size", "G=0": "guess_set_size", "G=-1": "guess_set_size",
        "init=random": "init", "lru=fifo": "lru", "shift=two": "shift",
    },
    "msn": {
        "tree=vicuna_7b_stage2": "tree", "tree=mc_sim_7b_64": "mc_sim_7b_63", "retrieval=hard3": "retrieval",
        "fill=pad": "fill", "tie=shortest": "tie", "m=0": "draft_length", "tree=chain m=512": "draft_length",
    },
    "pld": {
        "min_ngram=3 max_ngram=2": "min_ngram 3 is above max_ngram 2",
        "min_ngram=4": "min_ngram 4 is above max_ngram 3",
        "min_ngram=0": "min_ngram", "k=0": "draft_length", "branches=0": "branches", "order=random": "order",
    },
    "suffix": {
        "D=1": "depth", "D=257": "depth", "k=0": "draft_length", "k=512": "draft_length", "factor=-1": "factor",
        "factor=65": "factor", "factor=nan": "factor", "offset=512": "offset", "min_prob=1.1": "min_prob",
        "min_prob=-0.1": "min_prob", "requests=-1": "cached_requests", "requests=1000001": "cached_requests",
        "tree=maybe": "tree", "min_score=-1": "min_score", "preset=vlm": "did you mean vllm",
    },
    "recycling": {
        "B=1": "budget", "B=513": "budget", "warm=maybe": "warm", "unknown=pad": "unknown", "tree=2.2": "tree",
        "tree=8": "rank 8", "tree=00": "has no parent",
    },
    "sam": {
        "k=0": "draft_length", "k=512": "draft_length", "alpha=0": "alpha", "alpha=65": "alpha",
        "full_only=no?": "full_only", "len_bias=-1": "len_bias", "len_bias=513": "len_bias",
        "min_match=-1": "min_match",
    },
    "logitspec": {
        "max_ngram=0": "max_ngram", "max_ngram=17": "max_ngram", "k=0": "draft_length", "k=512": "draft_length",
        "B=1": "budget", "B=513": "budget",
    },
}  # fmt: skip


@pytest.mark.parametrize("method", REFUSED)
def test_options_that_are_refused(method: str) -> None:
    for settings, _ in REFUSED[method].items():
        with pytest.raises(UsageError, check=wording):
            plan_methods([method], settings.split())


def test_the_largest_settings_of_the_papers_can_be_run() -> None:
    # Figure 7a; what the released code does unset; and wider than anything published.
    asked = {"jf": "n=256 pool=16", "lookahead": "W=60 N=8 G=60", "pld": "k=511 branches=10"}
    rows = {name: plan_methods([name], settings.split())[1].max_rows for name, settings in asked.items()}
    assert rows == {"jf": 4337, "lookahead": 840, "pld": 5111}


def test_the_figures_are_those_that_the_method_announces() -> None:
    announced = {name: set(registry.method(name).info["measures"]) for name in ("cllm", "jf")}
    assert announced["cllm"] == {"fast_forwarded", "stationary"}
    paper, released = (
        Decoder(Options.model_validate({"variant": variant}), Context(50, 49, random.Random(0))).measures(1, False)
        for variant in ("paper", "released")
    )
    assert set(released) < set(paper) == announced["jf"]
