"""Options of the methods: what is refused with the option's name, and the figures that a method announces."""

from __future__ import annotations

import random

import pytest
from support.wording import wording

from specbench.common import registry
from specbench.common.errors import UsageError
from specbench.decoding.protocol import Context
from specbench.methods.jf.decoder import Decoder, Options
from specbench.planning.methods import plan_methods

#: Settings that only a method itself can refuse; ranges of single options are pydantic's.
REFUSED = {
    "jf": ["r=1.2", "variant=released K=3"],
    "msn": ["tree=vicuna_7b_stage2", "tree=mc_sim_7b_64", "tree=chain m=512"],
    "pld": ["min_ngram=3 max_ngram=2", "min_ngram=4"],
    "suffix": ["factor=nan", "preset=vlm"],
    "recycling": ["tree=2.2", "tree=8", "tree=00"],
    "eagle": ["tree=optimal", "tree=00", "tree=static verify=block"],
    "mtp": ["tree=dynamic verify=block", "feed=hidden"],
}


@pytest.mark.parametrize("method", REFUSED)
def test_options_that_are_refused(method: str) -> None:
    for settings in REFUSED[method]:
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
