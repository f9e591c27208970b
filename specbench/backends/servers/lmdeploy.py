"""Measure an LMDeploy ``api_server`` that the user runs, by URL, through its own endpoint ``/generate``.

Names and meanings of fields are those of lmdeploy 0.18.0. An answer's events have only its tokens, so drafts are those
of the server's ``/metrics`` between requests, one at a time. Stop tokens of its model also end an answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from specbench.backends.protocol import PLAIN, Arrival, EngineCounters, Mode, Question
from specbench.backends.servers import by_url, prometheus
from specbench.backends.servers.by_url import IdReply, UrlOptions, sampling_of
from specbench.backends.streaming import Refused
from specbench.common import EngineFault
from specbench.results import ServedWeights

_ACCEPTANCE = {"mean_accept_length": "LMDeploy's definition, 1 + accepted draft tokens / drafts"}
_TRIED = "imitated: replies in the form of lmdeploy 0.18.0's source"
_COUNTERS = {
    "lmdeploy:generation_tokens_total": "tokens",
    "lmdeploy:spec_decode_num_drafts_total": "drafts",
    "lmdeploy:spec_decode_num_draft_tokens_total": "draft_tokens",
    "lmdeploy:spec_decode_num_accepted_tokens_total": "accepted_tokens",
}
_SETTLING_S, _POLL_S = 2.0, 0.01  # its counters are written by a thread of their own


def _spec(help: str) -> Mode:
    return Mode(help, UrlOptions, measures=_ACCEPTANCE, tried=_TRIED)


class Backend(by_url.Backend):
    """A server that the user started for the row's mode: it tells whether it speculates, but not how."""

    name = "lmdeploy"
    title = "LMDeploy"
    modes: ClassVar = {
        PLAIN: Mode("plain", UrlOptions, tried=_TRIED),
        "eagle": _spec("an EAGLE head"),
        "eagle3": _spec("an EAGLE-3 head"),
        "mtp": _spec("the model's own prediction layers (deepseek_mtp, qwen3_5_mtp, hy3_mtp)"),
        "dflash": _spec("a DFlash drafter"),
    }

    _before: Mapping[str, float]

    def connect(self) -> Mapping[str, Any]:
        speculates = self._speculates()
        if speculates is not None:
            self.check_speculation(speculates)
        self._before = prometheus.counters(self.server, _COUNTERS)
        return {"weights": ServedWeights(format="hf", verified=False)}

    def _speculates(self) -> bool | None:
        """Send a request that it refuses in any mode, for a reason that depends on the mode; None for other reasons."""
        try:
            for _ in self.server.events("/generate", {"input_ids": [0], "logprob_start_len": 0}):
                return None
        except Refused as error:
            if "speculative decoding" in str(error):
                return True
            if "return_logprob=True" in str(error) or "PyTorch hybrid engine" in str(error):
                return False
        except EngineFault:
            pass
        return None

    def answered(self) -> None:
        if self.mode != PLAIN and not self._counted():
            self.counts = "nothing"

    def reply(self, question: Question) -> IdReply:
        return _Reply(question, drafts=self.mode != PLAIN, timeout=self.options.timeout)

    def counters(self) -> EngineCounters:
        """Return the counters of the last request; of one that was given up only its forwards are known."""
        reply, counted = self._reply, self._counted() if self.mode != PLAIN else {}
        if reply is None or not counted or not counted["drafts"]:
            return super().counters()
        drafts, drafted, accepted = (int(counted[key]) for key in ("drafts", "draft_tokens", "accepted_tokens"))
        return EngineCounters(drafts, drafted, accepted, own={"mean_accept_length": 1 + accepted / drafts})

    def _counted(self) -> Mapping[str, float]:
        """Return by how much the counters grew with the last request; empty if other tokens are included."""
        until = time.monotonic() + _SETTLING_S
        sent = self._reply.sent if self._reply is not None and self._reply.finished else -1
        while True:
            after = prometheus.counters(self.server, _COUNTERS)
            grown = {key: after[key] - self._before.get(key, 0.0) for key in after}
            whole = len(grown) == len(_COUNTERS) and grown["tokens"] == sent
            if whole or not after or sent < 0 or time.monotonic() > until:
                self._before = after
                return grown if whole else {}
            time.sleep(_POLL_S)


class _Reply(IdReply):
    """One answer. A stop token arrives in the last event, after the other tokens of its step."""

    path = "/generate"

    def __init__(self, question: Question, **more: Any) -> None:
        super().__init__(question, **more)
        self.body = {
            **sampling_of(question, no_top_k=0),
            "input_ids": list(question.ids),
            "max_tokens": question.budget,
            "stop_token_ids": sorted(question.stop_ids),
            "include_stop_str_in_output": True,
            "ignore_eos": False,  # true would suppress the model's stop tokens
            "repetition_penalty": 1.0,
            "min_p": 0.0,
            "stream": True,
        }

    def take(self, at_ns: int, event: Any) -> Iterator[Arrival]:
        meta = event.get("meta_info") if isinstance(event, dict) else None
        if not isinstance(meta, dict):
            raise EngineFault("it sent an event without output_ids and meta_info")
        self.check_prompt(meta.get("prompt_tokens"))
        yield from self.arrival(at_ns, event.get("output_ids"))
        self.end(meta.get("finish_reason"))
