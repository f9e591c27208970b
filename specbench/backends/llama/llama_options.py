"""Modes of llama.cpp, their ``--set`` options, and the server's command-line options for each.

The KV cache has the row's precision and flash attention is off, because with it build 0c1e57098 rounds a float32 cache
to float16. The cache of earlier prompts is off. All else is the server's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from specbench.backends.llama.llama_stream import TIMES
from specbench.backends.protocol import PLAIN, EngineOptions, Mode, Served
from specbench.backends.weights import weights_of
from specbench.common import EngineFault, SpecbenchError, option

_CACHES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


class ServerOptions(EngineOptions):
    """Options of every mode; all but those of :class:`EngineOptions` need a server that is started here."""

    server: str = option("", help="path of llama-server; default is the one of make engines, else the one on the PATH")
    flash_attn: Literal["off", "on", "auto"] = option("off", help="--flash-attn; on rounds a float32 cache to float16")
    cache_type: Literal["auto", "f32", "f16", "bf16", "q8_0"] = option(
        "auto", help="precision of the KV cache; auto is that of the row's weights"
    )
    server_args: str = option("", help="further options of llama-server, as on a command line")


class Lookup(ServerOptions):
    """Options of ngram-simple and ngram-map-k; defaults are the server's."""

    size_n: int = option(12, help="tokens of the n-gram to look up", ge=1, le=1024)
    size_m: int = option(48, help="tokens per draft", ge=1, le=1024)
    min_hits: int = option(1, help="least number of earlier occurrences of the n-gram", ge=1, le=1024)


class Mod(ServerOptions):
    """Options of ngram-mod; defaults are the server's."""

    n_match: int = option(24, help="tokens of the n-gram to look up", ge=1, le=1024)
    n_min: int = option(48, help="fewest tokens per draft", ge=0, le=1024)
    n_max: int = option(64, help="most tokens per draft", ge=1, le=1024)


class Head(ServerOptions):
    """Options of a draft head in a GGUF file; defaults are the server's."""

    model: str = option("", help="path of the head's GGUF file, as llama.cpp's converter makes it")
    n_max: int = option(3, help="most tokens per draft", ge=1, le=1024)
    n_min: int = option(0, help="fewest tokens per draft", ge=0, le=1024)
    p_min: float = option(0.0, help="drafting stops at tokens with a lower probability", ge=0, le=1)


class Draft(Head):
    """Options of a draft model; defaults are the server's."""

    model: str = option(
        "", help="draft model, a value of --model with the target's vocabulary; or a GGUF file that is used as it is"
    )


_DRAFTS = TIMES | {
    "mean_len": "mean length of steps with a draft, as in the server's log: 1 + accepted / verified",
    "draft_acceptance": "accepted / drafted, as in the server's log",
}


_RUN = "run: llama.cpp of llama-cpp-python 0.3.36"


def _spec(help: str, options: type[ServerOptions], tried: str = _RUN) -> Mode:
    return Mode(help, options, measures=_DRAFTS, tried=tried)


#: By the part of a row's name after the colon. common/speculative.cpp shows which n-gram modes keep state.
MODES: Mapping[str, Mode] = {
    PLAIN: Mode("plain decoding", ServerOptions, measures=TIMES, tried=_RUN),
    "ngram-simple": _spec("copies what followed the last n-gram earlier in the text", Lookup),
    "ngram-map-k": _spec("drafts from a table of n-grams; earlier requests in its slot change its drafts", Lookup),
    "ngram-map-k4v": _spec("the same with up to 4 continuations of each n-gram", Lookup),
    "ngram-mod": _spec("drafts from a hash table that keeps earlier requests, and so also repeats", Mod),
    "ngram-cache": _spec("drafts from n-gram counts that keep earlier requests", ServerOptions),
    "draft": _spec("drafts with a smaller model", Draft),
    "eagle3": _spec("drafts with an EAGLE-3 head", Head, tried=""),
    "mtp": _spec("drafts with prediction layers of the model", Head, tried=""),
    "dflash": _spec("drafts with a DFlash drafter", Head, tried=""),
    "dspark": _spec("drafts with a DSpark drafter", Head, tried=""),
}


def flags(mode: str, options: ServerOptions, served: Served) -> dict[str, object]:
    """Return the server's command-line options that affect speed and rounding: all but the files and the port."""
    cache = _CACHES[served.dtype] if options.cache_type == "auto" else options.cache_type
    found: dict[str, object] = {
        "--host": "127.0.0.1",
        "--threads": served.threads,
        "--threads-batch": served.threads,
        "--ctx-size": served.capacity * served.together,  # the server divides it among its slots
        "--parallel": served.together,
        "--cache-type-k": cache,
        "--cache-type-v": cache,
        "--flash-attn": options.flash_attn,
        "--cache-ram": 0,  # otherwise it saves the last prompt's cache while the next request waits
    }
    if served.model.model.device.type == "cpu":
        found["--device"] = "none"
    if mode == PLAIN:
        return found
    drafts = isinstance(options, Head)
    found["--spec-type"] = "draft-simple" if mode == "draft" else f"draft-{mode}" if drafts else mode
    for name in type(options).model_fields.keys() - ServerOptions.model_fields.keys() - {"model"}:
        found[f"--spec-{'draft' if drafts else mode}-{name.replace('_', '-')}"] = getattr(options, name)
    if drafts:
        found |= {"--spec-draft-type-k": cache, "--spec-draft-type-v": cache}
    return found


def draft_file(options: ServerOptions, served: Served) -> Path | None:
    """Return the GGUF file of the draft model or head, exported if it is not one yet; None for n-gram modes."""
    if not isinstance(options, Head):
        return None
    if not options.model:
        raise EngineFault(f"it needs a drafter; give --set {served.label}.model=MODEL")
    if options.model.endswith(".gguf") or not isinstance(options, Draft):
        return Path(options.model)
    from specbench.models import load

    try:
        draft = load(options.model, dtype=served.dtype, device=str(served.model.model.device))
    except SpecbenchError as error:
        raise EngineFault(f"its draft model: {error}") from error
    if draft.vocab_size != served.model.vocab_size:
        raise EngineFault(
            f"its draft model has {draft.vocab_size} tokens and the run's model {served.model.vocab_size}; give one "
            "with the same vocabulary"
        )
    return weights_of(replace(served, model=draft), "gguf")[0]
