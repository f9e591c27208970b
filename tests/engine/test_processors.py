"""Every row of a tree is processed after its own text: penalties, min-p, logit bias and grammars."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.decoders import hiding_tree
from support.models import attached, autoregressive, byte_tokenizer, prompt, tiny_llama

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.common.errors import UsageError
from specbench.decoding import Proposal
from specbench.decoding.tree import TokenTree
from specbench.engine import graphs, sampler
from specbench.engine.engine import Engine
from specbench.engine.logits import grammar as grammars
from specbench.engine.logits.grammar import Grammar
from specbench.engine.logits.processors import TextRows, processed
from specbench.engine.sampler import Sampling, gumbel

llguidance = pytest.importorskip("llguidance")

END, VOCAB, TOKENS = 0, 258, 40  # those of the byte tokenizer
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "s": {"enum": ["red", "green"]}, "l": {"type": "array", "maxItems": 2}},
    "required": ["n", "s"],
    "additionalProperties": False,
}
PENALTIES: dict[str, Any] = {"repetition_penalty": 1.7, "presence_penalty": 0.9, "frequency_penalty": 0.6}
BIAS = ((3, 2.5), (14, -100.0), (7, 0.25))


@pytest.fixture(scope="module")
def grammar() -> Grammar:
    from llguidance.hf import from_tokenizer

    tokens = from_tokenizer(byte_tokenizer(), n_vocab=VOCAB, eos_token=[END])
    return Grammar(llguidance.LLMatcher.grammar_from_json_schema(SCHEMA), tokens, [END])


@pytest.fixture(params=["penalties", "sampled", "grammar", "all"])
def sampling(request: pytest.FixtureRequest, grammar: Grammar) -> Sampling:
    return {
        "penalties": Sampling(**PENALTIES),
        "sampled": Sampling(0.9, top_k=40, top_p=0.95, seed=5, min_p=0.02, logit_bias=BIAS, **PENALTIES),
        "grammar": Sampling(1.3, seed=2, grammar=grammar),
        "all": Sampling(1.5, seed=4, min_p=0.01, grammar=grammar, logit_bias=BIAS, **PENALTIES),
    }[request.param]


# ------------------------------------------------------------------ the oracle: one text at a time, in numpy


def by_vllm(logits: npt.NDArray[np.float64], text: Sequence[int], output: Sequence[int], how: Sampling) -> Any:
    """One row's logits, as vLLM's sampler computes them up to min-p, from the whole text before it."""
    found = logits.astype(np.float64).copy()
    if how.grammar is not None:
        found[[not ok for ok in by_a_new_matcher(how.grammar, output)]] = -np.inf
    for token, value in how.logit_bias:
        found[token] += value
    for token in set(text):
        found[token] = (
            found[token] / how.repetition_penalty if found[token] > 0 else found[token] * how.repetition_penalty
        )
    for token in set(output):
        found[token] -= how.frequency_penalty * list(output).count(token)
        found[token] -= how.presence_penalty
    if how.min_p and how.temperature:
        weights = np.exp((found - found.max()) / how.temperature)
        found[weights < how.min_p] = -np.inf
    return found


def by_a_new_matcher(grammar: Grammar, output: Sequence[int]) -> list[bool]:
    """Tokens that may follow an output, from a matcher that reads it alone; all where it breaks the grammar."""
    matcher = llguidance.LLMatcher(grammar._tokens, grammar._source, log_level=0)
    text = list(output[: output.index(END)] if END in output else output)
    if matcher.try_consume_tokens(text) < len(text) or (END in output and not matcher.is_accepting()):
        return [True] * VOCAB
    if END in output:
        return [token == END if set(output[len(text) :]) == {END} else True for token in range(VOCAB)]
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    return [bool(bit) for bit in bits[:VOCAB]]


def path_to(tree: TokenTree, row: int) -> list[int]:
    tokens: list[int] = []
    while row >= 0:
        tokens.insert(0, tree.tokens[row])
        row = tree.parents[row]
    return tokens


WRITTEN = byte_tokenizer()('{"n": 12, "s": "red"}')["input_ids"]


@pytest.mark.parametrize("seed", range(6))
def test_tree_rows_get_the_formulas_of_their_path(seed: int, sampling: Sampling) -> None:
    rng = random.Random(seed)
    ask, said = prompt(rng.randrange(1, 9), VOCAB, seed), WRITTEN[: rng.randrange(len(WRITTEN))]
    # A root that is the last token of the prompt, as in a prefill; or one of the output.
    texts = []
    logits, first = torch.randn(1, 60, VOCAB, generator=torch.Generator().manual_seed(seed)) * 4, 2
    for slot, rows in enumerate((9, 14)):
        whole, known = ([*ask, *said], len(ask)) if slot else (ask, len(ask))
        following = [*WRITTEN[len(whole) - len(ask) :], END, END, 5]
        tree = hiding_tree(rng, whole[-1], following[: rng.randrange(7)], VOCAB, rows)
        texts.append(TextRows(slot, first, tree, whole[:-1], known, sampling.grammar))
        first += len(tree) + 3
    expected = logits.clone()
    for each in texts:
        for row in range(len(each.tree)):
            text = [*each.text, *path_to(each.tree, row)]
            values = by_vllm(logits[0, each.first + row].numpy(), text, text[each.prompt :], sampling)
            expected[0, each.first + row] = torch.from_numpy(values)
    for start, end in ((0, 60), (5, 17)):  # all rows, and a chunk that cuts both trees
        found = processed(logits[:, start:end].clone(), sampling, texts, start)
        for each in texts:
            begin, stop = max(each.first, start), min(each.first + len(each.tree), end)
            mine = found[0, begin - start : stop - start]
            torch.testing.assert_close(mine, expected[0, begin:stop], rtol=1e-5, atol=1e-4)


def test_answers_are_those_of_plain_forwards(sampling: Sampling) -> None:
    model, ids = tiny_llama(VOCAB), prompt(9, VOCAB)
    with attached(model, capacity=80, max_rows=8, sampling=sampling) as engine:
        found = autoregressive(engine, ids, TOKENS)
        text = list(ids)
        with engine.detached(), torch.inference_mode():
            for _ in range(TOKENS):
                logits = model(torch.tensor([text])).logits[0, -1].numpy()
                scores = torch.from_numpy(by_vllm(logits, text, text[len(ids) :], sampling))
                if sampling.temperature:
                    scores = _sampled(scores / sampling.temperature, len(text), sampling)
                text.append(int(scores.argmax()))
    assert found == text[len(ids) :]


def _sampled(scores: torch.Tensor, position: int, how: Sampling) -> torch.Tensor:
    """Scores with noise after top-k and top-p as transformers has them."""
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    kept = scores[None]
    if how.top_k:
        kept = TopKLogitsWarper(how.top_k)(None, kept)
    if how.top_p < 1:
        kept = TopPLogitsWarper(how.top_p)(None, kept)
    return kept[0] + gumbel(torch.tensor([[how.seed]]), torch.tensor([[position]]), len(scores))[0, 0]


def test_forbidden_tokens_stay_forbidden(grammar: Grammar) -> None:
    sampling = Sampling(grammar=grammar, repetition_penalty=0.01)
    text = TextRows(0, 0, TokenTree.chain([VOCAB - 1]), range(VOCAB - 1), VOCAB, grammar)
    found = processed(-torch.ones(1, 1, VOCAB), sampling, [text])[0, 0]
    allowed = by_a_new_matcher(grammar, [])
    assert not all(allowed)
    assert found.isneginf().tolist() == [not ok for ok in allowed]
    assert not found.isnan().any()


@pytest.mark.parametrize(("lark", "empty"), [("/a/ & /b/", True), ("/a/", False), ("/a?/", False), ('""', False)])
def test_grammars_without_texts_are_empty(grammar: Grammar, lark: str, empty: bool) -> None:
    source = llguidance.LLMatcher.grammar_from_lark(f"start: A\nA: {lark}")
    assert Grammar(source, grammar._tokens, [END]).empty == empty


# ------------------------------------------------------------------ wild drafts, three sequences at a time


def wild(engine: Engine, prompts: Sequence[list[int]], truths: Sequence[list[int]]) -> list[list[int]]:
    """Answers to all prompts, stepped together with trees that hide what comes next."""
    rng, vocab = random.Random(7), engine.model.config.vocab_size
    slots = [engine.alloc() for _ in prompts]
    out = []
    for slot, ids, truth in zip(slots, prompts, truths, strict=True):
        tree = TokenTree.chain([ids[-1], *truth[:2]]) if len(ids) > 5 else None
        out.append(list(engine.prefill(slot, ids, tree).emitted))
    while any(len(each) < TOKENS for each in out):
        trees = {
            slot: hiding_tree(rng, mine[-1], truth[len(mine) : len(mine) + rng.randrange(5)], vocab, rng.randrange(12))
            for slot, mine, truth in zip(slots, out, truths, strict=True)
        }
        for (_, result), mine in zip(sorted(engine.step(trees).items()), out, strict=True):
            mine += result.emitted
    for slot in slots:
        engine.free(slot)
    return [each[:TOKENS] for each in out]


def both(sampling: Sampling) -> tuple[list[list[int]], list[list[int]]]:
    """AR's answers, and those of wild drafts; of few tokens, which return often, where no grammar needs more."""
    vocab = VOCAB if sampling.grammar else 23
    prompts = [prompt(length, vocab, seed) for length, seed in ((5, 1), (1, 2), (23, 3))]
    with attached(tiny_llama(vocab), slots=3, capacity=90, max_rows=32, sampling=sampling) as engine:
        truths = [autoregressive(engine, ids, TOKENS + 8) for ids in prompts]
        return [each[:TOKENS] for each in truths], wild(engine, prompts, truths)


