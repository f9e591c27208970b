"""Decoders that fill masked blocks write what dense decoders of the published rules write, pass by pass."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from support import diffusion_oracles as oracles
from support.models import attached, supported

from specbench.decoding.fill import FillDecoder
from specbench.decoding.protocol import Context
from specbench.engine.engine import Engine
from specbench.methods.d2f import decoder as d2f
from specbench.methods.dllm import decoder as dllm
from specbench.methods.fast_dllm import decoder as fast_dllm
from specbench.methods.sdar import decoder as sdar

MASK, VOCAB = 5, 61
CASES = range(4)


def model_of(seed: int) -> Any:
    return supported(("llama", "qwen2", "qwen3")[seed % 3])


def written(
    engine: Engine, decoder: FillDecoder, prompt: Sequence[int], tokens: int, *, entropy: bool = False
) -> tuple[list[int], list[list[tuple[int, int]]]]:
    """(tokens of the answer, what each pass after the prompt's wrote)."""
    slot = engine.alloc()
    found: list[int] = []
    passes: list[list[tuple[int, int]]] = []
    made = decoder.read(prompt)
    text: Any = decoder.text  # type: ignore[attr-defined]
    try:
        while True:
            before = list(text.tokens)
            found += decoder.take(engine.fill({slot: made}, entropy=entropy)[slot])
            known = dict(enumerate(before))
            passes.append([
                (at, token) for at, token in enumerate(text.tokens) if known.get(at, MASK) == MASK and token != MASK
            ])  # fmt: skip
            if len(found) >= tokens:
                return found[:tokens], passes
            made = decoder.fill()
    finally:
        engine.free(slot)


def prompt_of(seed: int, model: Any, shortest: int = 1) -> list[int]:
    rng = random.Random(seed)
    vocab = model.get_input_embeddings().num_embeddings
    return [rng.choice([token for token in range(vocab) if token != MASK]) for _ in range(rng.randrange(shortest, 23))]


def compare(
    model: Any, decoder: FillDecoder, prompt: Sequence[int], tokens: int, trace: oracles.Trace, *,
    read: bool = True, entropy: bool = False, **engine_options: Any,
) -> None:  # fmt: skip
    """``read``: whether a pass before the oracle's first one reads the prompt."""
    with attached(model, slots=1, capacity=len(prompt) + tokens, max_rows=64, **engine_options) as engine:
        found, passes = written(engine, decoder, prompt, tokens, entropy=entropy)
    assert found == trace.tokens
    passes = passes[1:] if read else passes
    # A pass that ends the answer is the last one of ours; blocks are finished by the oracle.
    for mine, its in zip(passes, trace.passes, strict=False):
        assert mine == its


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize(("block", "sub"), [(8, 4), (8, 8), (4, 2), (6, 1)])
@pytest.mark.parametrize("seed", CASES)
def test_fast_dllm_equals_its_dense_twin(seed: int, block: int, sub: int, cache: bool) -> None:
    model, threshold, tokens = model_of(seed), [0.1, 0.3, 0.6, 0.9][seed % 4], 21
    prompt = prompt_of(seed, model)
    options = fast_dllm.Options(block_size=block, sub_block=sub, threshold=threshold, block_cache=cache)
    trace = oracles.fast_dllm_v2(
        model, prompt, mask=MASK, block_size=block, small_block=sub, threshold=threshold, max_new_tokens=tokens,
        block_cache=cache, forbid_mask=True,
    )  # fmt: skip
    decoder = fast_dllm.Decoder(options, context(MASK))
    compare(model, decoder, prompt, tokens, trace, read=len(prompt) >= block)


def context(shared: Any, budget: int = 0, stops: Sequence[int] = ()) -> Context:
    return Context(VOCAB, 0, random.Random(0), shared=shared, budget=budget, stops=stops)


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize(
    "rule",
    [
        {"strategy": "low_confidence_dynamic", "threshold": 0.2},
        {"strategy": "low_confidence_dynamic", "threshold": 0.3, "steps": 3},
        {"strategy": "low_confidence_static", "steps": 3},
        {"strategy": "sequential", "steps": 2},
        {"strategy": "entropy_bounded", "entropy_bound": 5.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", CASES)
def test_sdar_equals_its_dense_twin(seed: int, rule: Mapping[str, Any], fuse: bool) -> None:
    model, block, tokens = model_of(seed), 5, 17
    prompt = prompt_of(seed + 10, model)
    options = sdar.Options(block_size=block, fuse=fuse, **rule)
    decoder, entropy = sdar.Decoder(options, context(MASK)), sdar.Decoder.entropy(options)
    trace = oracles.sdar(model, prompt, mask=MASK, block_size=block, max_new_tokens=tokens, forbid_mask=True, **rule)
    if fuse:  # the pass that stores a block is the next block's first one
        trace.passes = [each for each in trace.passes if each]
    compare(model, decoder, prompt, tokens, trace, read=len(prompt) >= block, entropy=entropy)


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
@pytest.mark.parametrize("rule", [{"threshold": 0.2}, {"threshold": 3.0, "score": "entropy"}, {"steps": 3}], ids=str)
@pytest.mark.parametrize("seed", CASES[:3])
def test_masked_diffusion_equals_its_dense_twin(seed: int, rule: Mapping[str, Any], cache: Any, shift: bool) -> None:
    model, block, tokens = model_of(seed), 6, 18
    prompt = prompt_of(seed + 20, model, 2)
    options = dllm.Options(block_size=block, cache=cache, **rule)
    decoder = dllm.Decoder(options, context(dllm.Shared(MASK, shift), tokens))
    published = {**rule, "steps": 3 * rule["steps"]} if "steps" in rule else rule
    trace = oracles.masked(
        model, prompt, mask=MASK, shift=shift, block_size=block, length=tokens, cache=cache, forbid_mask=True,
        **published,
    )  # fmt: skip
    # The published loop runs at least one pass after the first of a block, even if the block is full.
    trace.passes = [each for each in trace.passes if each]
    compare(model, decoder, prompt, tokens, trace, read=False, entropy="score" in rule)


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("thresholds", [(0.1, 0.95, 0.3), (0.5, 0.9, 0.2), (1.0, 0.5, 0.15), (0.0, 1.0, 0.9)])
@pytest.mark.parametrize("seed", CASES)
def test_d2f_equals_its_dense_twin(seed: int, thresholds: tuple[float, float, float], shift: bool) -> None:
    model, block, tokens = model_of(seed), 5, 20
    prompt = prompt_of(seed + 30, model)
    names = ("block_add_threshold", "decoded_token_threshold", "skip_threshold")
    rule: dict[str, Any] = dict(zip(names, thresholds, strict=True))
    options = d2f.Options(block_size=block, **rule)
    trace = oracles.d2f(
        model, prompt, mask=MASK, shift=shift, block_size=block, length=tokens, forbid_mask=True, **rule
    )  # fmt: skip
    decoder = d2f.Decoder(options, context((MASK, shift), tokens))
    compare(model, decoder, prompt, tokens, trace, read=False)
