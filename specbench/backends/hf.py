"""Run transformers' ``generate`` in this process, on the run's own model with transformers' attention.

Its streamer gets the tokens of every forward immediately, so each arrival is a forward. Candidates and matches are
counted in ``CandidateGenerator.update_candidate_strategy``, which transformers calls once per step. The first forward
of prompt lookup verifies candidates together with the prompt and is not a decode step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, ClassVar, Literal

from specbench.backends import protocol
from specbench.backends.protocol import PLAIN, Arrival, EngineCounters, EngineOptions, Mode, Question
from specbench.common import EngineFault, SpecbenchError, option
from specbench.results import EngineFacts, ServedWeights, acceptance_histogram

_MEASURES = {"matches_per_step": "matches per forward with candidates, as update_candidate_strategy gets them"}

_RUN = "run: transformers 5.23.0"


class Plain(EngineOptions):
    """Options of every mode."""

    cache: Literal["dynamic", "static"] = option("dynamic", help="transformers' KV cache; dynamic is its default")


class Lookup(Plain):
    """Options of prompt lookup."""

    num_tokens: int = option(10, "k", help="candidates per step (prompt_lookup_num_tokens)", ge=1, le=1024)
    max_ngram: int = option(2, help="longest n-gram to look up (max_matching_ngram_size)", ge=1, le=64)


class Assisted(Plain):
    """Options of assisted generation."""

    model: str = option("", help="draft model, a value of --model; must have the target's vocabulary")
    num_tokens: int = option(20, "k", help="candidates per step (num_assistant_tokens)", ge=1, le=1024)
    schedule: Literal["constant", "heuristic"] = option(
        "constant", help="schedule of k (num_assistant_tokens_schedule)"
    )
    confidence: float = option(
        0.4, help="drafting stops below this confidence (assistant_confidence_threshold)", ge=0, le=1
    )


@dataclass
class _Steps:
    """Records of a request's forwards; also the streamer that ``generate`` calls."""

    at_ns: list[int] = field(default_factory=list)
    ids: list[list[int]] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    matched: list[int] = field(default_factory=list)

    def put(self, value: Any) -> None:
        """Take the prompt at the first call, then the tokens of each forward; part of the streamer interface."""
        self.at_ns.append(time.perf_counter_ns())
        self.ids.append(value.reshape(-1).tolist())

    def end(self) -> None:
        """Do nothing; part of the streamer interface."""


