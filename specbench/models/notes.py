"""Warn about settings in a model's files that decoding ignores, or that make answers too long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from specbench.common import UsageError, one_line
from specbench.models.loaded_model import LoadedModel

# Fields of a generation configuration, except temperature, that affect which tokens are chosen -> neutral values.
_CHANGES: dict[str, tuple[Any, ...]] = {
    "repetition_penalty": (1.0,),
    "encoder_repetition_penalty": (1.0,),
    "exponential_decay_length_penalty": (),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "bad_words_ids": ([],),
    "sequence_bias": ({}, []),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "guidance_scale": (1.0,),
    "watermarking_config": (),
    "top_k": (0,),
    "top_p": (1.0,),
    "top_h": (),
    "min_p": (0.0,),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
}
_ANSWER = "Yes"


def notes_on(model: LoadedModel) -> list[str]:
    """Return notes for the user of a model, one line each."""
    return [*_ignored(model), *_open_turn(model)]


def _ignored(model: LoadedModel) -> Iterator[str]:
    """Yield a note on penalties and filters of the generation configuration, which are ignored."""
    configured = getattr(model.model, "generation_config", None)
    found = {name: getattr(configured, name, None) for name in _CHANGES}
    named = [f"{n}={one_line(str(v), 40)}" for n, v in found.items() if v is not None and v not in _CHANGES[n]]
    if named:
        yield (
            f"the generation_config of {model.spec.name} sets {', '.join(named)}, which is ignored here: tokens are "
            "chosen only according to --temperature, --top-k and --top-p"
        )


def _open_turn(model: LoadedModel) -> Iterator[str]:
    """Yield a note if the chat template ends answers with a control token that is not a stop token."""
    if not model.has_chat_template or not model.stop_ids:
        return
    try:
        text = model.write_chat([{"role": "user", "content": "Is it?"}, {"role": "assistant", "content": _ANSWER}])
    except UsageError:  # the template refuses these turns; prompts that it refuses get their own error later
        return
    after = text.rpartition(_ANSWER)[2]
    ids = model.tokenizer(after, add_special_tokens=False)["input_ids"] if _ANSWER in text else []
    first = next((token for token in ids if token in model.control_ids), None)
    if first is not None and first not in model.stop_ids:
        name = one_line(str(model.tokenizer.convert_ids_to_tokens(first)), 40)
        yield (
            f"the chat template of {model.spec.name} ends answers with {name} ({first}), which is not one of its stop "
            "tokens: answers may run on to --max-new-tokens; add it to eos_token_id in its generation_config.json"
        )
