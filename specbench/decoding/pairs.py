"""Pairs: two methods that draft for one request, retrieval where it matches and the other one where it does not.

``--set suffix.fallback=recycling`` and ``--set jetspec.retrieve=suffix`` make one: the value names the other method, as
the command line does, with its options behind it: ``"recycling budget=32 warm=true"``. Neither method knows the other:
each drafts, or is told what goes into the forward in its place, and sees what came of it (SAM-Decoding, Hu et al. 2024,
§3.3; the hybrid of Arctic Inference).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import StringConstraints

from specbench.common import Options, UsageError, option
from specbench.decoding.protocol import Context, Decoder, Method, Target
from specbench.decoding.tree import Branch, StepResult, TokenTree

#: Option of a retrieving method, and of one that takes a retrieval; the name of the other method is its value.
Role = Literal["fallback", "retrieve"]
FALLBACK: Role = "fallback"
RETRIEVE: Role = "retrieve"

#: Type of either option: a method as the command line names it, with its options behind it.
MethodName = Annotated[str, StringConstraints(min_length=1)]


def fallback_option(when: str) -> Any:
    """The option of a retrieving method that names another one for where it does not match, in words."""
    return option(None, help=f"method that drafts {when}, as recycling; its options may stand behind it")


def retrieve_option() -> Any:
    """The option of a method that takes a retrieving one."""
    return option(None, help="method that looks text up and drafts first where it matches, as suffix")


#: The pair's own figure.
RETRIEVED = "retrieved"
MEASURES: Mapping[str, str] = {RETRIEVED: "share of forwards whose drafts were retrieved"}


@dataclass(frozen=True)
class Other:
    """The other method of a pair as it was written."""

    role: Role
    name: str
    raw: Mapping[str, str]


def paired_method(options: Options, owner: str) -> Other | None:
    """What an option names as the other method; None where none is named."""
    every: tuple[Role, ...] = (FALLBACK, RETRIEVE)
    roles = [role for role in every if getattr(options, role, None)]
    if not roles:
        return None
    if len(roles) > 1:
        raise UsageError(f"{owner}.{FALLBACK} and {owner}.{RETRIEVE} make two pairs; keep one")
    written = str(getattr(options, roles[0]))
    where = f"option '{roles[0]}' of {owner}"
    try:
        words = shlex.split(written)
    except ValueError as error:  # a quotation without its end
        raise UsageError(f"{where}: {error}; write a method and its options, as in 'recycling budget=32'") from error
    if not words:
        raise UsageError(f"{where} names nothing; write a method and its options, as in 'recycling budget=32'")
    name, *settings = words
    raw: dict[str, str] = {}
    for setting in settings:
        option, equals, value = setting.partition("=")
        if not equals or option in raw or option in (FALLBACK, RETRIEVE):
            raise UsageError(f"{where}: {setting!r} is no option of {name}, or is there twice; write OPTION=VALUE")
        raw[option] = value
    return Other(roles[0], name, raw)


def pair_methods(method: Method, other: Method, role: Role) -> Method:
    """A method whose drafts are its own or those of ``other``, which its option ``role`` names."""
    retrieval, drafter = (method, other) if role == FALLBACK else (other, method)
    if type(retrieval.decoder).__name__ == "Pair" or type(drafter.decoder).__name__ == "Pair":
        raise UsageError(f"{method.name}.{role}={other.name} is a pair of a pair; name a method alone")
    if not _has(retrieval, "matched"):
        raise UsageError(f"{method.name}.{role}: {retrieval.name} retrieves nothing; name a method that looks text up")
    for each in (retrieval, drafter):
        if not _has(each, "instead"):
            raise UsageError(
                f"{method.name}.{role}: {each.name} cannot be paired with another method; name a method that can"
            )
    return replace(
        method,
        options=method.options.model_copy(update={role: written(other)}),
        lossless=method.lossless and other.lossless,
        decoder=Pair(retrieval, drafter, owner=0 if role == FALLBACK else 1),
        measures={**retrieval.measures, **drafter.measures, **MEASURES},
        own_noise=method.own_noise or other.own_noise,
    )


def written(method: Method) -> str:
    """A method with all of its options, as an option's value: a record says what a pair was made of."""
    values = method.options.model_dump(mode="json")
    said = {name: value for name, value in values.items() if value is not None}
    parts = [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in said.items()]
    return shlex.join([method.name, *parts])


