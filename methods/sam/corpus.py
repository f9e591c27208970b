"""The static automaton of a corpus, shared by all sequences of a run: its texts, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specbench.common import UsageError
from specbench.decoding import Target, read_corpus
from specbench.methods.sam.automaton import Automaton

#: Separates texts if a tokenizer has no end-of-text token; never drafted.
NO_TOKEN = -1

#: An automaton in Python takes about half a kilobyte per token, and two seconds per million tokens.
MOST_TOKENS = 2_000_000


@dataclass(frozen=True)
class Corpus:
    """Texts with all their substrings; another text begins after a ``separator`` token."""

    automaton: Automaton
    separator: int
    weights: Mapping[str, str] = field(default_factory=dict)


def of(texts: Iterable[Sequence[int]], separator: int) -> Corpus:
    """The corpus of some token ids."""
    automaton = Automaton()
    for text in texts:
        automaton.extend([*text, separator])
    return Corpus(automaton, separator)


def load(path: str, target: Target) -> Corpus:
    """The corpus of a file, in the target's tokens."""
    found, tokenizer = read_corpus(path), target.tokenizer
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in found.texts]
    if (tokens := sum(map(len, ids))) > MOST_TOKENS:
        raise UsageError(f"{path} has {tokens:,} tokens, and sam takes at most {MOST_TOKENS:,}; give a part of it")
    ends = tokenizer.eos_token_id
    return replace(of(ids, NO_TOKEN if ends is None else ends), weights=found.weights)
