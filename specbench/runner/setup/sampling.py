"""The engine's sampling for a run's recorded one: token ids of ``--logit-bias``, and the compiled ``--grammar``."""

from __future__ import annotations

from typing import Any

from specbench.common import UsageError
from specbench.engine import Grammar, Sampling
from specbench.models import LoadedModel
from specbench.planning import grammar_source
from specbench.results import GrammarSpec, SamplingSpec


def sampling_of(spec: SamplingSpec, model: LoadedModel) -> Sampling:
    """Sampling for a model's tokens. UsageError names the option that does not fit the model."""
    values = spec.model_dump() | {
        "logit_bias": _biased(spec.logit_bias, model),
        "grammar": spec.grammar and _compiled(spec.grammar, model),
    }
    try:
        return Sampling(**values)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _biased(bias: dict[str, float], model: LoadedModel) -> tuple[tuple[int, float], ...]:
    """(token id, value): digits are an id, other text must be one token of the model."""
    found: dict[int, float] = {}
    for word, value in bias.items():
        ids = [int(word)] if word.isdecimal() else model.tokenizer(word, add_special_tokens=False)["input_ids"]
        if len(ids) != 1:
            raise UsageError(
                f"cannot use --logit-bias {word!r}: it is {len(ids)} tokens of {model.spec.name}, {list(ids)}; "
                "name one token"
            )
        if ids[0] >= model.vocab_size:
            raise UsageError(
                f"cannot use --logit-bias {word}: {model.spec.name} has {model.vocab_size} tokens; give a smaller id"
            )
        if ids[0] in found:
            raise UsageError(f"cannot use --logit-bias {word!r}: token {ids[0]} has two values; keep one")
        found[ids[0]] = value
    return tuple(sorted(found.items()))


def _compiled(grammar: GrammarSpec, model: LoadedModel) -> Grammar:
    source = grammar_source(grammar)
    from llguidance.hf import from_tokenizer  # imported here: an optional library

    ends = sorted(model.stop_ids)
    if not ends:
        raise UsageError(f"cannot use --grammar: {model.spec.name} has no token that ends an answer; use another model")
    tokenizer: Any = model.tokenizer
    try:
        tokens = from_tokenizer(tokenizer, n_vocab=model.vocab_size, eos_token=ends)
    except ValueError as error:  # only the fast tokenizers of transformers
        raise UsageError(
            f"cannot use --grammar: llguidance cannot read {model.spec.name}'s tokenizer ({error}); use another model"
        ) from error
    compiled = Grammar(source, tokens, ends)
    if compiled.empty:
        raise UsageError(f"cannot use --grammar: it allows no text of {model.spec.name}'s tokens; fix the file")
    return compiled
