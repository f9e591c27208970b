"""What another engine has to be able to do to be a row of a run.

An engine is started or connected to, takes a prompt's token ids and yields its answer's as they arrive; arrival times
are noted outside of it. The run's rule ends an answer: the engine gets the budget and, where it takes them, the stop
ids; anything it sends after the end is a fault.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from specbench.common import Options, option
from specbench.results import PLAIN as PLAIN
from specbench.results import EngineFacts

if TYPE_CHECKING:
    from specbench.models import LoadedModel

Precision = Literal["auto", "float32", "bfloat16", "float16"]


class EngineOptions(Options):
    """Options that the rows of every engine have."""

    dtype: Precision = option("auto", help="precision of the weights: float32, bfloat16, float16; auto is the run's")
    timeout: float = option(120.0, help="seconds without a token after which it counts as stalled", gt=0, le=86400)
    start_timeout: float = option(900.0, help="seconds that it may take to start", gt=0, le=86400)


@dataclass(frozen=True)
class Mode:
    """One way in which an engine decodes; a row is written ENGINE:MODE.

    Attributes:
        lossless: it claims to emit what plain decoding emits.
        measures: the engine's own figures of a request, by its own names, with what they are.
    """

    help: str
    options: type[EngineOptions] = EngineOptions
    lossless: bool = True
    measures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Served:
    """What a row is served with.

    Attributes:
        model: of the run; its weights are what an engine is given, its tokenizer what reads text back.
        dtype: of the row's weights: "float32", "bfloat16" or "float16".
        capacity: tokens of the longest prompt and its answer.
        url: of a server that the user runs; None where it is started here.
        apart: in it the run's model is as transformers made it, for an engine in this process.
    """

    label: str
    model: LoadedModel
    dtype: str
    threads: int
    capacity: int
    url: str | None = None
    apart: Callable[[], AbstractContextManager[Any]] = nullcontext


@dataclass(frozen=True)
class Question:
    """One prompt to answer.

    Attributes:
        budget: tokens of the answer at most.
        temperature: 0 is greedy.
        top_k: 0 is off.
        top_p: 1 is off.
        ended: whether an answer that begins so has ended, by the run's whole rule, stop strings included: for an engine
            in this process, which cannot be told so while it decodes.
    """

    ids: Sequence[int]
    budget: int
    stop_ids: frozenset[int]
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    ended: Callable[[Sequence[int]], bool] = lambda ids: False


@dataclass(frozen=True)
class Arrival:
    """Tokens of an answer that came together.

    Attributes:
        at_ns: when they were here, on the clock of ``time.perf_counter_ns``.
        ids: token ids; empty where the engine sends text only.
        text: of an engine that sends no ids.
    """

    at_ns: int
    ids: Sequence[int]
    text: str = ""


@dataclass(frozen=True)
class EngineCounters:
    """What an engine says of the request that it answered last. None is what it does not say.

    Attributes:
        forwards: target forwards behind the first arrival, those without a draft included, as this engine counts them
            or as it follows from its counters; for all that it sent. Where every arrival is a forward it is None.
        own: further figures under the engine's own names, see :attr:`Mode.measures`.
        finish: how an answer in text ended by itself, of which nobody here can count the tokens as the engine did.
    """

    forwards: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    own: Mapping[str, float] = field(default_factory=dict)
    finish: Literal["stop", "length"] | None = None


class Backend(ABC):
    """Another engine, decoding in one mode. Base of the class ``Backend`` of each module in this room.

    Nothing is started by making one. What goes wrong is raised as an EngineFault of one sentence, without the row's
    name, which is put before it. One request runs at a time.
    """

    #: What people call it.
    title: ClassVar[str]

    #: By the part of a row's label behind the colon; the first is without speculation.
    modes: ClassVar[Mapping[str, Mode]]

    #: Whether it can be a server that the user runs, and whether it has to be one.
    by_url: ClassVar[Literal["no", "can be", "has to be"]] = "no"

    #: Whether it is told the ids that end an answer, and ends it there by itself; of a server it is known once started.
    told_stop_ids: bool = True

    def __init__(self, mode: str, options: Any, served: Served) -> None:
        self.mode, self.options, self.served = mode, options, served

    @classmethod
    def version(cls, options: Any) -> str | None:
        """The version that is installed here, found without starting it; None where that is not known before."""
        return None

    @abstractmethod
    def start(self) -> EngineFacts:
        """Starts it, or connects to it, and gives back what it is when it takes requests."""

    @abstractmethod
    def ask(self, question: Question) -> Iterator[Arrival]:
        """Sends a prompt at the first ``next`` and yields what arrives. Closing the iterator gives the request up, and
        returns when the engine is idle again."""

    @abstractmethod
    def told(self) -> EngineCounters:
        """About the last request, once its iterator has ended or is closed."""

    def processes(self) -> Sequence[int]:
        """Numbers of the processes that it was started as, whose children are its own too; none by URL."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Ends it and its processes; a second call does nothing."""
