"""Interface that another engine implements to be a row of a run.

A run starts an engine or connects to it, sends the token ids of a prompt, and gets the answer's ids as they arrive.
Arrival times are taken outside of the engine. The run's stop rule ends an answer: the engine gets the budget, and the
stop ids if it supports them; tokens after the end are an error.
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
    """Options of every engine's rows."""

    dtype: Precision = option("auto", help="precision of the weights: float32, bfloat16, float16; auto is the run's")
    timeout: float = option(
        120.0, help="seconds without a token after which the engine counts as stalled", gt=0, le=86400
    )
    start_timeout: float = option(900.0, help="most seconds for starting the engine", gt=0, le=86400)


@dataclass(frozen=True)
class Mode:
    """One way in which an engine decodes; a row is written ENGINE:MODE.

    Attributes:
        lossless: whether it claims to emit plain decoding's tokens.
        measures: the engine's own figures of a request: names -> descriptions.
        tried: "run: " and the engine's version, "imitated: " and whose replies our tests imitate, or "".
    """

    help: str
    options: type[EngineOptions] = EngineOptions
    lossless: bool = True
    measures: Mapping[str, str] = field(default_factory=dict)
    tried: str = ""


@dataclass(frozen=True)
class Served:
    """Settings with which an engine serves a row.

    Attributes:
        model: the run's model; the engine gets its weights, and its tokenizer reads text answers.
        dtype: precision of the row's weights: "float32", "bfloat16" or "float16".
        capacity: tokens of the longest prompt and its answer.
        url: URL of a server that the user runs; None if the engine is started here.
        together: sequences that the engine shall decode at once.
        apart: context manager in which the run's model is as transformers created it, for an engine in this process.
    """

    label: str
    model: LoadedModel
    dtype: str
    threads: int
    capacity: int
    url: str | None = None
    together: int = 1
    apart: Callable[[], AbstractContextManager[Any]] = nullcontext


@dataclass(frozen=True)
class Question:
    """One prompt to answer.

    Attributes:
        budget: most tokens of the answer.
        temperature: 0 is greedy.
        top_k: 0 is off.
        top_p: 1 is off.
        ended: token ids so far -> whether the answer has ended by the run's full stop rule, stop strings included; for
            an engine in this process, which the run cannot interrupt while it decodes.
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
    """Tokens of an answer that arrived together.

    Attributes:
        at_ns: arrival time, on the clock of ``time.perf_counter_ns``.
        ids: token ids; empty if the engine only sends text.
        text: text, from an engine that sends no ids.
    """

    at_ns: int
    ids: Sequence[int]
    text: str = ""


@dataclass(frozen=True)
class EngineCounters:
    """An engine's own counters of its last request; None for those that it does not report.

    Attributes:
        forwards: target forwards after the first arrival, including those without a draft, for everything that it sent.
            None if every arrival is a forward.
        histogram: forwards that verified a draft, by number of accepted draft tokens, from 0 up.
        own: further figures under the engine's own names, see :attr:`Mode.measures`.
        finish: why a text answer ended, since its tokens cannot be counted here as the engine counts them.
    """

    forwards: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    histogram: Sequence[int] | None = None
    own: Mapping[str, float] = field(default_factory=dict)
    finish: Literal["stop", "length"] | None = None


class Several(ABC):
    """Requests that an engine answers at the same time. One thread uses it, and waits only in :meth:`poll`."""

    @abstractmethod
    def submit(self, question: Question) -> int:
        """Send a prompt and return the request's number; does not wait for the engine."""

    @abstractmethod
    def poll(self, seconds: float) -> Sequence[tuple[int, Arrival | None]]:
        """Wait for tokens, at most some seconds; return (request, arrival), with None for the end of an answer.

        Raises EngineFault if the engine died, sent nothing for :attr:`EngineOptions.timeout` although requests run, or
        sent something invalid.
        """

    @abstractmethod
    def give_up(self, number: int) -> None:
        """Abort a request; :meth:`poll` returns nothing of it any more."""

    @abstractmethod
    def counters(self, number: int) -> EngineCounters:
        """Return the counters of a request that has ended or was given up, and forget the request."""

    @abstractmethod
    def close(self, wait: bool = True) -> None:
        """Abort all requests and return when the engine is idle; at once without ``wait``, for one that failed."""


class Backend(ABC):
    """Another engine, decoding in one mode. Base of the class ``Backend`` of each module in this package.

    The constructor starts nothing. Errors are raised as an EngineFault with one line that begins with "it" or "its" and
    does not name the row, since the row's name is put in front. One request runs at a time, or several by
    :meth:`several`, but never both.
    """

    #: Name of the engine for people.
    title: ClassVar[str]

    #: By the part of a row's name after the colon; the first mode is without speculation.
    modes: ClassVar[Mapping[str, Mode]]

    #: Whether it can or must be a server that the user runs.
    by_url: ClassVar[Literal["no", "can be", "has to be"]] = "no"

    #: Whether :meth:`several` works.
    answers_several: ClassVar[bool] = False

    #: Whether the engine gets the stop ids and ends answers at them; for a server it is known after the start.
    knows_stop_ids: bool = True

    def __init__(self, mode: str, options: Any, served: Served) -> None:
        self.mode, self.options, self.served = mode, options, served

    @classmethod
    def version(cls, options: Any) -> str | None:
        """Return the installed version without starting the engine; None if it is only known after the start."""
        return None

    @abstractmethod
    def start(self) -> EngineFacts:
        """Start the engine or connect to it, and return its facts when it is ready for requests."""

    @abstractmethod
    def ask(self, question: Question) -> Iterator[Arrival]:
        """Send a prompt at the first ``next`` and yield the tokens as they arrive.

        Closing the iterator aborts the request and returns when the engine is idle again.
        """

    @abstractmethod
    def counters(self) -> EngineCounters:
        """Return the counters of the last request, after its iterator has ended or is closed."""

    def several(self) -> Several:
        """Return an interface for requests that are answered at the same time; the engine is started."""
        raise NotImplementedError

    def processes(self) -> Sequence[int]:
        """Return the ids of the engine's processes without their children; empty for a server by URL."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Stop the engine and its processes; a second call does nothing."""
