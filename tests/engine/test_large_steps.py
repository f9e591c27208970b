"""Steps of more rows than are captured: the same answers, eager where others are replayed, logits a chunk at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.models import SUPPORTED, attached, autoregressive, prompt, supported

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.decoding.tree import TokenTree
from specbench.engine import graphs, program
from specbench.engine.sampler import Sampling

WIDE = 700


def wide(root: int, answer: list[int], vocab: int) -> TokenTree:
    """A chain of the right tokens whose rows are far apart: between them are wrong siblings."""
    tokens, parents, last = [root], [-1], 0
    for token in answer:
        for wrong in range(1, 1 + WIDE // len(answer)):
            tokens.append((token + wrong) % vocab)
            parents.append(last)
        tokens.append(token)
        parents.append(last)
        last = len(tokens) - 1
    return TokenTree(tokens, parents)


@pytest.mark.parametrize("graphs_", [False, True], ids=["eager", "captured"])
def test_a_tree_of_more_rows_than_the_largest_bucket(graphs_: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "cuda_capture", recorded_capture)
    model, ids = supported("llama"), prompt(9, 97)
    sampling = Sampling() if graphs_ else Sampling(0.9, seed=3)  # noise on a CPU reads positions on the host
    seen: list[int] = []
    with attached(model, capacity=40, max_rows=1000, sampling=sampling, graphs=graphs_) as engine:
        answer = autoregressive(engine, ids, 8)
        slot = engine.alloc()
        root = engine.prefill(slot, ids).emitted[-1]
        tree = wide(root, answer[1:6], 97)
        assert len(tree) > WIDE
        hook = model.lm_head.register_forward_hook(lambda *given: seen.append(given[-1].shape[1]))
        try:
            result = engine.step({slot: tree}, top_k=2)[slot]
        finally:
            hook.remove()
        assert result.emitted == answer[1:7]
        assert result.top is not None
        assert result.top[1][:, 0].tolist() == result.next_tokens
        following = engine.step({slot: TokenTree.chain([answer[6]])})[slot].emitted
    assert following == answer[7:8], "what was committed is what was accepted"
    assert seen == [512, len(tree) - 512]


@pytest.mark.parametrize("family", [*SUPPORTED, "gemma4"])
def test_logits_in_chunks_are_those_of_all_rows(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a family does between its layers and its logits: scales, caps, an embedding that is the head."""
    model = supported(family)
    vocab = model.get_input_embeddings().num_embeddings
    found: list[Any] = []
    for rows in (512, 3):
        monkeypatch.setattr(program, "_LOGIT_ROWS", rows)
        with attached(model, capacity=40, max_rows=8) as engine:
            slot = engine.alloc()
            tree = TokenTree([1, 2, 3, 4, 5, 6, 7, 8], [-1, 0, 0, 1, 2, 2, 3, 6])
            found.append([engine.prefill(slot, [*prompt(5, vocab), 1], tree, top_k=3, taps=(0, 1))])
            found[-1].append(engine.step({slot: tree}, top_k=3, taps=(0, 1))[slot])
    for one, chunks in zip(*found, strict=True):
        assert (one.emitted, one.next_tokens) == (chunks.emitted, chunks.next_tokens)
        torch.testing.assert_close(one.top, chunks.top)
        torch.testing.assert_close(one.hidden, chunks.hidden)