class Backend(protocol.Backend):
    """transformers' ``generate``."""

    title = "transformers generate"
    modes: ClassVar = {
        PLAIN: Mode("plain", Plain, tried=_RUN),
        "pld": Mode("prompt lookup", Lookup, measures=_MEASURES, tried=_RUN),
        "assisted": Mode("a draft model", Assisted, measures=_MEASURES, tried=_RUN),
    }

    _assistant: Any = None
    _counters = EngineCounters()

    @classmethod
    def version(cls, options: Any) -> str:
        return version("transformers")

    def start(self) -> EngineFacts:
        began = time.monotonic()
        loaded, options = self.served.model, self.options
        own = str(loaded.model.dtype).removeprefix("torch.")
        if self.served.dtype != own:
            raise EngineFault(f"it decodes with the run's own model, in {own}; give --dtype {self.served.dtype}")
        if self.mode == "assisted":
            if not options.model:
                raise EngineFault(f"it needs a draft model; give --set {self.served.label}.model=NAME")
            from specbench.models import load

            try:
                self._assistant = load(options.model, dtype=own, device=str(loaded.model.device)).model
            except SpecbenchError as error:
                raise EngineFault(f"its draft model: {error}") from error
        for _ in self.ask(Question([loaded.pad_id], 2, frozenset())):
            pass
        return EngineFacts(
            engine="hf",
            version=self.version(options),
            how="in process",
            command=[f"{name}={value}" for name, value in sorted(self._how().items()) if name != "assistant_model"],
            dtype=own,
            weights=ServedWeights(
                format="the run's own", fingerprint=loaded.spec.fingerprint, verified=True, sha256=None
            ),
            counts="forwards",
            start_s=time.monotonic() - began,
        )

    def ask(self, question: Question) -> Iterator[Arrival]:
        """Decode the whole answer at the first ``next``, then yield the recorded arrivals.

        Handling tokens in between would take time from the engine, which runs in the same process.
        """
        steps = self._generate(question)
        accepted = [found for drafted, found in zip(steps.drafted, steps.matched, strict=False) if drafted]
        own = {"matches_per_step": sum(accepted) / len(accepted)} if accepted else {}
        self._counters = EngineCounters(
            draft_tokens=sum(steps.drafted),
            accepted_tokens=sum(accepted),
            histogram=acceptance_histogram(accepted),
            own=own,
        )
        for at_ns, ids in zip(steps.at_ns[1:], steps.ids[1:], strict=True):  # the first put is the prompt
            yield Arrival(at_ns, ids)

    def counters(self) -> EngineCounters:
        return self._counters

    def close(self) -> None:
        self._assistant = None

    def _generate(self, question: Question) -> _Steps:
        import torch
        from transformers import GenerationConfig

        model, steps = self.served.model.model, _Steps()
        config = GenerationConfig(
            max_new_tokens=question.budget,
            eos_token_id=sorted(question.stop_ids) or None,
            pad_token_id=self.served.model.pad_id,
            **self._sampling(question),
            **{name: value for name, value in self._how().items() if name != "assistant_model"},
        )
        prompt = torch.tensor([list(question.ids)], device=model.device)

        def ended(ids: Any, scores: Any) -> Any:
            done = question.ended(ids[0, len(question.ids) :].tolist())
            return torch.tensor([done], device=ids.device)

        devices = [model.device] if model.device.type == "cuda" else []
        with self.served.apart(), _bare(model), _counted(model, steps), torch.random.fork_rng(devices=devices):
            torch.manual_seed(question.seed)
            with torch.inference_mode():
                model.generate(
                    prompt,
                    attention_mask=torch.ones_like(prompt),
                    generation_config=config,
                    streamer=steps,
                    stopping_criteria=[ended],
                    assistant_model=self._assistant,
                )
        return steps

    def _how(self) -> dict[str, Any]:
        """Return the options under ``generate``'s names."""
        found: dict[str, Any] = {}
        if self.options.cache == "static":
            found["cache_implementation"] = "static"
        if self.mode == "pld":
            found |= {
                "prompt_lookup_num_tokens": self.options.num_tokens,
                "max_matching_ngram_size": self.options.max_ngram,
            }
        if self.mode == "assisted":
            found |= {
                "num_assistant_tokens": self.options.num_tokens,
                "num_assistant_tokens_schedule": self.options.schedule,
                "assistant_confidence_threshold": self.options.confidence,
            }
        return found

    @staticmethod
    def _sampling(question: Question) -> dict[str, Any]:
        """Return all sampling settings explicitly; otherwise transformers would use its defaults, such as top-k 50."""
        if question.temperature == 0:
            return {"do_sample": False}
        return {
            "do_sample": True,
            "temperature": question.temperature,
            "top_k": question.top_k,
            "top_p": question.top_p,
        }


@contextmanager
def _bare(model: Any) -> Iterator[None]:
    """Remove the model's own generation configuration, which may contain a repetition penalty, for a while."""
    from transformers import GenerationConfig

    own = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own


@contextmanager
def _counted(model: Any, steps: _Steps) -> Iterator[None]:
    """Record the candidates and matches of candidate generators that the model creates within the ``with`` block."""
    plain = model._get_candidate_generator

    def made(*args: Any, **named: Any) -> Any:
        generator = plain(*args, **named)
        propose, learn = generator.get_candidates, generator.update_candidate_strategy

        def proposed(ids: Any, *more: Any, **others: Any) -> Any:
            found: Sequence[Any] = propose(ids, *more, **others)
            steps.drafted.append(found[0].shape[1] - ids.shape[1])
            return found

        def learnt(ids: Any, scores: Any, matches: Any) -> Any:
            steps.matched.append(int(matches))
            return learn(ids, scores, matches)

        generator.get_candidates, generator.update_candidate_strategy = proposed, learnt
        return generator

    model._get_candidate_generator = made
    try:
        yield
    finally:
        del model._get_candidate_generator
