"""The decoder protocol: a method is its drafting, and nothing else (DESIGN §2).

The runner owns the loop, the stop rule, the clock and the count; the engine owns the forward, acceptance and the KV. A
decoder proposes a token tree, sees what the target said, and proposes the next one. One object serves one sequence.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

from specbench.common import Options, plugins
from specbench.decoding.tree import Branch, StepResult, TokenTree


@dataclass(frozen=True)
class Target:
    """What a method that brings a model of its own may know of the one it drafts for, once per run.

    Attributes:
        model: the transformers causal LM, on its device; not to be changed.
        name: as ``--model`` gave it.
        tokenizer: what its token ids mean.
        slots: sequences that are decoded at a time.
        capacity: tokens that each of them may reach.
        sampling: how next tokens are chosen at the moment, a :class:`specbench.engine.Sampling`.
        step_seconds: measured (rows, seconds) of steps of up to so many rows, rows ascending; stored as ``measured``.
        capture: makes a callable of device work that is launched again and again without a host read in between: a
            CUDA graph where the engine steps in graphs, the work itself elsewhere. It has run once when this returns.
        follow: takes device work that is launched behind each captured step with tapped layers, before the host has
            read what the step says: of :data:`specbench.engine.graphs.Follower`'s kind.
        at_close: takes what frees the device's memory that a method holds; called when the run's engine is closed.
        load: another model by a ``--model`` value, in the target's precision and on its device, as a
            :class:`specbench.models.LoadedModel`; a copy of its own at each call.
        engine: (model, rows of its largest step) -> an :class:`specbench.engine.Engine` for another model, with
            the slots, the capacity and the choice of kernels and graphs of the target's.
        attention: the backend that was asked for, one of :data:`specbench.engine.attention.choice.NAMES`.
        native: whether layers run by the engine's own code; None is where that can be had.
        products: weights of a draft head by (outputs, inputs) -> what multiplies its rows with them, as the target's
            products are computed; None is torch.
        note: takes what the run's record is to say of a draft head, such as which of its parts are kernels'.
        warn: takes a line that the user has to know, such as what a draft model was not made for; it is recorded.
        measured: (name, what takes seconds) -> the seconds by that name: taken once on this machine and stored, so that
            what is chosen by them is the same in every run.
        once: (key, what makes it) -> what was made for that key first: rows of a run that draft with the same weights
            load them once. Only one row decodes at a time.
    """

    model: Any
    name: str
    tokenizer: Any
    slots: int
    capacity: int
    sampling: Callable[[], Any]
    step_seconds: Callable[[int], Sequence[tuple[int, float]]]
    capture: Callable[[Callable[[], None]], Callable[[], None]]
    load: Callable[[str], Any]
    engine: Callable[[Any, int], Any]
    attention: str = "auto"
    native: bool | None = None
    follow: Callable[[Callable[[Any], None]], None] = lambda work: None
    at_close: Callable[[Callable[[], None]], None] = lambda work: None
    products: Callable[[Mapping[tuple[int, int], Sequence[Any]]], Any] = lambda weights: None
    note: Callable[[Mapping[str, Any]], None] = lambda facts: None
    warn: Callable[[str], None] = lambda line: None
    measured: Callable[[str, Callable[[], Any]], Any] = lambda name, take: take()
    once: Callable[[Hashable, Callable[[], Any]], Any] = lambda key, make: make()


@dataclass(frozen=True)
class Context:
    """What a decoder may know besides its tokens.

    Attributes:
        rng: source of random drafts, seeded per (seed, prompt, repeat): a run repeats exactly, and so does a method
            that runs under two labels.
        shared: what :meth:`Decoder.prepare` returned; None for a method that brings nothing.
        state: what the requests of a row hand on to each other, see :meth:`Decoder.state`; None for a method that
            begins each request anew.
        slot: of the target's, which the sequence has; None where no engine decodes.
    """

    vocab_size: int
    pad_id: int
    rng: random.Random
    shared: Any = None
    state: Any = None
    slot: int | None = None


class Decoder(ABC):
    """Drafts for one sequence. Base of the class in ``methods/<name>/decoder.py``, described by ``method.toml``."""

    #: Forwards of a draft model so far; stays 0 for methods that draft without one.
    draft_forwards: int = 0

    @abstractmethod
    def __init__(self, options: Any, context: Context) -> None: ...

    @staticmethod
    @abstractmethod
    def max_rows(options: Any) -> int:
        """Rows of the largest tree these options can draft, root included. Known before any model is loaded."""

    @staticmethod
    def top_k(options: Any) -> int:
        """How many of each row's best tokens the method wants to see in ``StepResult.top``; 0 is none."""
        return 0

    @staticmethod
    def own_noise(options: Any) -> bool:
        """Whether, above temperature 0, texts have AR's distribution and are not AR's: trees come with a proposal.

        Such a row is not compared with AR text by text. ``noise = "own"`` in ``method.toml`` says the same of all
        options.
        """
        return False

    @staticmethod
    def check(options: Any, model: str) -> None:
        """Refuse what is seen to be no use before any model is loaded, such as a missing draft model.

        Unlike what the options refuse, it is no error until the method is to run: ``Options()`` is always allowed.
        ``model``: the target as ``--model`` names it; empty where that is not known.
        """
        return None

    @staticmethod
    def prepare(options: Any, target: Target) -> Any:
        """Loads what all sequences of a run share, a draft model for one; None for a method that brings nothing."""
        return None

    @staticmethod
    def taps(options: Any, shared: Any) -> tuple[int, ...]:
        """Layers of the target, from 0, whose outputs the method wants to see in ``StepResult.hidden``."""
        return ()

    @staticmethod
    def weights(shared: Any) -> Mapping[str, str]:
        """Which weights the method brings, for the record: name, revision, fingerprint."""
        return {}

    @staticmethod
    def memory_bytes(shared: Any) -> int:
        """Bytes of what the method drafts with on the target's device: weights and KV cache; 0 for one without."""
        return 0

    @staticmethod
    def state(options: Any) -> Any:
        """What the requests of a row hand on to each other, new and empty: what was learnt from earlier answers.

        None, the default, is a method that begins each request anew. A row with a state depends on the order of its
        prompts, which its records say (``place``). It begins empty behind the warm-up and at every repeat, and where
        a run is resumed in its middle, it starts again.
        """
        return None

    def begin(self, prompt: Sequence[int]) -> TokenTree | None:
        """Takes the prompt; may return guesses to send along with it, as draft-only rows under its last token."""
        return None

    @abstractmethod
    def observe(self, result: StepResult) -> None:
        """Takes what a forward over the last tree decided, the prefill's first token included."""

    @abstractmethod
    def draft(self) -> TokenTree:
        """The next tree; its root is the last emitted token."""

    def instead(self, tree: TokenTree) -> None:
        """Another decoder's tree goes into the next forward, and the next :meth:`observe` is about that one.

        A method that has it, if only with nothing to do, can stand beside another one in a pair, see
        :mod:`specbench.decoding.pairs`. It sends no guesses along with a prompt.
        """
        raise NotImplementedError

    def matched(self) -> bool:
        """Whether the tree drafted last is worth more than that of the other one of a pair: the say of a retrieval.

        A method that has it takes a fallback.
        """
        raise NotImplementedError

    def end(self) -> None:  # noqa: B027  most methods hold nothing
        """The sequence is over, or was given up: what it holds of the shared things is free again."""

    def branches(self) -> Sequence[Branch]:
        """The best branch of each tree drafted, for methods whose drafts have scores; none for others.

        Asked for after the clock has stopped, like :meth:`measures`. A run asks the target about some of them and
        reports the gap between the two scores (:mod:`specbench.results.branches`). A branch without tokens, or whose
        score is not finite, is left out.
        """
        return ()

    def measures(self, kept: int, stopped: bool) -> Mapping[str, float]:
        """Figures of the method's own about one finished request, by the names of ``[measures]`` in ``method.toml``.

        Asked for after the clock has stopped. A run reports each one's mean over requests.

        ``kept``: tokens of the answer, up to and including its stop; ``stopped``: the answer ended by itself, not at
        the budget.
        """
        return {}


