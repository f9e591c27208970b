"""The decoder protocol: the interface that a method implements, which only covers drafting.

The runner has the loop, the stop rule, the clock and the counters; the engine has the forward, acceptance and the KV
cache. A decoder proposes a token tree, gets the target's result, and proposes the next tree. Each sequence has its own
decoder object.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

from specbench.common import Options, UsageError, plugins
from specbench.decoding.tree import Branch, StepResult, TokenTree, TypicalAcceptance


def _chosen_mask(chosen: int | None) -> int:
    if chosen is None:
        raise UsageError("cannot fill masked blocks here: the mask token is not known; set the option mask")
    return chosen


@dataclass(frozen=True)
class Target:
    """The target and its engine, passed once per run to methods that have weights of their own.

    Attributes:
        model: the transformers causal LM on its device; must not be changed.
        name: value of ``--model``.
        tokenizer: the target's tokenizer.
        slots: number of sequences that are decoded together.
        capacity: most tokens of a sequence.
        sampling: returns the current :class:`specbench.engine.Sampling`.
        step_seconds: (rows, context) -> measured (rows, seconds), ascending, of steps in which all ``slots`` sequences
            have trees of up to so many rows after ``context`` tokens (0: the usual 512); stored like ``measured``.
        capture: wraps device work that is launched repeatedly without a host read in between: returns a CUDA graph's
            launch if the engine uses graphs, else the work itself. The work has run once when this returns.
        follow: registers device work to launch after each captured step with tapped layers, before the host has read
            the step's result; see :data:`specbench.engine.graphs.Follower`.
        at_close: registers a function that frees the method's device memory; called when the run's engine is closed.
        load: loads another model by a ``--model`` value, in the target's precision and on its device, as a
            :class:`specbench.models.LoadedModel`; a new copy in each call.
        engine: (model, rows of its largest step) -> an :class:`specbench.engine.Engine` for another model, with the
            target's slots, capacity, and choice of kernels and graphs.
        attention: attention backend that the user chose, one of :data:`specbench.engine.attention.choice.NAMES`.
        native: whether layers run in the engine's own code; None means where it is available.
        products: weights of a draft head by (outputs, inputs) -> functions that multiply rows with them, computed like
            the target's products; None is torch.
        note: adds facts on a draft head to the run's record, such as which of its parts use kernels.
        warn: shows and records a warning, for example that a draft model was made for another target.
        measured: (name, function that measures) -> the result stored under that name: measured once on this machine, so
            that choices based on it are the same in every run.
        mask_token: the id that the user chose, or None -> the id of the mask token; raises UsageError if it has none.
        once: (key, function that creates) -> the object created first for that key, so that rows of a run with the same
            weights load them once. Only one row decodes at a time.
    """

    model: Any
    name: str
    tokenizer: Any
    slots: int
    capacity: int
    sampling: Callable[[], Any]
    step_seconds: Callable[..., Sequence[tuple[int, float]]]
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
    mask_token: Callable[[int | None], int] = _chosen_mask
    once: Callable[[Hashable, Callable[[], Any]], Any] = lambda key, make: make()


@dataclass(frozen=True)
class Context:
    """Information for a decoder in addition to its tokens.

    Attributes:
        vocab_size: token ids are below this.
        pad_id: the target's padding token.
        rng: source of random drafts, seeded per (seed, prompt, repeat), so that runs are repeatable and a method gets
            the same numbers under two labels.
        shared: result of :meth:`Decoder.prepare`; None for a method without shared objects.
        state: state that requests of a row pass on to later ones, see :meth:`Decoder.state`; None for a stateless
            method.
        slot: the sequence's slot in the target's engine; None if no engine decodes.
        budget: most tokens of the answer; 0 if it is not known.
        stops: token ids that end the answer.
    """

    vocab_size: int
    pad_id: int
    rng: random.Random
    shared: Any = None
    state: Any = None
    slot: int | None = None
    budget: int = 0
    stops: Collection[int] = ()


class Decoder(ABC):
    """Drafter for one sequence. Base of the class in ``methods/<name>/decoder.py``, described by ``method.toml``."""

    #: Forwards of a draft model so far; stays 0 for methods that draft without one.
    draft_forwards: int = 0

    @abstractmethod
    def __init__(self, options: Any, context: Context) -> None: ...

    @staticmethod
    @abstractmethod
    def max_rows(options: Any) -> int:
        """Return the rows of the largest tree with these options, root included; called before a model is loaded."""

    @staticmethod
    def top_k(options: Any) -> int:
        """Return how many of each row's best tokens the method needs in ``StepResult.top``."""
        return 0

    @staticmethod
    def own_noise(options: Any) -> bool:
        """Return whether the method's trees have proposals: above temperature 0, only the texts' distribution is AR's.

        Such a row is not compared with AR text by text. ``noise = "own"`` in ``method.toml`` declares this for all
        options.
        """
        return False

    @staticmethod
    def acceptance(options: Any) -> TypicalAcceptance | None:
        """Return the rule that replaces exact acceptance above temperature 0; None, the default, keeps texts AR's.

        A method with such a rule is not lossless, whatever its ``method.toml`` says.
        """
        return None

    @staticmethod
    def check(options: Any, model: str) -> None:
        """Refuse options that cannot work, such as a missing draft model, before any model is loaded.

        Called only for methods that will run, unlike the validation in the options' class, which must accept
        ``Options()``. ``model``: the target's ``--model`` value, or empty if it is not known.
        """
        return None

    @staticmethod
    def prepare(options: Any, target: Target) -> Any:
        """Load the objects that all sequences of a run share, such as a draft model; None if there are none."""
        return None

    @staticmethod
    def taps(options: Any, shared: Any) -> tuple[int, ...]:
        """Return the indices, from 0, of target layers whose outputs the method needs in ``StepResult.hidden``.

        The number of layers stands for the last hidden state after the final norm, which the LM head reads.
        """
        return ()

    @staticmethod
    def weights(shared: Any) -> Mapping[str, str]:
        """Return the record of the method's own weights: name, revision, fingerprint."""
        return {}

    @staticmethod
    def memory_bytes(shared: Any) -> int:
        """Return the bytes of the method's own weights and KV cache on the target's device."""
        return 0

    @staticmethod
    def state(options: Any) -> Any:
        """Return a new, empty state that the requests of a row pass on, for drafting from earlier answers.

        None, the default, is a stateless method. With a state, results depend on the order of prompts, which the
        records contain (``place``). The state is new after the warm-up, at every repeat, and when a run is resumed.
        """
        return None

    def begin(self, prompt: Sequence[int]) -> TokenTree | None:
        """Take the prompt; may return guesses to verify with it, as draft-only rows under its last token."""
        return None

    @abstractmethod
    def observe(self, result: StepResult) -> None:
        """Take the result of the forward over the last tree, or of the prefill, which emits the first token."""

    @abstractmethod
    def draft(self) -> TokenTree:
        """Return the next tree; its root is the last emitted token."""

    def instead(self, tree: TokenTree) -> None:
        """Handle that another decoder's tree goes into the next forward, whose result the next :meth:`observe` gets.

        A method that implements this, even as a no-op, can be part of a pair (:mod:`specbench.decoding.pairs`) and can
        stop drafting (:func:`~specbench.decoding.limits.stop_option`); ``tree`` is then the root alone. In a pair, its
        :meth:`begin` must not return guesses.
        """
        raise NotImplementedError

    def matched(self) -> bool:
        """Return whether the last drafted tree should be used, instead of the tree of the other method in a pair.

        Retrieval methods implement this; it lets them take the option ``fallback``.
        """
        raise NotImplementedError

    def end(self) -> None:  # noqa: B027  most methods hold nothing
        """Release the sequence's share of shared objects; called when it is finished or abandoned."""

    def branches(self) -> Sequence[Branch]:
        """Return the best branch of each drafted tree, for methods whose drafts have scores.

        Called after the clock has stopped, like :meth:`measures`. A run scores some of the branches with the target and
        reports the gap between the two scores (:mod:`specbench.results.branches`). Branches without tokens, or with a
        score that is not finite, are ignored.
        """
        return ()

    def measures(self, kept: int, stopped: bool) -> Mapping[str, float]:
        """Return the method's own figures of a finished request, by the names of ``[measures]`` in ``method.toml``.

        Called after the clock has stopped. A run reports the mean of each figure over requests.

        ``kept``: tokens of the answer, up to and including its stop; ``stopped``: whether the answer ended by itself
        instead of at the token budget.
        """
        return {}


