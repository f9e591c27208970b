"""Combine two methods for one request: a retrieval method drafts where it finds a match, the other method elsewhere.

``--set suffix.fallback=recycling`` and ``--set jetspec.retrieve=suffix`` define a pair: the value is the other method's
name and its options, such as ``"recycling budget=32 warm=true"``. The methods do not know each other: each one either
drafts or gets the tree that is verified instead of its own, and then sees the result (SAM-Decoding, Hu et al. 2024,
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

#: Names of the option that defines a pair: of a retrieval method, and of a method that takes a retrieval method.
Role = Literal["fallback", "retrieve"]
FALLBACK: Role = "fallback"
RETRIEVE: Role = "retrieve"
_OF_THE_PAIR = (FALLBACK, RETRIEVE, "stop")  # options that only the method which names the other has

#: Type of either option: a method's name on the command line, followed by its options.
MethodName = Annotated[str, StringConstraints(min_length=1)]


def fallback_option(when: str) -> Any:
    """Return the option ``fallback`` of a retrieval method; ``when`` describes for its help when it does not match."""
    return option(None, help=f"method that drafts {when}, such as recycling; its options may follow")


def retrieve_option() -> Any:
    """Return the option ``retrieve`` of a method that can be combined with a retrieval method."""
    return option(None, help="retrieval method that drafts instead where it finds a match, such as suffix")


#: Figure that a pair adds to those of its methods.
RETRIEVED = "retrieved"
MEASURES: Mapping[str, str] = {RETRIEVED: "share of forwards whose drafts were retrieved"}


@dataclass(frozen=True)
class Other:
    """The other method of a pair, as the option names it."""

    role: Role
    name: str
    raw: Mapping[str, str]


def paired_method(options: Options, owner: str) -> Other | None:
    """Parse the option that names the other method; None if it is not set."""
    every: tuple[Role, ...] = (FALLBACK, RETRIEVE)
    roles = [role for role in every if getattr(options, role, None)]
    if not roles:
        return None
    if len(roles) > 1:
        raise UsageError(f"cannot set both {owner}.{FALLBACK} and {owner}.{RETRIEVE}: a pair has two methods; keep one")
    written = str(getattr(options, roles[0]))
    where = f"option '{roles[0]}' of {owner}"
    try:
        words = shlex.split(written)
    except ValueError as error:  # unbalanced quotes
        raise UsageError(
            f"cannot read {where}: {error}; write a method and its options, such as 'recycling budget=32'"
        ) from error
    if not words:
        raise UsageError(
            f"cannot read {where}: it is empty; write a method and its options, such as 'recycling budget=32'"
        )
    name, *settings = words
    raw: dict[str, str] = {}
    for setting in settings:
        option, equals, value = setting.partition("=")
        if not equals or option in raw or option in _OF_THE_PAIR:
            raise UsageError(
                f"cannot read {where}: {setting!r} is not an option of {name} or is given twice; write OPTION=VALUE"
            )
        raw[option] = value
    return Other(roles[0], name, raw)


def pair_methods(method: Method, other: Method, role: Role) -> Method:
    """Return a method that drafts itself or with ``other``, which its option ``role`` names."""
    retrieval, drafter = (method, other) if role == FALLBACK else (other, method)
    if type(retrieval.decoder).__name__ == "Pair" or type(drafter.decoder).__name__ == "Pair":
        raise UsageError(
            f"cannot set {method.name}.{role}={other.name}: one of them is a pair already; name a single method"
        )
    if not _has(retrieval, "matched"):
        raise UsageError(
            f"cannot set {method.name}.{role}={other.name}: {retrieval.name} is not a retrieval method; name one that "
            "is, such as suffix"
        )
    for each in (retrieval, drafter):
        if not _has(each, "instead"):
            raise UsageError(
                f"cannot set {method.name}.{role}={other.name}: {each.name} does not support pairs; name another method"
            )
    return replace(
        method,
        options=method.options.model_copy(update={role: written(other)}),
        lossless=method.lossless and other.lossless,
        decoder=Pair(retrieval, drafter, owner=0 if role == FALLBACK else 1),
        measures={**retrieval.measures, **drafter.measures, **MEASURES},
        own_noise=method.own_noise or other.own_noise,
        acceptance=method.acceptance or other.acceptance,
    )


def written(method: Method) -> str:
    """Return a method with all its options as an option's value, so that the record contains the whole pair."""
    values = method.options.model_dump(mode="json")
    given = {name: value for name, value in values.items() if value is not None and name not in _OF_THE_PAIR}
    parts = [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in given.items()]
    return shlex.join([method.name, *parts])