def test_wild_drafts_together_are_ar(sampling: Sampling) -> None:
    expected, found = both(sampling)
    assert found == expected


# The functions of the cached properties, which the faults replace.
TRUE_COUNTS, TRUE_ALLOWED = (vars(TextRows)[name].func for name in ("counts", "allowed"))


def _no_path(self: TextRows) -> Any:
    root = TextRows(self.slot, 0, TokenTree.chain(self.tree.tokens[:1]), self.text, self.prompt)
    words, seen, counts = TRUE_COUNTS(root)
    return words, seen.repeat(len(self.tree), 0), counts.repeat(len(self.tree), 0)


def _neighbour(self: TextRows) -> Any:
    chain = TokenTree.chain(self.tree.tokens)
    return TRUE_COUNTS(TextRows(self.slot, 0, chain, self.text, self.prompt))


def _grammar_of_the_root(self: TextRows) -> Any:
    return TRUE_ALLOWED(self)[:1].repeat(len(self.tree), 0)


def _never_back(self: Any, path: list[Any], depth: int) -> None:
    del path[depth:]


FAULTS: dict[str, tuple[str, Any, Callable[..., Any]]] = {
    "no path": ("penalties", (TextRows, "counts"), _no_path),
    "row before instead of parent": ("penalties", (TextRows, "counts"), _neighbour),
    "the grammar of the root": ("grammar", (TextRows, "allowed"), _grammar_of_the_root),
    "a matcher that is not taken back": ("grammar", (grammars._Walk, "_take_back"), _never_back),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_change_the_text(fault: str, monkeypatch: pytest.MonkeyPatch, grammar: Grammar) -> None:
    kind, (owner, name), wrong = FAULTS[fault]
    patched = wrong if owner is not TextRows else property(wrong)
    monkeypatch.setattr(owner, name, patched)
    sampling = Sampling(**PENALTIES) if kind == "penalties" else Sampling(1.3, seed=2, grammar=_fresh(grammar))
    expected, found = both(sampling)
    assert found != expected


def _fresh(grammar: Grammar) -> Grammar:
    return Grammar(grammar._source, grammar._tokens, [END])


# ------------------------------------------------------------------ texts that the engine keeps


def test_a_second_prompt_begins_a_new_output(sampling: Sampling) -> None:
    ask, more = prompt(6, VOCAB), prompt(4, VOCAB, 9)
    with attached(tiny_llama(VOCAB), slots=2, capacity=90, max_rows=8, sampling=sampling) as engine:
        slot = engine.alloc()
        out = list(engine.prefill(slot, ask).emitted)
        for _ in range(5):
            out += engine.step({slot: TokenTree.chain([out[-1]])})[slot].emitted
        turn = [out[-1], *more]  # the last token of the first answer is not cached yet
        found = list(engine.prefill(slot, turn).emitted)
        for _ in range(5):
            found += engine.step({slot: TokenTree.chain([found[-1]])})[slot].emitted
        assert found == autoregressive(engine, [*ask, *out, *more], 6)


def test_rewound_text_is_forgotten(sampling: Sampling) -> None:
    ask = prompt(6, VOCAB)
    with attached(tiny_llama(VOCAB), capacity=90, max_rows=16, sampling=sampling) as engine:
        slot = engine.alloc()
        out = list(engine.prefill(slot, ask).emitted)
        for _ in range(8):
            out += engine.step({slot: TokenTree.chain([out[-1]])})[slot].emitted
        engine.rewind(slot, len(ask) + 2)
        again = out[:3]
        for _ in range(6):
            again += engine.step({slot: TokenTree.chain([again[-1]])})[slot].emitted
        assert again == out


def test_block_verification_sees_processed_probabilities(grammar: Grammar) -> None:
    sampling = Sampling(1.1, seed=1, min_p=0.01, grammar=grammar, **PENALTIES)
    ask = prompt(5, VOCAB)
    with attached(tiny_llama(VOCAB), capacity=60, max_rows=8, sampling=sampling) as engine:
        slot = engine.alloc()
        first = engine.prefill(slot, ask).emitted[0]
        second, third = WRITTEN[1], VOCAB - 1
        q = torch.full((2, VOCAB), 1 / VOCAB)
        tree = TokenTree.chain([first, second, third], proposal=Proposal(q))
        result = engine.step({slot: tree}, probabilities=True)[slot]
        assert result.probabilities is not None
        with engine.detached(), torch.inference_mode():
            logits = engine.model(torch.tensor([[*ask, first, second, third]])).logits[0, len(ask) :].numpy()
        for row in range(3):
            output = [first, second, third][: row + 1]
            if not all(by_a_new_matcher(grammar, output[:at])[token] for at, token in enumerate(output)):
                continue
            expected = torch.from_numpy(by_vllm(logits[row], [*ask, *output], output, sampling)) / 1.1
            torch.testing.assert_close(result.probabilities[row].double(), expected.softmax(-1), rtol=1e-3, atol=1e-6)
            assert all(by_a_new_matcher(grammar, output)[token] for token in result.emitted[row : row + 1])


def test_text_under_a_schema_is_its_json(grammar: Grammar) -> None:
    whole = 0
    for seed in range(8):
        with attached(
            tiny_llama(VOCAB), capacity=200, max_rows=8, sampling=Sampling(2.0, seed=seed, grammar=grammar)
        ) as engine:
            out = autoregressive(engine, prompt(4, VOCAB, seed), 150)
        if END in out:
            assert set(out[out.index(END) :]) == {END}
            found = json.loads(byte_tokenizer().decode(out[: out.index(END)]))
            assert isinstance(found["n"], int)
            assert found["s"] in ("red", "green")
            assert found.keys() <= {"n", "s", "l"}
            whole += 1
    assert whole


# ------------------------------------------------------------------ captured steps


def test_min_p_and_bias_are_captured(monkeypatch: pytest.MonkeyPatch) -> None:

    def as_on_a_gpu(kept: torch.Tensor, positions: torch.Tensor, how: Sampling) -> torch.Tensor:
        return kept if how.greedy else kept.add_(sampler._noise(how.seed, positions, kept.shape[-1]))

    monkeypatch.setattr(graphs, "cuda_capture", recorded_capture)
    monkeypatch.setattr(sampler, "perturbed", as_on_a_gpu)
    ids = prompt(7, VOCAB)
    for sampling in (Sampling(logit_bias=BIAS), Sampling(1.2, seed=3, min_p=0.1, logit_bias=BIAS)):
        with attached(tiny_llama(VOCAB), capacity=60, max_rows=16, sampling=sampling) as engine:
            expected = autoregressive(engine, ids, TOKENS)
        with attached(tiny_llama(VOCAB), capacity=60, max_rows=16, sampling=sampling, graphs=True) as engine:
            assert autoregressive(engine, ids, TOKENS) == expected
            assert engine.report()["graphs"]
            assert not engine.notes


def test_steps_with_penalties_are_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "cuda_capture", recorded_capture)
    with pytest.raises(UsageError, match="--graphs"):
        Engine(tiny_llama(VOCAB), capacity=60, sampling=Sampling(**PENALTIES), graphs=True)
    model, ids = tiny_llama(VOCAB), prompt(7, VOCAB)
    with attached(model, capacity=60, max_rows=16, sampling=Sampling(**PENALTIES)) as engine:
        expected = autoregressive(engine, ids, TOKENS)
    with attached(model, capacity=60, max_rows=16, graphs=True) as engine:
        engine.sampling = Sampling(**PENALTIES)
        assert autoregressive(engine, ids, TOKENS) == expected
        assert not engine.report()["graphs"]


@pytest.mark.parametrize("wrong", [{"min_p": 1.5}, {"repetition_penalty": 1e-300}, {"min_p": float("nan")}])
def test_impossible_processors_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)).replace("_", "-")):
        Sampling(**wrong)
