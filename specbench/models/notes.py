"""What a model's files say that decoding does not do, or that makes answers longer than they should be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from specbench.common import UsageError, one_line
from specbench.models.loaded_model import LoadedModel

# Fields of a generation configuration, temperature apart, that change which tokens come, with their neutral values.
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
    """What the user of a model has to know, a line each."""
    return [*_ignored(model), *_open_turn(model)]


def _ignored(model: LoadedModel) -> Iterator[str]:
    """Penalties and filters of its generation configuration."""
    configured = getattr(model.model, "generation_config", None)
    found = {name: getattr(configured, name, None) for name in _CHANGES}
    named = [f"{n}={one_line(str(v), 40)}" for n, v in found.items() if v is not None and v not in _CHANGES[n]]
    if named:
        yield (
            f"the generation_config of {model.spec.name} sets {', '.join(named)}, which no row applies: tokens are "
            "chosen by --temperature, --top-k and --top-p alone"
        )


def _open_turn(model: LoadedModel) -> Iterator[str]:
    """A control token by which its chat template ends an answer, and which ends none here."""
    if not model.has_chat_template or not model.stop_ids:
        return
    try:
        text = model.write_chat([{"role": "user", "content": "Is it?"}, {"role": "assistant", "content": _ANSWER}])
    except UsageError:  # its own rules for turns; prompts are rendered all the same, or refused by name
        return
    behind = text.rpartition(_ANSWER)[2]
    ids = model.tokenizer(behind, add_special_tokens=False)["input_ids"] if _ANSWER in text else []
    first = next((token for token in ids if token in model.control_ids), None)
    if first is not None and first not in model.stop_ids:
        name = one_line(str(model.tokenizer.convert_ids_to_tokens(first)), 40)
        yield (
            f"the chat template of {model.spec.name} ends an answer with {name} ({first}), which is none of its stop "
            "tokens: answers may run on to --max-new-tokens; name it in eos_token_id of its generation_config.json"
        )
