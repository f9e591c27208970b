"""llama.cpp's modes: how each speculates, what ``--set`` takes for it, what the server is given.

The KV cache has the row's precision and flash attention is off: with it build 0c1e57098 rounds a float32 cache to
float16. All else is the server's default, except that its memory of earlier prompts is off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from specbench.backends.protocol import PLAIN, EngineOptions, Mode, Served
from specbench.common import EngineFault, option

_CACHES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


class ServerOptions(EngineOptions):
    """Options of every mode; all but the common ones are for a server that is started here."""

    server: str = option("", help="path of llama-server; else the one of make engines, else that on the PATH")
    flash_attn: Literal["off", "on", "auto"] = option("off", help="--flash-attn; on rounds a float32 cache to float16")
    cache_type: Literal["auto", "f32", "f16", "bf16", "q8_0"] = option(
        "auto", help="precision of the KV cache; auto is that of the row's weights"
    )
    server_args: str = option("", help="further options of llama-server, as on a command line")


class Lookup(ServerOptions):
    """Options of ngram-simple and ngram-map-k; defaults are the server's."""

    size_n: int = option(12, help="tokens of the n-gram that is looked up", ge=1, le=1024)
    size_m: int = option(48, help="tokens of a draft", ge=1, le=1024)
    min_hits: int = option(1, help="times that the n-gram has to be there", ge=1, le=1024)


class Mod(ServerOptions):
    """Options of ngram-mod; defaults are the server's."""

    n_match: int = option(24, help="tokens of the n-gram that is looked up", ge=1, le=1024)
    n_min: int = option(48, help="tokens of a draft at least", ge=0, le=1024)
    n_max: int = option(64, help="tokens of a draft at most", ge=1, le=1024)


class Draft(ServerOptions):
    """Options of a draft model; defaults are the server's."""

    model: str = option("", help="path of the draft model's GGUF file")
    n_max: int = option(3, help="tokens of a draft at most", ge=1, le=1024)
    n_min: int = option(0, help="tokens of a draft at least", ge=0, le=1024)
    p_min: float = option(0.0, help="probability below which a draft ends", ge=0, le=1)


TIMES = {
    "prompt_ms": "its own clock's time for the prompt",
    "predicted_ms": "its own clock's time from the first token to the last",
}
_DRAFTS = TIMES | {
    "mean_len": "mean length of a verified step as its log has it: 1 + accepted / verified, others left out",
    "draft_acceptance": "accepted / drafted, as its log has it",
}


def _spec(help: str, options: type[ServerOptions]) -> Mode:
    return Mode(help, options, measures=_DRAFTS)


#: By the part of a row's label behind the colon. Which n-gram modes remember is read off common/speculative.cpp.
MODES: Mapping[str, Mode] = {
    PLAIN: Mode("plain decoding", ServerOptions, measures=TIMES),
    "ngram-simple": _spec("drafts what followed the last n-gram before", Lookup),
    "ngram-map-k": _spec("drafts by a table of n-grams", Lookup),
    "ngram-mod": _spec("drafts by a table of hashes; it remembers earlier requests, so repeats of one too", Mod),
    "ngram-cache": _spec("drafts by counts of n-grams; it remembers earlier requests", ServerOptions),
    "draft": _spec("drafts by a smaller model (draft-simple); untried", Draft),
}


def flags(mode: str, options: ServerOptions, served: Served) -> dict[str, object]:
    """What a server is started with, beside the file and the port: it decides speed and rounding."""
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
        "--cache-ram": 0,  # or it copies the last prompt's cache aside while the next request waits
    }
    if served.model.model.device.type == "cpu":
        found["--device"] = "none"
    if mode != PLAIN:
        found["--spec-type"] = "draft-simple" if mode == "draft" else mode
        for name in type(options).model_fields.keys() - ServerOptions.model_fields.keys():
            found[f"--spec-{mode}-{name.replace('_', '-')}"] = getattr(options, name)
    if isinstance(options, Draft) and not options.model:
        raise EngineFault("it needs a draft model; give one by --set llama.cpp:draft.model=FILE.gguf")
    return found
