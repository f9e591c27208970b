"""Measure a ``trtllm-serve`` that the user runs, by URL, through ``/v1/completions`` without detokenisation.

Names and meanings of fields are those of TensorRT-LLM's source: tensorrt_llm/serve/openai_protocol.py at 0076e939 and
postprocess_handlers.py at 01bf1923. It reports a request's tokens per iteration, and whether it drafts, but not how.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from specbench.backends.completions import Completions
from specbench.backends.openai import version_of
from specbench.backends.protocol import PLAIN, Arrival, EngineCounters, Mode, Question
from specbench.backends.servers import by_url
from specbench.backends.servers.by_url import IdReply, UrlOptions, sampling_of
from specbench.common import EngineFault
from specbench.results import ServedWeights

_AVERAGE = "avg_decoded_tokens_per_iter"
_ACCEPTANCE = {_AVERAGE: "TensorRT-LLM's definition, tokens / iterations: the prompt's own iteration is included"}
_TRIED = "imitated: replies in the form of TensorRT-LLM's source, 01bf1923"


def _spec(help: str) -> Mode:
    return Mode(help, UrlOptions, measures=_ACCEPTANCE, tried=_TRIED)


class Backend(by_url.Backend):
    """A server that the user started for the row's mode."""

    name = "tensorrt-llm"
    title = "TensorRT-LLM"
    modes: ClassVar = {
        PLAIN: Mode("plain", UrlOptions, tried=_TRIED),
        "eagle3": _spec("an EAGLE-3 head (Eagle3DecodingConfig)"),
        "mtp": _spec("the model's own prediction layers (MTPDecodingConfig)"),
        "ngram": _spec("n-grams of the text (NGramDecodingConfig)"),
        "draft-target": _spec("a draft model (DraftTargetDecodingConfig)"),
        "spec": _spec("another speculative_config"),
    }

    def connect(self) -> Mapping[str, Any]:
        self._model = Completions(self.server, "", self.served.model).name
        return {"version": version_of(self.server), "weights": ServedWeights(format="hf", verified=False)}

    def answered(self) -> None:
        assert isinstance(self._reply, _Reply), "it has answered"
        if self.mode != PLAIN and not self._reply.averages:
            self.counts = "nothing"
        try:
            steps = self.server.json("/metrics")  # empty without its enable_iter_perf_stats
        except EngineFault:
            return
        if isinstance(steps, list) and steps and isinstance(steps[-1], dict):
            self.check_speculation("specDecodingStats" in steps[-1])

    def reply(self, question: Question) -> IdReply:
        return _Reply(question, self._model, drafts=self.mode != PLAIN, timeout=self.options.timeout)


class _Reply(IdReply):
    """One answer.

    Attributes:
        averages: tokens per iteration so far by the server; 0 if it does not report them.
    """

    path = "/v1/completions"

    def __init__(self, question: Question, model: str, **more: Any) -> None:
        super().__init__(question, **more)
        self.averages = 0.0
        self.body = {
            **sampling_of(question, no_top_k=0),
            "model": model,
            "prompt": list(question.ids),
            "max_tokens": question.budget,
            "stop_token_ids": sorted(question.stop_ids),
            "include_stop_str_in_output": True,  # also of stop_token_ids
            "ignore_eos": True,
            "detokenize": False,  # it sends either text or ids
            "seed": question.seed,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }

    def take(self, at_ns: int, event: Any) -> Iterator[Arrival]:
        choices = event.get("choices") if isinstance(event, dict) else None
        if not isinstance(choices, list) or not all(isinstance(each, dict) for each in choices[:1]):
            raise EngineFault("it sent an event that is not a completion")
        usage = event.get("usage")
        if isinstance(usage, dict):
            self.check_prompt(usage.get("prompt_tokens"))
        if not choices:
            return
        ids, average = choices[0].get("token_ids"), choices[0].get(_AVERAGE)
        if ids is None:
            raise EngineFault("it sends no token_ids; use a trtllm-serve that supports detokenize")
        after = self.sent + len(ids) if isinstance(ids, list) else 0
        if isinstance(average, (int, float)) and average >= 1:
            self.averages = float(average)
        # Its last iteration is not always counted, but each event has at least one of its own.
        yield from self.arrival(at_ns, ids, round(after / self.averages) if self.averages else 0)
        self.end(choices[0].get("finish_reason"))

    def counters(self) -> EngineCounters:
        if not self._drafts or not self.averages:
            return super().counters()
        return EngineCounters(self.steps - self.first_steps, own={_AVERAGE: self.averages})
