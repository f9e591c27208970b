"""Perplexity by rolling windows: transformers' own loss of each window says the same, and no token is rated twice."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.decoders import loaded
from support.models import byte_tokenizer, supported, tiny_llama
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.quality.perplexity import rate_text, read_passage, windows

TEXT = "Six apples, and one more;\nthen none. Ä is two bytes."


@pytest.mark.parametrize(("context", "stride"), [(8, 8), (8, 3), (8, 1), (1, 1), (50, 10), (7, 4)])
def test_windows_rate_every_token_once_after_as_many_others_as_are_promised(context: int, stride: int) -> None:
    for tokens in (2, 3, 8, 9, 10, 29):
        rated: list[int] = []
        for first, start, end in windows(tokens, context, stride):
            assert 0 <= first < start < end
            assert end - 1 - first <= context  # the last one is not fed
            assert start == 1 or (end - start <= stride and start - first >= min(start, context - stride + 1))
            rated += range(start, end)
        assert rated == list(range(1, tokens))


def test_a_stride_of_the_whole_context_is_lm_evals_rolling_windows() -> None:
    utils = pytest.importorskip("lm_eval.utils")
    for tokens, context in ((29, 8), (8, 8), (9, 8), (3, 8), (20, 1)):
        text = list(range(100, 100 + tokens))
        fed = [7, *text]
        found = [(fed[first : end - 1], fed[start:end]) for first, start, end in windows(len(fed), context, context)]
        theirs = list(utils.get_rolling_token_windows(text, 7, context, 1))
        assert found == [(list(seen), list(rated)) for seen, rated in theirs]


@torch.inference_mode()
def by_transformers(model: Any, fed: list[int], context: int, stride: int) -> tuple[float, int]:
    """Sum of the losses, and how many tokens they are of: the loop of Hugging Face's page on perplexity."""
    total, count, before = 0.0, 0, 1
    end = min(len(fed), context + 1)
    while True:
        ids = torch.tensor([fed[max(0, end - context - 1) : end]])
        labels = ids.clone()
        labels[:, : -(end - before)] = -100
        total += float(model(input_ids=ids, labels=labels).loss) * (end - before)
        count += end - before
        if end == len(fed):
            return total, count
        before, end = end, min(len(fed), end + stride)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3"])
def test_it_is_transformers_own_loss(family: str, tmp_path: Path) -> None:
    """GPT-2 has a table of 256 positions, Gemma windows of 8 tokens."""
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    model = supported(family)
    vocab = model.config.get_text_config().vocab_size
    target = loaded(model, tokenizer=_Below(vocab))
    fed = [3, *(byte % vocab for byte in TEXT.encode())]
    for context, stride in ((16, 16), (16, 5), (40, 20), (250, 100)):
        found = rate_text(target, read_passage(file), context, stride)
        total, count = by_transformers(model, fed, context, stride)
        assert len(found.nats) == count == len(fed) - 1
        assert math.fsum(found.nats) / count == pytest.approx(total / count, abs=1e-4)
    figures = found.figures()
    assert figures["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-3)
    assert figures["bits_per_byte"] == pytest.approx(total / len(TEXT.encode()) / math.log(2), rel=1e-3)
    assert figures["perplexity_per_byte"] == pytest.approx(2 ** figures["bits_per_byte"])
    words = len(TEXT.split())
    assert words == 11
    per_word = figures["perplexity_per_word"]
    assert math.log(per_word) == pytest.approx(total / words, rel=1e-3)


class _Below:
    """Bytes as ids of a small vocabulary, with a begin token."""

    bos_token_id = 3
    eos_token_id = 2

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab

    def __call__(self, text: str, **how: bool) -> dict[str, list[int]]:
        assert how == {"add_special_tokens": False}
        return {"input_ids": [byte % self._vocab for byte in text.encode()]}


def test_a_whole_context_of_learned_positions_fits(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(TEXT * 8)
    target = replace(loaded(supported("gpt2"), tokenizer=_Below(90)), context=256)
    assert len(rate_text(target, read_passage(file), 256, 200).nats) == len(file.read_bytes())


def test_the_first_token_comes_after_a_begin_token_or_the_end_token_or_is_not_rated(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes(b"\xef\xbb\xbfabcd")  # a byte order mark is no text
    passage = read_passage(file)
    assert (passage.text, passage.bytes, passage.sha256) == ("abcd", 4, hashlib.sha256(file.read_bytes()).hexdigest())
    model = tiny_llama(300)
    tokenizer = byte_tokenizer()
    begin = rate_text(loaded(model, tokenizer=tokenizer), passage)
    tokenizer.bos_token = None
    end = rate_text(loaded(model, tokenizer=tokenizer), passage)
    tokenizer.eos_token = None
    bare = rate_text(loaded(model, tokenizer=tokenizer), passage)
    assert [len(each.nats) for each in (begin, end, bare)] == [4, 4, 3]
    assert begin.nats[0] != pytest.approx(end.nats[0], abs=1e-3)
    assert (begin.context, begin.stride) == (1024, 512)
    (tmp_path / "one.txt").write_text("a")
    with pytest.raises(UsageError, check=wording):
        rate_text(loaded(model, tokenizer=tokenizer), read_passage(tmp_path / "one.txt"))
