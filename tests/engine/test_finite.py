"""A model that overflows in its precision is detected from its cache, whichever layer overflows and when."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from support import models
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.decoding.tree import TokenTree
from specbench.engine.engine import Engine

BAD = 7  # a token whose embedding is none


@pytest.fixture(params=["llama", "qwen3", "gemma3", "mistral", "mixtral"])
def model(request: pytest.FixtureRequest) -> object:
    return copy.deepcopy(models.supported(request.param))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_one_bad_token_is_seen_after_all_that_follow(model: object, value: float) -> None:
    with models.attached(model, slots=2, capacity=96, max_rows=4) as engine:
        with torch.no_grad():
            model.get_input_embeddings().weight[BAD] = value  # type: ignore[attr-defined]
        good, bad = engine.alloc(), engine.alloc()
        assert engine.finite(good), "it holds nothing"
        engine.prefill(good, [1, 2, 3, 4])
        engine.prefill(bad, [1, 2, BAD, *range(8, 40)])  # many more than a window of the families that have one
        assert (engine.finite(good), engine.finite(bad)) == (True, False)
        engine.step({good: TokenTree.chain([5, 6]), bad: TokenTree.chain([5, 6])})
        assert (engine.finite(good), engine.finite(bad)) == (True, False), "slots keep to themselves"
        engine.free(bad)
        engine.alloc()
        engine.prefill(bad, [1, 2, 3, 4])
        assert engine.finite(bad), "tokens that the slot held before do not count"


def test_a_model_that_overflows_everywhere_is_refused_before_anything_is_decoded(model: object) -> None:
    with torch.no_grad():
        for parameter in model.model.layers[0].parameters():  # type: ignore[attr-defined]
            parameter.mul_(1e25)
    with pytest.raises(UsageError, check=wording):
        Engine(model, slots=1, capacity=32, max_rows=4)
