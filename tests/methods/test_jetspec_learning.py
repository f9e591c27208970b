"""The parts of a head's training, each against the same in plain words."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from support.decoders import head, together
from support.models import layer_outputs, supported, tiny_llama
from torch import Tensor

from specbench.heads.block_config import BlockHeadConfig
from specbench.heads.block_head import BlockHead
from specbench.methods.jetspec.learning.lesson import Lesson
from specbench.training.block_heads.block_attention import BlockAttention
from specbench.training.block_heads.blocks import blocks_at, every_block, sample_blocks
from specbench.training.block_heads.initial_weights import start_from_target
from specbench.training.objectives import scored_rows
from specbench.training.objectives.scored_kl import scored_kl
from specbench.training.objectives.teacher import Teacher

STARTS, ENDS = torch.tensor([3, 5, 4]), torch.tensor([12, 6, 9])  # answers of 9, of 1 (no anchor) and of 5 tokens


# ------------------------------------------------------------------ blocks


def test_anchors_are_those_of_the_answer_that_have_a_next_token() -> None:
    torch.manual_seed(0)
    blocks = sample_blocks(STARTS, ENDS, 100, 4, 3)
    found = [sorted(row[used].tolist()) for row, used in zip(blocks.anchors, blocks.used, strict=True)]
    assert found == [list(range(3, 11)), [], list(range(4, 8))]
    assert every_block(3, 6, 4, 3, torch.device("cpu")).anchors.tolist() == [[3, 4]]
    assert every_block(3, 4, 4, 3, torch.device("cpu")).anchors.shape == (1, 0)


def test_fewer_anchors_are_drawn_evenly_and_none_twice() -> None:
    torch.manual_seed(0)
    counts = torch.zeros(12)
    for _ in range(2000):
        row = sample_blocks(STARTS[:1], ENDS[:1], 3, 4, 3).anchors[0].tolist()
        assert len(set(row)) == 3
        counts[row] += 1
    assert counts[:3].sum() + counts[11] == 0
    assert (counts[3:11] / 2000 - 3 / 8).abs().max() < 0.05


def test_rows_whose_token_is_after_the_text_learn_nothing() -> None:
    blocks = blocks_at(torch.tensor([[3, 10, 0]]), torch.tensor([[True, True, False]]), torch.tensor([12]), 4, 3)
    assert blocks.positions.tolist() == [[3, 4, 5, 6, 10, 11, 12, 13, 0, 1, 2, 3]]
    assert blocks.learns.tolist() == [[[True] * 3, [True, False, False], [False] * 3]]


# ------------------------------------------------------------------ sight


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_two_ways_of_attention_are_the_one_rule(causal: bool) -> None:
    torch.manual_seed(1)
    blocks = sample_blocks(STARTS[[0, 2]], ENDS[[0, 2]], 5, 4, 3)
    heads, groups, size, length = 4, 2, 16, 12
    queries = blocks.positions.shape[1]
    query = torch.randn(2, heads, queries, size)
    keys, values = torch.randn(2, 2, groups, length, size)
    key, value = torch.randn(2, 2, groups, queries, size)

    def sees(text: int, q: int, k: int) -> bool:
        """Row q: the text before its block's anchor, and its own block, where it is causal up to itself."""
        own = k >= length and (k - length) // 4 == q // 4
        return bool(k < blocks.anchors[text, q // 4]) or (own and (not causal or k - length <= q))

    seen = torch.tensor(
        [[[sees(text, q, k) for k in range(length + queries)] for q in range(queries)] for text in range(2)]
    )
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, torch.cat([keys, key], 2), torch.cat([values, value], 2), seen[:, None], scale=0.3, enable_gqa=True
    )
    for flex in (False, True):
        sight = BlockAttention(blocks, length, 4, causal, flex=flex)
        torch.testing.assert_close(sight(query, keys, values, key, value, 0.3), expected, rtol=1e-5, atol=1e-5)
    at = torch.arange
    ruled = sight.sees(at(2)[:, None, None], torch.tensor(0), at(queries)[:, None], at(length + queries))
    assert ruled.equal(seen)


# ------------------------------------------------------------------ loss


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(("bias", "chunk"), [(True, 1), (False, 40), (True, 1 << 20)])
def test_forward_kl_and_its_gradients_are_autograds(
    bias: bool, chunk: int, trained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scored_rows, "_CPU_SCORES", chunk)
    torch.manual_seed(2)
    weight, own = torch.randn(13, 6, requires_grad=trained), torch.randn(13) if bias else None
    teacher = (2 * torch.randn(5, 13)).log_softmax(-1)
    rows, shares = torch.tensor([0, 4, 4, 2, 1, 3, 0]), torch.rand(7)
    states = torch.randn(7, 6, requires_grad=True)
    plain, plain_weight = states.detach().clone().requires_grad_(), weight.detach().clone().requires_grad_()

    loss, each, agrees = scored_kl(states, weight, own, teacher, rows, shares)
    (3 * loss).backward()
    scores = torch.nn.functional.linear(plain, plain_weight, own)
    log_scores = scores.log_softmax(-1)
    wanted = torch.nn.functional.kl_div(log_scores, teacher[rows], reduction="none", log_target=True).sum(-1)
    (3 * (wanted * shares).sum()).backward()

    torch.testing.assert_close(each, wanted.detach())
    torch.testing.assert_close(loss, (wanted * shares).sum())
    torch.testing.assert_close(states.grad, plain.grad)
    if trained:
        torch.testing.assert_close(weight.grad, plain_weight.grad)
    else:
        assert weight.grad is None
    assert agrees.equal(scores.argmax(-1) == teacher[rows].argmax(-1))


# ------------------------------------------------------------------ teacher and lesson


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "gpt2"])
def test_features_are_the_tapped_layers_and_states_make_the_logits(family: str) -> None:
    model = supported(family)
    ids = torch.arange(1, 11)[None]
    layers = layer_outputs(model, ids)
    taps = (1, 0) if len(layers) > 2 else (0, 0)  # transformers normalises the last one's
    features, states = Teacher(model, taps)(ids)
    torch.testing.assert_close(features, torch.cat([layers[at] for at in taps], -1))
    with torch.inference_mode():
        torch.testing.assert_close(model.get_output_embeddings()(states), model(ids).logits)


