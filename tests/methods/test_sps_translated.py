"""Draft models with another vocabulary: exact whatever is lost on the way, and nothing is lost where words agree."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from support import decoders, models
from support.wording import wording
from tokenizers import Tokenizer, pre_tokenizers, trainers
from tokenizers import decoders as pieces
from tokenizers.models import BPE, WordLevel
from transformers import PreTrainedTokenizerFast

from specbench.common import UsageError
from specbench.decoding import Method
from specbench.engine import Engine, Sampling
from specbench.methods.sps.translated import TranslatedDrafter
from specbench.planning.methods import plan_methods
from specbench.runner.record import Request
from specbench.runner.stop import StopRule

WORDS, SLOTS = 60, 3
TEXT = (Path(__file__).parents[1] / "long.txt").read_text()[:20_000]
SAMPLINGS = [Sampling(), Sampling(1.0, top_k=30, seed=2)]


def words(order: list[int]) -> Any:
    """A tokenizer of whole words, word ``order[i]`` at id i."""
    tokenizer = Tokenizer(WordLevel({f"w{word}": at for at, word in enumerate(order)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def bytes_pairs(size: int, text: str) -> Any:
    """A byte-level BPE tokenizer learnt from a text."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = pieces.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def permuted(model: Any, order: list[int]) -> Any:
    """A copy whose token i is the original's token ``order[i]``."""
    found = copy.deepcopy(model)
    for weight in {id(each): each for each in (found.model.embed_tokens.weight, found.lm_head.weight)}.values():
        weight.data = weight.data[order].clone()
    return found


def method(engine: Engine, tokenizer: Any, draft: Any, of_draft: Any, *options: str) -> Method:
    """sps on this target and draft model, with their tokenizers."""
    found = plan_methods(["sps"], ["sps.draft=config:tiny", "sps.k=4", *(f"sps.{each}" for each in options)])[-1]
    target = decoders.target(engine, lambda name: decoders.loaded(draft, name, of_draft), tokenizer)
    return found.ready(target)


def requests(vocab: int, tokens: int = 30) -> list[Request]:
    rule = StopRule(frozenset(), (), tokens, str)
    return [Request(f"p{n}", 0, models.prompt(length, vocab, n), rule) for n, length in enumerate((3, 40, 9, 17, 1))]


@pytest.mark.parametrize("together", [1, SLOTS])
def test_a_draft_model_that_is_the_target_in_other_words_is_always_right(together: int) -> None:
    model = models.tiny_llama(WORDS).double()
    order = torch.randperm(WORDS, generator=torch.Generator().manual_seed(0)).tolist()
    draft = permuted(model, order)
    with models.attached(model, slots=SLOTS, capacity=90, max_rows=8) as engine:
        found = method(engine, words([*range(WORDS)]), draft, words(order))
        assert isinstance(found.shared, TranslatedDrafter)
        assert found.weights["vocabulary"] == "translated"
        asked = requests(WORDS)
        for request, record in zip(asked, decoders.served(engine, found, asked, together=together), strict=True):
            assert record.output_ids == models.autoregressive(engine, [*request.ids], 30)
            assert set(record.accepted_lengths[:-1]) == {5}
            assert record.draft_forwards == 4 * record.target_forwards


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("stop", ["false", "true"])
@pytest.mark.parametrize("size", [258, 400])
def test_texts_are_ars_whatever_the_words_and_the_drafts(size: int, stop: str, sampling: Sampling) -> None:
    """Random models write bytes that are no text, and tokens that no tokenizer would have made of their text."""
    mine = bytes_pairs(300, TEXT)
    model, draft = models.tiny_llama(300).double(), models.tiny_llama(size, seed=1).double()
    with models.attached(model, slots=SLOTS, capacity=90, max_rows=8, sampling=sampling) as engine:
        found = method(engine, mine, draft, bytes_pairs(size, TEXT[::-1]), f"stop={stop}", "confidence=0.004")
        asked = requests(300)
        records = decoders.served(engine, found, asked, together=SLOTS)
        for request, record in zip(asked, records, strict=True):
            assert record.output_ids == models.autoregressive(engine, [*request.ids], 30)
        assert sum(record.tree_rows - record.target_forwards for record in records) > 20  # of drafts
        assert all(length is None for length in found.shared.engine._slots.lengths)


def test_drafts_continue_the_text_of_the_target() -> None:
    """By hand: the draft model reads the target's text in its own words, and its own continuation comes back."""
    mine, its = bytes_pairs(300, TEXT), bytes_pairs(400, TEXT)
    model, draft = models.tiny_llama(300).double(), models.tiny_llama(400, seed=1).double()
    ids = mine(TEXT[:200])["input_ids"]
    with models.attached(model, slots=1, capacity=300, max_rows=8) as engine:
        shared = method(engine, mine, draft, its).shared
        slot = shared.begin(ids[:-1])
        shared.extend(slot, ids[-1:])
        drafts, _ = shared.draft(slot)
        known = its(TEXT[:200])["input_ids"]
        assert shared._texts[slot] == known
        shared.end(slot)
        said = models.autoregressive(shared.engine, known, 4)
        text = its.decode([*known, *said]).rstrip("\ufffd")
        assert text.startswith(TEXT[:200])
        assert drafts == mine(text)["input_ids"][len(ids) :][:4]


def test_block_verification_and_models_without_words_need_the_targets_vocabulary() -> None:
    model = models.tiny_llama(WORDS)
    draft = models.tiny_llama(WORDS + 1)
    with models.attached(model, slots=1, capacity=40, max_rows=8) as engine:
        with pytest.raises(UsageError, check=wording):
            method(engine, words([*range(WORDS)]), draft, words([*range(WORDS + 1)]), "verify=block")
        with pytest.raises(UsageError, check=wording):
            method(engine, None, draft, words([*range(WORDS + 1)]))
