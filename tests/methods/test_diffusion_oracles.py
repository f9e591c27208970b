"""The dense block-diffusion decoders, where the answer is known without them."""

from __future__ import annotations

from typing import Any

import torch
from support.diffusion_oracles import Rows, Trace, d2f, fast_dllm_v2, masked, sdar
from support.models import prompt, tiny_llama

MASK = 59
PROMPT = prompt(11, MASK)
GIVEN: dict[str, Any] = {"mask": MASK, "forbid_mask": True}


def counts(trace: Trace) -> list[int]:
    return [len(written) for written in trace.passes if written]


def autoregressive(model: Any, text: list[int], tokens: int) -> list[int]:
    """Greedy text, from the model's own causal mask; the mask token is never chosen."""
    out = list(text)
    with torch.inference_mode():
        for _ in range(tokens):
            logits = model(torch.tensor([out])).logits[0, -1]
            logits[MASK] = -torch.inf
            out.append(int(logits.argmax()))
    return out[len(text) :]


def constant(vocab: int = 60) -> Any:
    """A model that gives every token the same probability everywhere."""
    model = tiny_llama(vocab, tie_word_embeddings=False)
    torch.nn.init.zeros_(model.lm_head.weight)
    return model


def test_rows_in_a_chain_equal_causal_attention() -> None:
    model, rows = tiny_llama(60), Rows(tiny_llama(60))
    chain: list[int] = []
    for at, token in enumerate(PROMPT):
        chain += rows.add([token], at, chain)
        rows.add([MASK, MASK], at + 1, chain)  # seen by no one
    with torch.inference_mode():
        torch.testing.assert_close(rows.logits(chain), model(torch.tensor([PROMPT])).logits[0])


def test_blocks_of_one_write_autoregressive_text() -> None:
    model = tiny_llama(60)
    expected = autoregressive(model, PROMPT, 12)
    found = fast_dllm_v2(model, PROMPT, block_size=1, small_block=1, max_new_tokens=12, **GIVEN)
    assert found.tokens == expected
    assert found.passes == [[(11 + at, token)] for at, token in enumerate(expected)][1:]
    # D2F's prompt is bidirectional, and causal when it has one token
    alone = d2f(model, PROMPT[:1], shift=True, block_size=1, length=12, block_add_threshold=1, **GIVEN)
    assert alone.tokens == autoregressive(model, PROMPT[:1], 12)
    stop = expected[6]
    cut = fast_dllm_v2(model, PROMPT, block_size=1, small_block=1, max_new_tokens=12, stops=[stop], **GIVEN)
    assert cut.tokens == expected[: expected.index(stop) + 1]


def test_unreachable_threshold_writes_one_token_a_pass() -> None:
    model = tiny_llama(60)
    for trace in (
        fast_dllm_v2(model, PROMPT, block_size=8, small_block=4, threshold=1.1, max_new_tokens=20, **GIVEN),
        sdar(model, PROMPT, threshold=1.1, max_new_tokens=20, **GIVEN),
        masked(model, PROMPT, block_size=8, length=20, threshold=1.1, **GIVEN),
        masked(model, PROMPT, block_size=8, length=20, threshold=0, score="entropy", cache="dual", **GIVEN),
        masked(model, PROMPT, shift=True, block_size=8, length=20, threshold=1.1, cache="prefix", **GIVEN),
        d2f(model, PROMPT, block_size=8, length=20, skip_threshold=1.1, decoded_token_threshold=1, **GIVEN),
    ):
        assert len(trace.tokens) == 20
        assert set(counts(trace)) == {1}


def test_ties_are_broken_from_left_to_right() -> None:
    model = constant()
    tie: dict[str, Any] = {"threshold": 0.5, **GIVEN}
    right = [[(11 + at, 0)] for at in range(16)]
    assert masked(model, PROMPT, block_size=8, length=16, **tie).passes == right
    assert masked(model, PROMPT, block_size=8, length=16, steps=8, **GIVEN).passes == [
        a + b for a, b in zip(right[::2], right[1::2], strict=True)
    ]
    aligned = fast_dllm_v2(model, PROMPT, block_size=8, small_block=4, max_new_tokens=13, **tie)
    assert aligned.passes == [[(11 + at, 0)] for at in range(14)]  # the last one stores the block up to position 24
    stored = sdar(model, PROMPT, max_new_tokens=5, **tie)
    assert stored.passes == [right[0], [], *right[1:5], []]
    pipeline = d2f(model, PROMPT, block_size=4, length=8, skip_threshold=0.5, decoded_token_threshold=0.5, **GIVEN)
    # the second block opens after the first token, and leads from the half of the first on
    assert pipeline.passes == [
        [(11, 0)], [(12, 0)], [(13, 0), (15, 0)], [(14, 0), (16, 0)], [(17, 0)], [(18, 0)],
    ]  # fmt: skip


def test_stale_caches_are_exact_in_one_layer() -> None:
    """Keys and values of a first layer do not depend on what a row saw: only its token and position could be stale."""
    shared: dict[str, Any] = {"block_size": 8, "threshold": 0.2, **GIVEN}
    one, three = (tiny_llama(60, num_hidden_layers=layers) for layers in (1, 3))

    def v2(model: Any, cached: bool) -> Trace:
        return fast_dllm_v2(model, PROMPT, small_block=4, max_new_tokens=32, block_cache=cached, **shared)

    plain = masked(one, PROMPT, length=32, **shared)
    assert {1} < set(counts(plain))  # some passes write several tokens
    for cache in ("prefix", "dual"):
        cached = masked(one, PROMPT, length=32, cache=cache, **shared)
        assert (cached.tokens, counts(cached)) == (plain.tokens, counts(plain))
        assert masked(three, PROMPT, length=32, cache=cache, **shared) != masked(three, PROMPT, length=32, **shared)
    assert v2(one, True) == v2(one, False)
    assert {1} < set(counts(v2(one, True)))
    assert v2(three, True) != v2(three, False)


def test_d2f_without_overlap_equals_sdar() -> None:
    """After a prompt of one block both are causal to the blocks before, and write all above a threshold or the best."""
    model, text = tiny_llama(60), prompt(8, MASK)
    blocks = sdar(model, text, block_size=8, threshold=0.2, max_new_tokens=32, **GIVEN)
    pipeline = d2f(model, text, block_size=8, length=32, skip_threshold=0.2, block_add_threshold=1, **GIVEN)
    assert pipeline.tokens == blocks.tokens
    assert pipeline.passes == [written for written in blocks.passes if written]
    assert {1} < set(counts(pipeline))


def test_d2f_cache_changes_no_prediction() -> None:
    """What D2F writes, a pass over the text as it then was predicts: no row is stale."""
    model, text = tiny_llama(60), prompt(8, MASK)
    trace = d2f(model, text, block_size=4, length=24, skip_threshold=0.2, block_add_threshold=0.5, **GIVEN)
    state = text + [MASK] * 24
    for written in trace.passes:
        rows, seen = Rows(model), list[int]()
        for start, end in [(0, 8), *((at, at + 4) for at in range(8, 32, 4))]:
            seen += rows.add(state[start:end], start, seen)
        logits = rows.logits([at for at, _ in written])
        logits[:, MASK] = -torch.inf
        assert logits.argmax(-1).tolist() == [token for _, token in written]
        for at, token in written:
            state[at] = token
    assert state[8:] == trace.tokens