@dataclass(frozen=True)
class Method:
    """A method with its options, which creates decoders. Its code may be a plug-in's: :mod:`specbench.common.plugins`.

    Attributes:
        label: name in the run; differs from ``name`` if one method runs with several settings.
        lossless: whether the method claims to emit AR's tokens.
        decoder: the decoder class.
        measures: names of the method's own figures -> descriptions.
        shared: objects that its sequences share, loaded by :meth:`ready`.
        own_noise: above temperature 0 it samples with noise of its own, so that only the distribution of its texts is
            AR's.
        acceptance: rule that accepts drafts above temperature 0, if it is not exact; then the method is not lossless.
        origin: "specbench", or the Python distribution that has the plug-in.

    Raises:
        PluginFault: from every property or method that calls the plug-in's code, if this raises or exits.
    """

    name: str
    label: str
    options: Options
    lossless: bool
    decoder: Any
    measures: Mapping[str, str] = field(default_factory=dict)
    shared: Any = None
    own_noise: bool = False
    acceptance: TypicalAcceptance | None = None
    origin: str = "specbench"

    @property
    def who(self) -> str:
        """Name of the method in error messages."""
        return f"method '{self.name}' (from {self.origin})"

    @property
    def max_rows(self) -> int:
        """Rows of the method's largest tree."""
        with plugins.plugin_call(self.who):
            return _count("max_rows", self.decoder.max_rows(self.options), least=1)

    @property
    def fills(self) -> bool:
        """Whether its decoders fill masked blocks (:mod:`specbench.decoding.fill`) instead of drafting trees."""
        return callable(getattr(self.decoder, "fill", None))

    def rows_in(self, text: int) -> int:
        """Rows of the method's largest step in a text of so many tokens, prompt and answer together."""
        with plugins.plugin_call(self.who):
            return int(self.decoder.pass_rows(self.options, text)) if self.fills else self.max_rows

    @property
    def entropy(self) -> bool:
        """Whether its decoders, which fill blocks, need entropies."""
        with plugins.plugin_call(self.who):
            return bool(self.decoder.entropy(self.options))

    @property
    def top_k(self) -> int:
        """Number of best tokens of each row that the decoders need."""
        with plugins.plugin_call(self.who):
            return _count("top_k", self.decoder.top_k(self.options))

    @property
    def taps(self) -> tuple[int, ...]:
        """Target layers whose outputs the decoders need."""
        with plugins.plugin_call(self.who):
            return tuple(_count("tap", layer) for layer in self.decoder.taps(self.options, self.shared))

    @property
    def weights(self) -> Mapping[str, str]:
        """Record of the method's own weights."""
        with plugins.plugin_call(self.who):
            found = dict(self.decoder.weights(self.shared))
            for name, value in found.items():
                if not (isinstance(name, str) and isinstance(value, str)):
                    raise plugins.Refused(f"its weights have {name!r:.40}: {value!r:.40}; both must be strings")
            return found

    @property
    def memory_bytes(self) -> int:
        """Bytes of the method's own weights and KV cache."""
        with plugins.plugin_call(self.who):
            return _count("memory_bytes", self.decoder.memory_bytes(self.shared))

    def new_state(self) -> Any:
        """Return a new state for the requests of a row; None for a stateless method."""
        with plugins.plugin_call(self.who):
            return self.decoder.state(self.options)

    @property
    def stops(self) -> bool:
        """Whether requests draft only while that is faster than plain steps."""
        return bool(getattr(self.options, "stop", False))

    @property
    def stateful(self) -> bool:
        """Whether requests of a row share a state."""
        return self.new_state() is not None

    def check(self, model: str) -> None:
        """Refuse options that cannot work before a model is loaded, see :meth:`Decoder.check`."""
        with plugins.plugin_call(self.who):
            self.decoder.check(self.options, model)

    def ready(self, target: Target) -> Method:
        """Return the method with the shared objects loaded, for one run on one target."""
        with plugins.plugin_call(self.who):
            return replace(self, shared=self.decoder.prepare(self.options, target))

    def new(self, context: Context) -> Decoder:
        """Return a decoder for one sequence."""
        with plugins.plugin_call(self.who):
            decoder: Decoder = self.decoder(self.options, replace(context, shared=self.shared))
        return decoder


def _count(what: str, found: Any, least: int = 0) -> int:
    """Check a count that a method's code returned."""
    if isinstance(found, bool) or not isinstance(found, Integral) or found < least:
        raise plugins.Refused(f"its {what} is {str(found)[:40]} and must be a whole number of at least {least}")
    return int(found)
