"""Modes of llama.cpp, their ``--set`` options, and the server's command-line options for each.

The KV cache has the row's precision and flash attention is off, because with it build 0c1e57098 rounds a float32 cache
to float16. The cache of earlier prompts is off. All else is the server's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from specbench.backends.protocol import PLAIN, EngineOptions, Mode, Served
from specbench.common import EngineFault, option

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


class Draft(ServerOptions):
    """Options of a draft model; defaults are the server's."""

    model: str = option("", help="path of the draft model's GGUF file")
    n_max: int = option(3, help="most tokens per draft", ge=1, le=1024)
    n_min: int = option(0, help="fewest tokens per draft", ge=0, le=1024)
    p_min: float = option(0.0, help="drafting stops at tokens with a lower probability", ge=0, le=1)


TIMES = {
    "prompt_ms": "time for the prompt, by the server's clock",
    "predicted_ms": "time from the first token to the last, by the server's clock",
}
_DRAFTS = TIMES | {
    "mean_len": "mean length of steps with a draft, as in the server's log: 1 + accepted / verified",
    "draft_acceptance": "accepted / drafted, as in the server's log",
}


_RUN = "run here: llama.cpp of llama-cpp-python 0.3.36"


def _spec(help: str, options: type[ServerOptions], tried: str = _RUN) -> Mode:
    return Mode(help, options, measures=_DRAFTS, tried=tried)


#: By the part of a row's name after the colon. common/speculative.cpp shows which n-gram modes keep state.
MODES: Mapping[str, Mode] = {
    PLAIN: Mode("plain decoding", ServerOptions, measures=TIMES, tried=_RUN),
    "ngram-simple": _spec("copies what followed the last n-gram earlier in the text", Lookup),
    "ngram-map-k": _spec("drafts from a table of n-grams", Lookup),
    "ngram-mod": _spec("drafts from a hash table that keeps earlier requests, and so also repeats", Mod),
    "ngram-cache": _spec("drafts from n-gram counts that keep earlier requests", ServerOptions),
    "draft": _spec("drafts with a smaller model (draft-simple)", Draft, tried=""),
}


def flags(mode: str, options: ServerOptions, served: Served) -> dict[str, object]:
    """Return the server's command-line options that affect speed and rounding: all but the file and the port."""
    cache = _CACHES[served.dtype] if options.cache_type == "auto" else options.cache_type
    found: dict[str, object] = {
        "--host": "127.0.0.1",
        "--threads": served.threads,
        "--threads-batch": served.threads,
        "--ctx-size": served.capacity,
        "--parallel": 1,
        "--cache-type-k": cache,
        "--cache-type-v": cache,
        "--flash-attn": options.flash_attn,
        "--cache-ram": 0,  # otherwise it saves the last prompt's cache while the next request waits
    }
    if served.model.model.device.type == "cpu":
        found["--device"] = "none"
    if mode != PLAIN:
        found["--spec-type"] = "draft-simple" if mode == "draft" else mode
        for name in type(options).model_fields.keys() - ServerOptions.model_fields.keys():
            found[f"--spec-{mode}-{name.replace('_', '-')}"] = getattr(options, name)
    if isinstance(options, Draft) and not options.model:
        raise EngineFault("it needs a draft model; give --set llama.cpp:draft.model=FILE.gguf")
    return found
