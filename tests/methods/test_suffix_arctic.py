"""Suffix decoding against drafts that Arctic Inference's own class made: benchmarks/vs_arctic.py wrote them down."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.decoders import decided

from specbench.decoding import Context, TokenTree
from specbench.methods.suffix.decoder import Decoder, Options

RECORDED = json.loads((Path(__file__).parent.parent / "small_data" / "arctic_drafts.json").read_text())
VOCABULARY = 1 + max(max(text["prompt"] + text["answer"]) for text in RECORDED["texts"])


def replayed(setting: dict[str, Any]) -> Iterator[tuple[TokenTree, float, list[Any]]]:
    """Our draft and its score at every place of which a draft is recorded, next to that."""
    options, texts, together = Options(**setting["options"]), RECORDED["texts"], setting["together"]
    expected = {(text, at): rest for text, at, *rest in setting["drafts"]}
    state = Decoder.state(options)
    for first in range(0, len(texts), together):
        live = range(first, min(first + together, len(texts)))
        decoders = {text: Decoder(options, Context(VOCABULARY, 0, random.Random(0), None, state)) for text in live}
        for text, decoder in decoders.items():
            decoder.begin(texts[text]["prompt"])
        for at in range(1, 1 + max(len(texts[text]["answer"]) for text in live)):
            for text, decoder in decoders.items():
                if at > len(texts[text]["answer"]):
                    continue
                decoder.observe(decided([texts[text]["answer"][at - 1]]))
                if (text, at) in expected:
                    yield decoder.draft(), decoder.score, expected[text, at]
        for decoder in decoders.values():
            decoder.end()


def paths(tokens: Sequence[int], parents: Sequence[int]) -> list[tuple[int, ...]]:
    """The tokens on the way to each one, itself included, sorted: which of two equals stands first is no rule's."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return sorted(found)


@pytest.mark.parametrize("tree", [False, True], ids=["path", "tree"])
def test_drafts_are_those_of_the_published_class(tree: bool) -> None:
    met = 0
    for setting in RECORDED["settings"]:
        if setting["options"]["tree"] != tree:
            continue
        for ours, score, (promised, tokens, parents) in replayed(setting):
            assert score == pytest.approx(promised, abs=1e-5)
            assert paths(ours.tokens[1:], [parent - 1 for parent in ours.parents[1:]]) == paths(tokens, parents)
            met += 1
    assert met == 270
