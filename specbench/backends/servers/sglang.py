"""Measure an SGLang server that the user runs, by URL, through its own endpoint ``/generate``.

Names and meanings of fields are those of sglang 0.5.23. Its last event has the request's counters; a request that is
given up has none. Stop tokens of its model also end an answer, unless the run has none at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from specbench.backends.protocol import PLAIN, Arrival, EngineCounters, Mode, Question
from specbench.backends.servers import by_url
from specbench.backends.servers.by_url import IdReply, UrlOptions, sampling_of, whole_number
from specbench.common import EngineFault, one_line
from specbench.results import ServedWeights

_CACHED = {"cached_tokens": "prompt tokens from the server's cache; 0 needs its --disable-radix-cache"}
_ACCEPTANCE = _CACHED | {
    "spec_accept_length": "SGLang's definition, tokens / verifications: the prompt's own token is among the tokens",
    "spec_accept_rate": "SGLang's definition, accepted / proposed draft tokens",
}
_TRIED = "imitated: replies in the form of sglang 0.5.23's source"
#: By mode: the --speculative-algorithm of the server. NEXTN is resolved to EAGLE there.
_ALGORITHMS = {
    PLAIN: "", "eagle": "EAGLE", "eagle3": "EAGLE3", "standalone": "STANDALONE", "ngram": "NGRAM",
    "dflash": "DFLASH", "dspark": "DSPARK", "uno": "UNO",
}  # fmt: skip
_SHOWN = (
    "model_path", "dtype", "quantization", "kv_cache_dtype", "attention_backend", "tp_size", "dp_size",
    "disable_radix_cache", "disable_cuda_graph",
)  # fmt: skip


def _spec(help: str) -> Mode:
    return Mode(help, UrlOptions, measures=_ACCEPTANCE, tried=_TRIED)


class Backend(by_url.Backend):
    """A server whose ``/server_info`` shows that it runs the row's mode."""

    name = "sglang"
    title = "SGLang"
    modes: ClassVar = {
        PLAIN: Mode("plain", UrlOptions, measures=_CACHED, tried=_TRIED),
        "eagle": _spec("an EAGLE head or the model's own prediction layers (NEXTN)"),
        "eagle3": _spec("an EAGLE-3 head"),
        "standalone": _spec("a draft model"),
        "ngram": _spec("n-grams of earlier requests, and of a corpus"),
        "dflash": _spec("a DFlash drafter"),
        "dspark": _spec("a DSpark drafter"),
        "uno": _spec("a draft LoRA"),
    }
    _proposes = 0

    def connect(self) -> Mapping[str, Any]:
        info = self.server.json("/server_info")
        if not isinstance(info, dict) or "speculative_algorithm" not in info:
            raise EngineFault("its /server_info has no speculative_algorithm; use sglang 0.5 or newer")
        self.check_speculation(bool(info["speculative_algorithm"]))
        runs, wanted = str(info["speculative_algorithm"] or "").upper(), _ALGORITHMS[self.mode]
        if runs != wanted:
            found = one_line(self.server.scrub(runs), 40)
            raise EngineFault(f"its server's --speculative-algorithm is {found}; this row needs {wanted}")
        if info.get("dtype") in {"float32", "bfloat16", "float16"} - {self.served.dtype}:
            raise EngineFault(
                f"its server decodes in {info['dtype']} and the row in {self.served.dtype}; give "
                f"--set {self.served.label}.dtype={info['dtype']}"
            )
        for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"):
            if self.mode != PLAIN and info.get(name, 1.0) != 1.0:
                raise EngineFault(
                    f"its server's --{name.replace('_', '-')} is not 1, so that its answers change; remove it"
                )
        # The number of proposed tokens is a constant there, which is wrong for drafts of varying length.
        self._proposes = 0 if info.get("speculative_adaptive") else whole_number(info, "speculative_num_draft_tokens")
        shown = [key for key in sorted(info) if key in _SHOWN or key.startswith("speculative_")]
        settings = [f"{key}={info[key]}" for key in shown if info[key] not in (None, False, "")]
        return {
            "version": one_line(self.server.scrub(str(info.get("version", "unknown"))), 80),
            "command": [re.sub(r"[^\s=]*/", "", one_line(self.server.scrub(part), 120)) for part in settings],
            "weights": ServedWeights(format=one_line(str(info.get("quantization") or "hf"), 40), verified=False),
        }

    def reply(self, question: Question) -> IdReply:
        return _Reply(question, drafts=self.mode != PLAIN, timeout=self.options.timeout, proposes=self._proposes)


class _Reply(IdReply):
    """One answer. Events have all ids so far, or with --incremental-streaming-output only the new ones."""

    path = "/generate"

    def __init__(self, question: Question, *, proposes: int, **more: Any) -> None:
        super().__init__(question, **more)
        self._proposes = proposes
        self._meta: Mapping[str, Any] = {}  # of the last event
        sampling = {
            **sampling_of(question, no_top_k=-1),
            "max_new_tokens": question.budget,
            "stop_token_ids": sorted(question.stop_ids),
            "ignore_eos": not question.stop_ids,  # true would also ignore stop_token_ids
            "sampling_seed": question.seed,
            "stream_interval": 1,
            "repetition_penalty": 1.0,
        }
        self.body = {"input_ids": list(question.ids), "sampling_params": sampling, "stream": True}

    def take(self, at_ns: int, event: Any) -> Iterator[Arrival]:
        meta = event.get("meta_info") if isinstance(event, dict) else None
        if not isinstance(meta, dict) or not isinstance(event.get("output_ids"), list):
            raise EngineFault("it sent an event without output_ids and meta_info")
        self.check_prompt(meta.get("prompt_tokens"))
        ids, counted = event["output_ids"], whole_number(meta, "completion_tokens")
        new = ids[self.sent :] if len(ids) == counted else ids
        if self.sent + len(new) != counted:
            raise EngineFault(f"it sent {self.sent + len(new)} ids of {counted} tokens")
        self._meta = meta
        yield from self.arrival(at_ns, new)
        self.end(meta.get("finish_reason"))

    def counters(self) -> EngineCounters:
        meta, after = self._meta, self.sent - self.first_sent
        own = {key: float(meta[key]) for key in _ACCEPTANCE if isinstance(meta.get(key), (int, float))}
        verified = whole_number(meta, "spec_verify_ct")
        if not self._drafts or not verified:
            # Without counters each event is a forward, or several that were sent together.
            plain = after if not self._drafts else None if self.finished else self.steps - self.first_steps
            return EngineCounters(plain, own=own)
        accepted = whole_number(meta, "spec_num_correct_drafts")
        # Steps without verification, for example under load, emit one token each.
        forwards = max(verified, after - accepted)
        constant = self._proposes and "spec_cap_length" not in meta
        drafted = verified * (self._proposes - 1) if constant else None
        return EngineCounters(forwards, drafted, accepted, _histogram(meta, verified, accepted), own)


def _histogram(meta: Mapping[str, Any], verified: int, accepted: int) -> list[int] | None:
    """Verifications by accepted draft tokens; None if the server's list does not add up."""
    found = meta.get("spec_correct_drafts_histogram")
    if not isinstance(found, list) or any(type(each) is not int for each in found):
        return None
    whole = sum(found) == verified and sum(at * number for at, number in enumerate(found)) == accepted
    return list(found) if whole else None
