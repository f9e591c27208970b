"""Perplexity of a given text under a model: windows that roll over it, every token rated once.

A text is longer than what a model sees at a time. Each window is one pass over at most ``context`` tokens; the next
begins ``stride`` tokens later and rates what no window has rated yet, each token behind ``context - stride + 1`` others
at least (Hugging Face's sliding window; ``stride = context`` is lm-eval's rolling log-likelihood). The very first token
is rated behind the tokenizer's begin token, or the end token of one that has none, as lm-eval does.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from specbench.common import EnvironmentRefused, UsageError, one_line, read_bytes, read_text
from specbench.engine import Engine, ran_out
from specbench.models import LoadedModel
from specbench.runner import token_log_likelihoods

#: Tokens that a window has where nobody says, of a model that takes as many.
CONTEXT = 1024

_TODO = "give a text file in UTF-8"


@dataclass(frozen=True)
class Passage:
    """The text that is rated, not blank, with its file's sha256."""

    text: str
    file: str
    sha256: str

    @property
    def bytes(self) -> int:
        """In UTF-8."""
        return len(self.text.encode())

    @property
    def words(self) -> int:
        """What stands between blanks. lm-eval counts an empty word more for blanks at either end."""
        return len(self.text.split())


@dataclass(frozen=True)
class ScoredPassage:
    """A text under one model; ``nats`` holds −log p (base e) of each rated token.

    Without a begin or end token of the tokenizer the first token is not rated.
    """

    model: str
    fingerprint: str
    dtype: str
    ids: Sequence[int]
    nats: Sequence[float]
    bytes: int
    words: int
    context: int
    stride: int

    def figures(self) -> dict[str, Any]:
        """As JSON has them. Perplexities per byte and per word do not depend on how a tokenizer cuts the text."""
        total = math.fsum(self.nats)
        return {
            "model": self.model,
            "fingerprint": self.fingerprint,
            "dtype": self.dtype,
            "context": self.context,
            "stride": self.stride,
            "tokens": len(self.ids),
            "tokens_rated": len(self.nats),
            "nats_per_token": total / len(self.nats),
            "perplexity": _exp(total / len(self.nats)),
            "perplexity_per_word": _exp(total / self.words),
            "perplexity_per_byte": _exp(total / self.bytes),
            "bits_per_byte": total / self.bytes / math.log(2),
        }


def read_passage(path: Path, max_words: int | None = None) -> Passage:
    """The text of a file, or its first ``max_words`` words; UsageError where it is not UTF-8 or blank."""
    text = read_text(path, _TODO)
    if not text.strip():
        raise UsageError(f"{path} is empty; {_TODO}")
    if max_words is not None:
        last = next(islice(re.finditer(r"\S+", text), max_words - 1, None), None)
        text = text if last is None else text[: last.end()]
    return Passage(text, path.name, hashlib.sha256(read_bytes(path, _TODO)).hexdigest())


def windows(tokens: int, context: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(first, from, to) of each window over ``tokens`` tokens: those from ``first`` on are fed, ``from`` up to but not
    with ``to`` are rated, and every token but the very first is rated once.
    """
    rated = 1
    while rated < tokens:
        end = min(tokens, rated + (context if rated == 1 else stride))
        yield max(0, end - 1 - context), rated, end
        rated = end


def assert_windows(context: int | None, stride: int | None) -> None:
    """Refuse windows between which tokens would be left out, as far as that is known without the model."""
    most = CONTEXT if context is None else context
    if stride is not None and stride > most:
        raise UsageError(f"--stride {stride} would leave tokens out between windows of {most}; lower it")


def rate_text(
    loaded: LoadedModel,
    passage: Passage,
    context: int | None = None,
    stride: int | None = None,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> ScoredPassage:
    """Rate a text; ``told`` gets (tokens done, tokens in all) at the start and after each window.

    ``context`` None is :data:`CONTEXT`, or what the model takes; ``stride`` None is half of the context.
    """
    most = loaded.context or 1 << 30
    context = min(CONTEXT, most) if context is None else context
    stride = max(1, context // 2) if stride is None else stride
    if context > most:
        raise UsageError(f"--context {context} is more than the {most} tokens that {loaded.spec.name} takes; lower it")
    assert_windows(context, stride)
    ids = _ids(loaded, passage)
    before = _begin(loaded)
    fed = [*before, *ids]
    if len(fed) < 2:
        raise UsageError(f"{passage.file} is a single token for {loaded.spec.name}; give a longer text")
    nats: list[float] = []
    told(0, len(fed) - 1)
    try:
        # Nothing is drafted, and a window's last token is never cached: no position is used that a text of this length
        # does not have.
        engine = Engine(loaded.model, slots=1, capacity=max(1, min(context, len(fed)) - 1), max_rows=1)
        try:
            for first, start, end in windows(len(fed), context, stride):
                found = token_log_likelihoods(engine, fed[first:start], fed[start:end])
                nats += [-value for value in found]
                told(end - 1, len(fed) - 1)
        finally:
            engine.close()
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        raise EnvironmentRefused(f"no memory for windows of {context} tokens; lower --context") from error
    spec = loaded.spec
    return ScoredPassage(
        spec.name, spec.fingerprint, spec.dtype, ids, nats, passage.bytes, passage.words, context, stride
    )


def _ids(loaded: LoadedModel, passage: Passage) -> list[int]:
    try:
        return list(loaded.tokenizer(passage.text, add_special_tokens=False)["input_ids"])
    except Exception as error:  # settings that nobody looked at when it was loaded
        reason = one_line(str(error)) or type(error).__name__
        raise UsageError(
            f"{passage.file} does not go through the tokenizer of {loaded.spec.name}: {reason}; take a whole copy of it"
        ) from error


def _begin(loaded: LoadedModel) -> list[int]:
    for name in ("bos_token_id", "eos_token_id"):
        token = getattr(loaded.tokenizer, name, None)
        if type(token) is int:
            return [token]
    return []


def _exp(value: float) -> float | None:
    """e to it; None where no float holds that."""
    return math.exp(value) if value < 709 else None
