"""Block verification emits what the target would, and of no block less than verification one by one accepts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest
import scipy
import torch
from support.wording import wording
from torch import Tensor

from specbench.decoding.tree import Proposal, StepResult, TokenTree
from specbench.engine.block_verification import DrawnDrafts, Verdict, accept_block, chances, verify
from specbench.engine.sampler import Stream, drawn, uniforms

Round = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # as accept_block


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def distributions(*shape: int, seed: int, spread: float = 1.5) -> Tensor:
    """float64 [shape], the last dimension of sum 1."""
    return (spread * torch.randn(*shape, generator=generator(seed), dtype=torch.float64)).softmax(-1)


def every_block(vocab: int, drafts: int) -> Tensor:
    """int64 [vocab ** drafts, drafts]."""
    return torch.tensor(list(product(range(vocab), repeat=drafts)))


def of_markov(table: Tensor, root: Tensor, tokens: Tensor) -> Tensor:
    """[n, drafts + 1, V]: distributions after the root and after each token, which depend only on the last token."""
    return table[torch.cat([root[:, None], tokens], dim=1)]


# ------------------------------------------------------------------ the algorithm, as the paper writes it


def by_the_paper(
    p: Sequence[Sequence[float]], q: Sequence[Sequence[float]], tokens: Sequence[int], numbers: Sequence[float]
) -> tuple[int, int]:
    """Algorithm 2, a draft after the other, with plain numbers."""
    gamma, accepted = len(tokens), 0
    joint = [1.0]
    for i, token in enumerate(tokens, 1):
        ratio = p[i - 1][token] / q[i - 1][token]
        joint.append(min(joint[-1] * ratio, 1.0))
        if i < gamma:
            surplus = sum(max(joint[i] * mine - its, 0.0) for mine, its in zip(p[i], q[i], strict=True))
            h = 1.0 if joint[i] == 1.0 else surplus / (surplus + 1.0 - joint[i])
        else:
            h = joint[i]
        if numbers[i - 1] <= h:
            accepted = i
    weights = list(p[gamma])
    if accepted < gamma:
        here = joint[accepted]
        weights = [max(here * mine - its, 0.0) for mine, its in zip(p[accepted], q[accepted], strict=True)]
    mark, total = numbers[gamma] * sum(weights), 0.0
    for token, weight in enumerate(weights):
        total += weight
        if total > mark:
            return accepted, token
    raise AssertionError("no weight")


def test_it_is_the_papers_algorithm() -> None:
    rng, seen = random.Random(0), set()
    for case in range(1000):
        gamma, vocab = rng.randrange(1, 7), rng.randrange(2, 9)
        p, q = distributions(2, gamma + 1, vocab, seed=case, spread=rng.choice([0.3, 1.0, 3.0]))
        for rows in (p, q):
            if rng.random() < 0.4:  # a filter
                rows[rows < 0.5 / vocab] = 0
                rows /= rows.sum(-1, keepdim=True)
        if rng.random() < 0.1:
            q = p.clone()
        q = q[:gamma]
        tokens = torch.multinomial(q, 1, generator=generator(case))[:, 0]
        numbers = torch.rand(gamma + 1, generator=generator(case), dtype=torch.float64)
        found = tuple(map(int, accept_block(p, q, tokens, numbers)))
        assert found == by_the_paper(p.tolist(), q.tolist(), tokens.tolist(), numbers.tolist()), case
        seen.add((gamma, found[0]))
    assert seen == {(gamma, accepted) for gamma in range(1, 7) for accepted in range(gamma + 1)}


# ------------------------------------------------------------------ what is emitted, exactly


def emitted(p: Tensor, q: Tensor, root: int, drafts: int) -> Tensor:
    """Joint distribution [V, …] of the ``drafts + 1`` tokens after a root, over all blocks and all their ends."""
    vocab = len(p)
    tokens = every_block(vocab, drafts)
    roots = torch.full_like(tokens[:, 0], root)
    mine, its = of_markov(p, roots, tokens), of_markov(q, roots, tokens)[:, :-1]
    chance = its.gather(-1, tokens[..., None])[..., 0].prod(-1)
    h, left = chances(mine, its, tokens)
    h[:, 0] = 1  # no draft is always accepted
    bonus = left / left.sum(-1, keepdim=True).clamp(min=1e-300)  # zeros where no block can end
    joint = torch.zeros(*[vocab] * (drafts + 1), dtype=torch.float64)
    for accepted in range(drafts + 1):
        ends = chance * h[:, accepted] * (1 - h[:, accepted + 1 :]).prod(-1)
        share = ends[:, None] * bonus[:, accepted]  # [blocks, Y]
        for _ in range(drafts - accepted):
            share = share[..., None] * p.expand(*share.shape, vocab)
        # Blocks that begin alike are one text as far as they are accepted.
        share = share.view(vocab**accepted, -1, *share.shape[1:]).sum(1)
        joint += share.view(joint.shape)
    return joint


def plain(p: Tensor, root: int, tokens: int) -> Tensor:
    joint = p[root]
    for _ in range(tokens - 1):
        joint = joint[..., None] * p.expand(*joint.shape, len(p))
    return joint


def test_over_all_blocks_and_all_ends_the_text_is_distributed_as_the_targets() -> None:
    for seed, (vocab, drafts) in enumerate([(2, 1), (5, 1), (3, 2), (2, 4), (4, 3), (3, 4)] * 4):
        p, q = distributions(2, vocab, vocab, seed=seed, spread=0.5 + seed % 3)
        if seed % 4 == 1:  # tokens that one of them never says
            p[:, 0], q[:, -1] = 0, 0
            p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
        found = emitted(p, q, 0, drafts)
        torch.testing.assert_close(found, plain(p, 0, drafts + 1), atol=1e-14, rtol=0)


# ------------------------------------------------------------------ what is emitted, drawn


def chain_of_rounds(p: Tensor, q: Tensor, drafts: int, samples: int, rule: Round, again: bool = False) -> Tensor:
    """The first three tokens [samples, 3] of ``samples`` texts after root 0, in rounds of drafting and verifying."""
    numbers = torch.rand(2, samples, 3 * (drafts + 2), generator=generator(5), dtype=torch.float64)
    text = torch.zeros(samples, 4 + drafts, dtype=torch.int64)
    length = torch.ones(samples, dtype=torch.int64)
    every = torch.arange(samples)
    for number in range(3):
        root = text[every, length.clamp(max=3) - 1]
        start = (length.clamp(max=3) - 1) if again else torch.full_like(length, number * (drafts + 2))
        at = start[:, None] + torch.arange(drafts + 2)
        to_draft, to_verify = (some.gather(1, at) for some in numbers)
        tokens = torch.empty(samples, drafts, dtype=torch.int64)
        last = root
        for place in range(drafts):
            tokens[:, place] = last = drawn(q[last], to_draft[:, place])
        mine, its = of_markov(p, root, tokens), of_markov(q, root, tokens)[:, :-1]
        # The last number, which samples Y, belongs to the position after the block.
        accepted, bonus = rule(mine, its, tokens, to_verify[:, : drafts + 1])
        new = torch.cat([tokens, bonus[:, None]], dim=1).scatter_(1, accepted[:, None], bonus[:, None])
        for place in range(drafts + 1):
            here = (place <= accepted) & (length + place < 4)
            text[every[here], (length + place)[here]] = new[here, place]
        length = length + accepted + 1
    return text[:, 1:4]


def p_value(found: Tensor, expected: Tensor) -> float:
    """Of the hypothesis that the texts [n, 3] are drawn from ``expected`` [V, V, V]; rare ones are one."""
    vocab = len(expected)
    counts = torch.bincount((found * torch.tensor([vocab**2, vocab, 1])).sum(1), minlength=vocab**3).numpy()
    share = expected.flatten().numpy() * len(found)
    order = np.argsort(share)
    rare = int((share < 5).sum())
    counts, share = counts[order], share[order]
    counts, share = np.append(counts[rare:], counts[:rare].sum()), np.append(share[rare:], share[:rare].sum())
    if not rare:
        counts, share = counts[:-1], share[:-1]
    return float(scipy.stats.chisquare(counts, share * counts.sum() / share.sum()).pvalue)


SAMPLES, MARKOV = 100_000, distributions(2, 6, 6, seed=3)


@pytest.mark.parametrize("drafts", [1, 3])
def test_a_hundred_thousand_texts_are_distributed_as_the_targets(
    drafts: int, record_testsuite_property: Callable[[str, object], None]
) -> None:
    p, q = MARKOV
    found = p_value(chain_of_rounds(p, q, drafts, SAMPLES, accept_block), plain(p, 0, 3))
    record_testsuite_property(f"texts by blocks of {drafts}, p-value", found)
    assert found > 0.01


def test_numbers_of_a_position_that_the_next_block_uses_again_are_noticed() -> None:
    """Why noise keyed by (seed, position) is wrong: drafts after the end of a block influenced where it ends."""
    p, q = MARKOV
    assert p_value(chain_of_rounds(p, q, 3, SAMPLES, accept_block, again=True), plain(p, 0, 3)) < 1e-6


# ------------------------------------------------------------------ how much is accepted


def accepted_on_average(p: Tensor, q: Tensor, drafts: int) -> tuple[float, float]:
    """Expected number of accepted drafts, as blocks and one by one, summed over all blocks after root 0."""
    tokens = every_block(len(p), drafts)
    roots = torch.zeros_like(tokens[:, 0])
    mine, its = of_markov(p, roots, tokens), of_markov(q, roots, tokens)[:, :-1]
    its_own = its.gather(-1, tokens[..., None])[..., 0]
    chance = its_own.prod(-1)
    h, _ = chances(mine, its, tokens)
    none_after = (1 - h[:, 1:]).flip(-1).cumprod(-1)  # of the last one, the last two, …
    alone = (mine[:, :-1].gather(-1, tokens[..., None])[..., 0] / its_own).clamp(max=1).cumprod(-1)
    return float(chance @ (1 - none_after).sum(-1)), float(chance @ alone.sum(-1))


def test_of_no_pair_less_is_accepted_than_one_by_one_and_of_most_more() -> None:
    more = 0
    for seed in range(200):
        p, q = distributions(2, 4, 4, seed=seed)
        by_block, one_by_one = accepted_on_average(p, q, 1 + seed % 4)
        assert by_block >= one_by_one - 1e-12, seed
        more += by_block > one_by_one + 1e-6
        if seed % 4 == 0:  # of a single draft the rules are one
            assert by_block == pytest.approx(one_by_one, abs=1e-12)
    assert more > 140  # of 150


def test_the_papers_example() -> None:
    """Section 2: p = (1/3, 2/3), q = (2/3, 1/3) at every place, two drafts: 11/9 accepted of a block, else 10/9."""
    p, q = torch.tensor([[[1, 2]] * 2, [[2, 1]] * 2], dtype=torch.float64) / 3
    assert accepted_on_average(p, q, 2) == pytest.approx((11 / 9, 10 / 9))


# ------------------------------------------------------------------ the edges of numbers


def test_nothing_divides_by_zero() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.2, 0.3, 0.5]])
    whole = torch.full((3,), 1 - 2.0**-40, dtype=torch.float64)
    tiny = torch.full((3,), 2.0**-64, dtype=torch.float64)
    cases = {
        "equal, and every number against it": (p[:2].clone(), [1, 1], whole, (2, 2)),
        "a draft that the target never says": (torch.tensor([[0.5, 0.0, 0.5], [0.0, 1, 0]]), [2, 1], tiny, (0, 1)),
        "a draft that cannot have been sampled": (torch.tensor([[1.0, 0, 0], [0, 1, 0]]), [1, 1], tiny, (0, 1)),
        "nothing drafted after the first": (torch.stack([p[0], torch.zeros(3)]), [1, 0], tiny, (1, 1)),
        "nothing drafted": (torch.zeros(2, 3), [0, 0], tiny, (0, 0)),
    }
    for name, (q, tokens, numbers, expected) in cases.items():
        found = accept_block(p, q, torch.tensor(tokens), numbers)
        assert tuple(map(int, found)) == expected, name
        assert all(part.isfinite().all() for part in chances(p, q, torch.tensor(tokens))), name
    accepted, token = accept_block(p[:1], p[:0], torch.empty(0, dtype=torch.int64), whole[:1])
    assert (int(accepted), int(token)) == (0, 1), "a root alone"


def test_distributions_that_differ_by_rounding_are_one() -> None:
    logits = 3 * torch.randn(64, 9, 500, generator=generator(1))
    p, q = logits.softmax(-1), (logits[:, :8].double().softmax(-1)).float()
    assert not torch.equal(p[:, :8], q)
    tokens = drawn(q, torch.rand(64, 8, generator=generator(2), dtype=torch.float64))
    accepted, _ = accept_block(p, q, tokens, torch.rand(64, 9, generator=generator(3), dtype=torch.float64))
    assert accepted.tolist() == [8] * 64


def test_a_block_is_verified_alike_alone_and_among_others() -> None:
    p, q = distributions(2, 30, 5, 7, seed=4).float()
    q = q[:, :4]
    tokens = drawn(q, torch.rand(30, 4, generator=generator(2), dtype=torch.float64))
    numbers = torch.rand(30, 5, generator=generator(3), dtype=torch.float64)
    together = torch.stack(accept_block(p, q, tokens, numbers), dim=1)
    alone = [torch.stack(accept_block(*parts)) for parts in zip(p, q, tokens, numbers, strict=True)]
    assert torch.equal(together, torch.stack(alone))


# ------------------------------------------------------------------ trees and slots


def test_chains_of_unlike_lengths_and_columns_get_the_verdicts_of_the_rule() -> None:
    vocab, seed = 9, 7
    rng = random.Random(1)
    trees, rows, starts, expected = {}, {}, {}, {}
    for slot, (drafts, columns) in enumerate([(3, 9), (1, 9), (3, 6), (0, 9), (5, 9), (3, 4)]):
        p, q = distributions(2, drafts + 1, vocab, seed=slot).float()
        ids = torch.tensor(sorted(rng.sample(range(vocab), columns))) if columns == 4 else None
        q = q[:drafts, :columns] / q[:drafts, :columns].sum(-1, keepdim=True)
        at = torch.arange(columns) if ids is None else ids
        tokens = at[drawn(q, torch.rand(drafts, generator=generator(slot), dtype=torch.float64))]
        trees[slot] = TokenTree.chain([5, *tokens.tolist()], proposal=Proposal(q, ids))
        rows[slot], starts[slot] = p, 10 * slot
        over_all = torch.zeros(drafts, vocab)
        over_all[:, at] = q
        numbers = uniforms(seed, Stream.VERIFY, [10 * slot], drafts + 1)[0]
        expected[slot] = Verdict(*map(int, accept_block(p, over_all, tokens, numbers)))
    assert verify(trees, rows, starts, seed) == expected
    with pytest.raises(ValueError, check=wording):
        verify({1: trees[1]}, {1: rows[1][:, :8]}, starts, seed)


def results(rows: Tensor) -> dict[int, StepResult]:
    """Results of a draft model after two rows of each slot, of which the last row counts."""
    wrong = torch.zeros_like(rows[0])
    return {slot: StepResult([0], [0], [0], probabilities=torch.stack([wrong, row])) for slot, row in enumerate(rows)}


def test_drafts_are_drawn_from_what_is_handed_on() -> None:
    slots, seeds = 300, 10
    q = distributions(3, 8, seed=2).float()
    rows = results(q.repeat(slots // 3, 1))  # each draws from one of three
    counts = torch.zeros(2, 3, 8)
    for seed in range(seeds):
        drafts = DrawnDrafts({slot: slot for slot in range(slots)}, 2, 8, seed, q.device)
        for place in range(2):
            for slot, token in drafts.draw(rows).items():
                counts[place, slot % 3, token] += 1
    torch.testing.assert_close(drafts.proposal(1).probabilities, q[1].expand(2, -1))
    for place, which in product(range(2), range(3)):
        expected = q[which].double() * slots / 3 * seeds
        assert scipy.stats.chisquare(counts[place, which], expected, sum_check=False).pvalue > 0.001


def test_drafts_and_verdicts_go_by_numbers_of_their_own_for_each_block() -> None:
    q, starts = distributions(4, 3, 50, seed=6).float(), {0: 6, 1: 9, 2: 6}
    drafts = DrawnDrafts(starts, 4, 50, 11, q.device)
    found = torch.tensor([list(drafts.draw(results(rows)).values()) for rows in q]).T
    numbers = {stream: uniforms(11, stream, [6, 9, 6], 4) for stream in Stream}
    assert torch.equal(found, drawn(q.transpose(0, 1), numbers[Stream.DRAFT]))
    assert not torch.equal(found, drawn(q.transpose(0, 1), numbers[Stream.VERIFY]))


def test_a_draft_model_of_more_tokens_drafts_none_that_the_target_lacks() -> None:
    q = distributions(2, 12, seed=2).float()
    q[1, :8], q[1, 8:] = 0, 0.25  # this one wants nothing else
    drafts = DrawnDrafts({0: 3, 1: 40}, 1, 8, 0, q.device)
    tokens = drafts.draw(results(q))
    handed = [drafts.proposal(slot).probabilities[0] for slot in (0, 1)]
    torch.testing.assert_close(handed[0], q[0, :8] / q[0, :8].sum())
    assert handed[1].tolist() == [0] * 8
    assert max(tokens.values()) < 8
    p = distributions(2, 2, 8, seed=3).float()
    trees = {slot: TokenTree.chain([1, tokens[slot]], proposal=drafts.proposal(slot)) for slot in (0, 1)}
    assert verify(trees, dict(enumerate(p)), {0: 3, 1: 40}, 0)[1].accepted == 0, "what was not drawn is not accepted"


def test_rounding_cannot_draw_a_token_of_no_weight() -> None:
    """If the distributions are equal, the weights after a block are those of the target, not zeros."""
    p = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    q = torch.tensor([[0.5, 0.75]])  # above p everywhere: sums to more than 1, as rounding can
    numbers = torch.tensor([1 - 1e-9, 0.1], dtype=torch.float64)
    assert chances(p, q, torch.tensor([0]))[1][0].tolist() == [0, 0]
    assert list(map(int, accept_block(p, q, torch.tensor([0]), numbers))) == [0, 0]