def double() -> Any:
    """A target in float64 with the sizes of :func:`heads.head`."""
    return tiny_llama(50, hidden_size=24, num_attention_heads=4, head_dim=8, num_hidden_layers=12).double()


@pytest.mark.parametrize(("causal", "flex"), [(True, False), (False, False), (True, True)])
def test_every_block_is_the_head_on_the_text_before_its_anchor(causal: bool, flex: bool) -> None:
    model, made = double(), head(causal)
    if flex:  # which takes float64 nowhere
        model, made = model.float(), made.float()
    lesson = Lesson(made, model, anchors=4, flex=flex)
    ids = torch.randint(0, 50, (2, 11), generator=torch.Generator().manual_seed(4))
    features, _ = lesson.frozen.teach(ids, torch.tensor([ids.shape[1]] * len(ids)))
    used = torch.tensor([[True] * 3, [True, True, False]])
    blocks = blocks_at(torch.tensor([[3, 1, 9], [5, 6, 0]]), used, torch.tensor([11, 8]), 6, 5)
    with torch.no_grad():
        found = lesson.states(features, ids, blocks)
        for text, number in blocks.used.nonzero().tolist():
            anchor = int(blocks.anchors[text, number])
            block = torch.tensor([int(ids[text, anchor])] + [made.config.mask_token_id] * 5)
            expected = together(made, features[text, :anchor], model.get_input_embeddings()(block), causal)
            tolerance = 1e-4 if flex else 1e-9
            torch.testing.assert_close(found[text, number], expected, rtol=tolerance, atol=tolerance)


def test_a_step_learns_from_the_targets_own_distribution() -> None:
    """The loss of one step, row by row, from the target's logits at the token before each foreseen one."""
    model, made = double(), head()
    ids, starts, ends = torch.arange(20).view(2, 10) % 50, torch.tensor([3, 2]), torch.tensor([10, 7])
    lesson = Lesson(made, model, anchors=3, gamma=2.0)
    torch.manual_seed(5)
    found = lesson(ids, starts, ends)
    torch.manual_seed(5)
    blocks = sample_blocks(starts, ends, 3, 6, 5)
    total, weights, rows = torch.tensor(0.0, dtype=torch.float64), 0.0, 0
    with torch.no_grad():
        features, _ = lesson.frozen.teach(ids, torch.tensor([ids.shape[1]] * len(ids)))
        logits = model(ids).logits
        hidden = lesson.states(features, ids, blocks)
        scores = model.get_output_embeddings()(hidden).float().log_softmax(-1)
        for (text, number), k in product(blocks.used.nonzero().tolist(), range(1, 6)):
            at = int(blocks.anchors[text, number]) + k
            if at < ends[text]:
                target = logits[text, at - 1].float().log_softmax(-1)
                weight = math.exp(-(k - 1) / 2.0)
                total += weight * (target.exp() * (target - scores[text, number, k])).sum()
                weights, rows = weights + weight, rows + 1
    assert int(found["rows"]) == rows
    torch.testing.assert_close(found["loss"].double(), total / weights, rtol=1e-5, atol=1e-6)
    found["loss"].backward()
    gradients: list[Tensor] = [p.grad for p in made.parameters() if p.grad is not None]
    assert len(gradients) == len(list(made.parameters()))
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
    assert not [name for name, _ in lesson.named_parameters() if not name.startswith("head.")]


def test_what_fills_a_batch_up_changes_nothing() -> None:
    lesson = Lesson(head(), double(), anchors=99)
    ids = torch.arange(1, 10)[None]
    filled = torch.cat([ids, torch.full((1, 6), 7)], 1)
    one, other = (lesson(each, torch.tensor([3]), torch.tensor([9]))["loss"] for each in (ids, filled))
    torch.testing.assert_close(one, other)


# ------------------------------------------------------------------ first weights


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_a_head_begins_as_the_targets_last_layers(family: str) -> None:
    model = supported(family)
    made = BlockHead.random(BlockHeadConfig.for_target(model.config, mask_token_id=5, layers=2, block_size=4))
    copied = start_from_target(made, model, torch.arange(1, 20)[None])
    with torch.no_grad():
        features = torch.randn(1, 3, len(made.config.taps) * made.config.hidden_size)
        assert made.fc(features).equal(features[..., -made.config.hidden_size :])
    if family == "gpt2":  # whose layers have other names
        assert copied < made.config.hidden_size * 4
        return
    layers = model.base_model.layers[-2:]
    mine: list[Any] = list(made.layers)
    for own, theirs in zip(mine, layers, strict=True):
        assert own.mlp.down_proj.weight.equal(theirs.mlp.down_proj.weight)
        assert own.self_attn.k_proj.weight.equal(theirs.self_attn.k_proj.weight)
    assert made.norm.weight.equal(model.base_model.norm.weight)
    found = mine[0].self_attn.q_norm.weight.detach()
    if family == "qwen3":
        assert found.equal(layers[0].self_attn.q_norm.weight)
    else:
        assert 0 < float(found[0]) != 1