def _has(method: Method, what: str) -> bool:
    return getattr(method.decoder, what, None) is not getattr(Decoder, what)


@dataclass(frozen=True)
class _Shared:
    """Both methods with what their sequences share."""

    retrieval: Method
    drafter: Method


class Pair:
    """What stands where a method's class of decoders does."""

    def __init__(self, retrieval: Method, drafter: Method, owner: int) -> None:
        self._retrieval, self._drafter, self._owner = retrieval, drafter, owner
        self._both = retrieval, drafter

    def max_rows(self, options: Options) -> int:
        """Of the larger one, the owner with these options."""
        owner, other = self._both[self._owner], self._both[1 - self._owner]
        return max(replace(owner, options=options).max_rows, other.max_rows)

    def top_k(self, options: Options) -> int:
        """Of the one that wants more; the other one takes what it needs of it."""
        return max(each.top_k for each in self._both)

    def check(self, options: Options, model: str) -> None:
        """Both."""
        for each in self._both:
            each.check(model)

    def prepare(self, options: Options, target: Target) -> _Shared:
        """Both."""
        return _Shared(self._retrieval.ready(target), self._drafter.ready(target))

    def taps(self, options: Options, shared: _Shared | None) -> tuple[int, ...]:
        """The drafter's: what looks text up reads no layers."""
        return (shared.drafter if shared else self._drafter).taps

    def weights(self, shared: _Shared | None) -> Mapping[str, str]:
        """Both's; those of the retrieval under its role where the drafter has some of the same name."""
        if shared is None:
            return {}
        own = shared.drafter.weights
        found = shared.retrieval.weights.items()
        return {**{f"{RETRIEVE}_{name}" if name in own else name: value for name, value in found}, **own}

    def memory_bytes(self, shared: _Shared | None) -> int:
        """Both's."""
        return shared.retrieval.memory_bytes + shared.drafter.memory_bytes if shared else 0

    def state(self, options: Options) -> tuple[Any, Any] | None:
        """Both's; None where neither has one."""
        states = self._retrieval.new_state(), self._drafter.new_state()
        return None if states == (None, None) else states

    def __call__(self, options: Options, context: Context) -> PairedDecoder:
        shared: _Shared = context.shared or _Shared(*self._both)
        states = context.state or (None, None)
        retrieval = shared.retrieval.new(replace(context, state=states[0]))
        drafter = shared.drafter.new(replace(context, state=states[1]))
        return PairedDecoder(retrieval, drafter, frozenset(self._drafter.measures))


@dataclass
class PairedDecoder(Decoder):
    """The decoders of a pair for one sequence."""

    retrieval: Decoder
    drafter: Decoder
    drafter_measures: frozenset[str]  # of one name's figures the drafter's are the row's, in every request
    _forwards: int = 0
    _drafted: list[int] = field(default_factory=list)  # forwards, from 0, whose tree was the drafter's

    @staticmethod
    def max_rows(options: Any) -> int:
        raise NotImplementedError("a pair's rows are asked of the pair")

    @property
    def draft_forwards(self) -> int:  # type: ignore[override]
        return self.retrieval.draft_forwards + self.drafter.draft_forwards

    def begin(self, prompt: Sequence[int]) -> None:
        for each in (self.retrieval, self.drafter):
            if each.begin(prompt) is not None:
                raise ValueError("a method of a pair sends no guesses along with a prompt")

    def observe(self, result: StepResult) -> None:
        self.retrieval.observe(result)
        self.drafter.observe(result)

    def draft(self) -> TokenTree:
        tree = self.retrieval.draft()
        if len(tree) > 1 and self.retrieval.matched():
            self.drafter.instead(tree)
        else:
            tree = self.drafter.draft()
            self.retrieval.instead(tree)
            self._drafted.append(self._forwards)
        self._forwards += 1
        return tree

    def end(self) -> None:
        self.retrieval.end()
        self.drafter.end()

    def branches(self) -> Sequence[Branch]:
        """The drafter's, which counts its own trees."""
        return [replace(branch, step=self._drafted[branch.step]) for branch in self.drafter.branches()]

    def measures(self, kept: int, stopped: bool) -> Mapping[str, float]:
        looked_up = self.retrieval.measures(kept, stopped)
        own = {name: value for name, value in looked_up.items() if name not in self.drafter_measures}
        own |= self.drafter.measures(kept, stopped)
        if self._forwards:
            own[RETRIEVED] = 1 - len(self._drafted) / self._forwards
        return own