def _has(method: Method, what: str) -> bool:
    return getattr(method.decoder, what, None) is not getattr(Decoder, what)


@dataclass(frozen=True)
class _Shared:
    """Both methods with their shared objects loaded."""

    retrieval: Method
    drafter: Method


class Pair:
    """Stand-in for the decoder class of a method that is a pair; has the same static interface."""

    def __init__(self, retrieval: Method, drafter: Method, owner: int) -> None:
        self._retrieval, self._drafter, self._owner = retrieval, drafter, owner
        self._both = retrieval, drafter

    def max_rows(self, options: Options) -> int:
        """Return the larger of both methods' rows, the owner's with these options."""
        owner, other = self._both[self._owner], self._both[1 - self._owner]
        return max(replace(owner, options=options).max_rows, other.max_rows)

    def top_k(self, options: Options) -> int:
        """Return the larger number; the other method uses only its first entries."""
        return max(each.top_k for each in self._both)

    def check(self, options: Options, model: str) -> None:
        """Check both methods."""
        for each in self._both:
            each.check(model)

    def prepare(self, options: Options, target: Target) -> _Shared:
        """Load the shared objects of both methods."""
        return _Shared(self._retrieval.ready(target), self._drafter.ready(target))

    def taps(self, options: Options, shared: _Shared | None) -> tuple[int, ...]:
        """Return the drafter's taps; retrieval methods read no layers."""
        return (shared.drafter if shared else self._drafter).taps

    def weights(self, shared: _Shared | None) -> Mapping[str, str]:
        """Return both methods' weights; the retrieval's get a prefix if the drafter has the same name."""
        if shared is None:
            return {}
        own = shared.drafter.weights
        found = shared.retrieval.weights.items()
        return {**{f"{RETRIEVE}_{name}" if name in own else name: value for name, value in found}, **own}

    def memory_bytes(self, shared: _Shared | None) -> int:
        """Return the sum of both methods' bytes."""
        return shared.retrieval.memory_bytes + shared.drafter.memory_bytes if shared else 0

    def state(self, options: Options) -> tuple[Any, Any] | None:
        """Return both methods' states, or None if both are stateless."""
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
    drafter_measures: frozenset[str]  # names of the drafter's figures, which replace the retrieval's of the same name
    _forwards: int = 0
    _drafted: list[int] = field(default_factory=list)  # forwards, from 0, that verified the drafter's tree

    @staticmethod
    def max_rows(options: Any) -> int:
        raise NotImplementedError("call max_rows of the Pair")

    @property
    def draft_forwards(self) -> int:  # type: ignore[override]
        return self.retrieval.draft_forwards + self.drafter.draft_forwards

    def begin(self, prompt: Sequence[int]) -> None:
        for each in (self.retrieval, self.drafter):
            if each.begin(prompt) is not None:
                raise ValueError("a method in a pair must not return guesses from begin")

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

    def instead(self, tree: TokenTree) -> None:
        self.retrieval.instead(tree)
        self.drafter.instead(tree)

    def end(self) -> None:
        self.retrieval.end()
        self.drafter.end()

    def branches(self) -> Sequence[Branch]:
        """Return the drafter's branches, with the number of its own trees converted to that of all forwards."""
        return [replace(branch, step=self._drafted[branch.step]) for branch in self.drafter.branches()]

    def measures(self, kept: int, stopped: bool) -> Mapping[str, float]:
        looked_up = self.retrieval.measures(kept, stopped)
        own = {name: value for name, value in looked_up.items() if name not in self.drafter_measures}
        own |= self.drafter.measures(kept, stopped)
        if self._forwards:
            own[RETRIEVED] = 1 - len(self._drafted) / self._forwards
        return own
