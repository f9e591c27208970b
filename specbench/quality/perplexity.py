"""Measure a model's perplexity on a text with sliding windows, scoring every token once.

A text may be longer than the model's context. Each window is one pass over at most ``context`` tokens; the next window
begins ``stride`` tokens later and scores the tokens that are not scored yet, each after at least ``context - stride +
1`` tokens (Hugging Face's sliding window; ``stride = context`` is lm-eval's rolling log-likelihood). As in lm-eval, the
first token is scored after the tokenizer's begin token, or its end token if it has no begin token.
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

#: Default tokens per window, unless the model's context is shorter.
CONTEXT = 1024

_TODO = "give a text file in UTF-8"


@dataclass(frozen=True)
class Passage:
    """A text to score, which is not blank, with its file's sha256."""

    text: str
    file: str
    sha256: str

    @property
    def bytes(self) -> int:
        """Bytes of the text in UTF-8."""
        return len(self.text.encode())

    @property
    def words(self) -> int:
        """Words between whitespace. lm-eval also counts an empty word for whitespace at either end."""
        return len(self.text.split())


@dataclass(frozen=True)
class ScoredPassage:
    """Scores of a text under one model; ``nats`` holds −ln p of each scored token.

    If the tokenizer has no begin or end token, the first token is not scored.
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
        """Return the figures for JSON. Perplexities per byte and per word are comparable between tokenizers."""
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
    """Read the text of a file, or its first ``max_words`` words; raise a UsageError if it is not UTF-8 or blank."""
    text = read_text(path, _TODO)
    if not text.strip():
        raise UsageError(f"cannot score {path}: it is empty; {_TODO}")
    if max_words is not None:
        last = next(islice(re.finditer(r"\S+", text), max_words - 1, None), None)
        text = text if last is None else text[: last.end()]
    return Passage(text, path.name, hashlib.sha256(read_bytes(path, _TODO)).hexdigest())


def windows(tokens: int, context: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first, start, end) of each window over ``tokens`` tokens.

    Tokens from ``first`` on are read, and tokens ``start`` to ``end - 1`` are scored. Every token but the first is
    scored once.
    """
    rated = 1
    while rated < tokens:
        end = min(tokens, rated + (context if rated == 1 else stride))
        yield max(0, end - 1 - context), rated, end
        rated = end


def assert_windows(context: int | None, stride: int | None) -> None:
    """Refuse a stride that would skip tokens between windows, as far as that is known without the model."""
    most = CONTEXT if context is None else context
    if stride is not None and stride > most:
        raise UsageError(
            f"cannot use --stride {stride}: it would skip tokens between windows of {most} tokens; lower it"
        )


def rate_text(
    loaded: LoadedModel,
    passage: Passage,
    context: int | None = None,
    stride: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ScoredPassage:
    """Score a text; ``progress`` is called with (tokens done, all tokens) at the start and after each window.

    ``context`` None is :data:`CONTEXT`, or the model's context if it is shorter; ``stride`` None is half of it.
    """
    most = loaded.context or 1 << 30
    context = min(CONTEXT, most) if context is None else context
    stride = max(1, context // 2) if stride is None else stride
    if context > most:
        raise UsageError(
            f"cannot use --context {context}: the context of {loaded.spec.name} has {most} tokens; lower it"
        )
    assert_windows(context, stride)
    ids = _ids(loaded, passage)
    before = _begin(loaded)
    fed = [*before, *ids]
    if len(fed) < 2:
        raise UsageError(
            f"cannot score {passage.file} with {loaded.spec.name}: it has a single token; give a longer text"
        )
    nats: list[float] = []
    progress(0, len(fed) - 1)
    try:
        # There are no drafts, and a window's last token is never cached, so no position beyond the window is used.
        engine = Engine(loaded.model, slots=1, capacity=max(1, min(context, len(fed)) - 1), max_rows=1)
        try:
            for first, start, end in windows(len(fed), context, stride):
                found = token_log_likelihoods(engine, fed[first:start], fed[start:end])
                nats += [-value for value in found]
                progress(end - 1, len(fed) - 1)
        finally:
            engine.close()
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        raise EnvironmentRefused(f"cannot score windows of {context} tokens: out of memory; lower --context") from error
    spec = loaded.spec
    return ScoredPassage(
        spec.name, spec.fingerprint, spec.dtype, ids, nats, passage.bytes, passage.words, context, stride
    )


def _ids(loaded: LoadedModel, passage: Passage) -> list[int]:
    try:
        return list(loaded.tokenizer(passage.text, add_special_tokens=False)["input_ids"])
    except Exception as error:  # loading a tokenizer does not check all its settings
        reason = one_line(str(error)) or type(error).__name__
        raise UsageError(
            f"cannot tokenise {passage.file} with the tokenizer of {loaded.spec.name}: {reason}; use a complete copy "
            "of the model"
        ) from error


def _begin(loaded: LoadedModel) -> list[int]:
    for name in ("bos_token_id", "eos_token_id"):
        token = getattr(loaded.tokenizer, name, None)
        if type(token) is int:
            return [token]
    return []


def _exp(value: float) -> float | None:
    """Return e to the power of ``value``, or None if it overflows."""
    return math.exp(value) if value < 709 else None
