"""Tokens per forward as publications count them: pooled, averaged over answers, with or without the prefill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from specbench.analysis.stats.ratio import Ratio
    from specbench.results import RequestRecord

_DRAWS = 2_000


class Counted(NamedTuple):
    """A request's counts, from which every definition is computed."""

    sample: str  # the prompt as it was sampled
    group: str  # first part of the category
    decoded: int  # tokens after the first arrival
    first: int  # tokens of the first arrival
    overshoot: int  # accepted after the stop or beyond the budget
    forwards: int  # after the prefill
    ended: bool  # with a stop token or stop string, not at the budget

    @classmethod
    def of(cls, record: RequestRecord) -> Counted:
        """The counts of a finished request."""
        return cls(
            record.sample, record.category.partition("/")[0], record.decoded_tokens, record.first_tokens,
            record.overshoot_tokens, record.target_forwards, record.finish_reason == "stop",
        )  # fmt: skip


@dataclass(frozen=True)
class Counting:
    """A definition: tokens of an answer over its forwards, and how answers are averaged.

    ``over``: "answers" is the mean of the answers' own ratios, "inverse" the inverse of their mean forwards per token.
    """

    words: str
    over: Literal["all", "answers", "inverse"] = "all"
    prefill: bool = False  # the prefill and its token count as a forward
    overshoot: bool = False  # tokens after the stop or beyond the budget count
    ended: bool = False  # only answers that ended

    def of(self, counted: Iterable[Counted]) -> Ratio | None:
        """The figure with its 95% bootstrap interval over prompts; None without forwards or tokens."""
        from specbench.analysis.stats.ratio import paired_ratio  # numpy: listing claims does not need it

        samples, tokens, forwards = [], [], []
        for one in counted:
            top = float(one.decoded + self.prefill * one.first + self.overshoot * one.overshoot)
            below = float(one.forwards + self.prefill)
            if (self.ended and not one.ended) or not below or (self.over == "inverse" and not top):
                continue
            if self.over != "all":  # then a pooled ratio of these is the mean over answers
                top, below = (top / below, 1.0) if self.over == "answers" else (1.0, below / top)
            samples.append(one.sample)
            tokens.append(top)
            forwards.append(below)
        if not sum(tokens):
            return None
        ones = [1.0] * len(tokens)
        return paired_ratio((ones, ones), (forwards, tokens), seed=0, draws=_DRAWS, clusters=samples)


#: Names of ``tpf_is`` in the catalog of published figures, and of ``--definitions papers`` -> definition.
PAPERS: Mapping[str, Counting] = {
    "pooled": Counting("tokens after the first / forwards after the prefill, all answers: specbench's TPF"),
    "per-answer": Counting("the same of each answer; mean over answers", over="answers"),
    "per-ended-answer": Counting("mean over the answers that ended before the budget", over="answers", ended=True),
    "jacobi-forcing": Counting(
        "tokens - 1 over forwards: inverse of the mean forwards per token, answers that ended before the budget only",
        over="inverse",
        ended=True,
    ),
    "with-prefill": Counting(
        "tokens / forwards, the prefill and its token included: Spec-Bench's #MAT of AR, PLD and lookahead, and "
        "lookahead's compression ratio",
        prefill=True,
    ),
    "rounds": Counting(
        "JetSpec's and EAGLE's τ, #MAT of trees: accepted + 1 pooled over rounds; tokens after the stop or the budget "
        "also count",
        overshoot=True,
    ),
}

#: Definitions of publications that cannot be computed from a run -> why.
UNLIKE: Mapping[str, str] = {
    "unknown": "the publication does not say how it counts",
    "standard-sampling": "counted with standard speculative sampling, the target's own token included",
}
