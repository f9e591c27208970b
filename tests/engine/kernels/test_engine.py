"""The engine on the Triton kernels says what it says on the oracle; here in Triton's interpreter, or on a GPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from support.decoders import hiding_drafts
from support.models import attached, autoregressive, decode, prompt, supported

from specbench.decoding.tree import TokenTree
from specbench.engine.sampler import Sampling

TOKENS = 4


def trees(seed: int, truth: list[int], vocab: int) -> Any:
    return hiding_drafts(seed, truth, vocab, 4, 8, apart=True)


GREEDY, SAMPLED = Sampling(), Sampling(temperature=0.9, seed=3)


# Grouped heads, a window in some layers, head norms.
@pytest.mark.parametrize(
    ("family", "sampling"),
    [
        pytest.param("llama", GREEDY, marks=pytest.mark.slow),
        ("llama", SAMPLED),
        ("gemma3", SAMPLED),
        pytest.param("qwen3", GREEDY, marks=pytest.mark.slow),
    ],
)
def test_the_kernels_decode_what_the_oracle_decodes(family: str, sampling: Sampling, device: str) -> None:
    model = copy.deepcopy(supported(family)).to(device)
    vocab = model.get_input_embeddings().num_embeddings
    prompts = [prompt(length, vocab, seed) for seed, length in enumerate((10, 3))]
    options: dict[str, Any] = {"slots": 2, "capacity": 40, "max_rows": 16, "sampling": sampling}
    with attached(model, backend="reference", **options) as engine:
        expected = [autoregressive(engine, ids, TOKENS) for ids in prompts]
    with attached(model, backend="triton", **options) as engine:
        assert engine.report()["attention"] == "triton"
        assert autoregressive(engine, prompts[0], TOKENS) == expected[0]
        engine.alloc()  # the other slot, with a dead one before it
        assert decode(engine, prompts[1], TOKENS, trees(1, expected[1], vocab)) == expected[1]


def test_filters_and_top_scores_go_with_the_kernels(device: str) -> None:
    model = copy.deepcopy(supported("llama")).to(device)
    vocab = model.get_input_embeddings().num_embeddings
    ids = prompt(9, vocab)
    found = []
    for backend in ("reference", "triton"):
        sampling = Sampling(temperature=0.8, top_k=9, top_p=0.9, seed=4)
        with attached(model, capacity=40, max_rows=4, sampling=sampling, backend=backend) as engine:
            slot = engine.alloc()
            out = engine.prefill(slot, ids).emitted
            result = engine.step({slot: TokenTree([out[-1], 5, 6], [-1, 0, 0])}, top_k=2)[slot]
            assert result.top is not None
            plain = engine.step({slot: TokenTree.chain([result.emitted[-1]])})[slot]
            found.append((out, result.next_tokens, result.top[1].tolist(), plain.next_tokens))
    assert found[0] == found[1]