@dataclass(frozen=True)
class Method:
    """A method with its options, ready to make decoders. Its code is a guest's, see :mod:`specbench.common.plugins`.

    Attributes:
        label: how a run names it; the name, unless one method runs with several settings.
        lossless: whether it claims to emit what AR emits.
        shared: what its sequences share, once :meth:`ready` has loaded it.
        own_noise: at a temperature above 0 it draws with noise of its own, so that only the distribution of its texts
            can be AR's, and not the texts.
        origin: "specbench" or the distribution that brought it.

    Raises:
        PluginFault: from all that asks its code: it raised, or ended the command.
    """

    name: str
    label: str
    options: Options
    lossless: bool
    decoder: Any
    measures: Mapping[str, str] = field(default_factory=dict)
    shared: Any = None
    own_noise: bool = False
    origin: str = "specbench"

    @property
    def who(self) -> str:
        """How an error names it."""
        return f"method '{self.name}' (from {self.origin})"

    @property
    def max_rows(self) -> int:
        """Rows of its largest tree."""
        with plugins.plugin_call(self.who):
            return _count("max_rows", self.decoder.max_rows(self.options), least=1)

    @property
    def top_k(self) -> int:
        """Best tokens of each row that its decoders ask for."""
        with plugins.plugin_call(self.who):
            return _count("top_k", self.decoder.top_k(self.options))

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers of the target whose outputs its decoders ask for."""
        with plugins.plugin_call(self.who):
            return tuple(_count("tap", layer) for layer in self.decoder.taps(self.options, self.shared))

    @property
    def weights(self) -> Mapping[str, str]:
        """Which weights it brings."""
        with plugins.plugin_call(self.who):
            found = dict(self.decoder.weights(self.shared))
            for name, value in found.items():
                if not (isinstance(name, str) and isinstance(value, str)):
                    raise plugins.Refused(f"its weights are {name!r:.40}: {value!r:.40}, where texts are needed")
            return found

    @property
    def memory_bytes(self) -> int:
        """Bytes of what it drafts with."""
        with plugins.plugin_call(self.who):
            return _count("memory_bytes", self.decoder.memory_bytes(self.shared))

    def new_state(self) -> Any:
        """What its requests hand on to each other, empty; None of a method that begins each one anew."""
        with plugins.plugin_call(self.who):
            return self.decoder.state(self.options)

    @property
    def stateful(self) -> bool:
        """Whether its requests hand something on to each other."""
        return self.new_state() is not None

    def check(self, model: str) -> None:
        """Refuses what can be seen to be no use before a model is loaded, see :meth:`Decoder.check`."""
        with plugins.plugin_call(self.who):
            self.decoder.check(self.options, model)

    def ready(self, target: Target) -> Method:
        """The method with what its sequences share, for one run on one target."""
        with plugins.plugin_call(self.who):
            return replace(self, shared=self.decoder.prepare(self.options, target))

    def new(self, context: Context) -> Decoder:
        """A decoder for one sequence."""
        with plugins.plugin_call(self.who):
            decoder: Decoder = self.decoder(self.options, replace(context, shared=self.shared))
        return decoder


def _count(what: str, found: Any, least: int = 0) -> int:
    """A count that a method's code returned."""
    if isinstance(found, bool) or not isinstance(found, Integral) or found < least:
        raise plugins.Refused(f"its {what} is {str(found)[:40]}, which is no whole number of {least} or more")
    return int(found)
