"""One answer that a server streams: its request, and its events turned into arrivals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from specbench.backends.protocol import Arrival, EngineCounters
from specbench.backends.streaming import Lost, Server


class Reply(ABC):
    """A request to a server and what has arrived of its answer.

    Attributes:
        path: where the request is posted.
        body: its JSON content.
        finished: whether the server has reported the end of the answer.
    """

    path: str
    body: Mapping[str, Any]
    finished = False

    @abstractmethod
    def take(self, at_ns: int, event: Any) -> Iterator[Arrival]:
        """Yield the arrivals that an event completes, usually one.

        Raises EngineFault if the event is invalid.
        """

    def counters(self) -> EngineCounters:
        """Return the counters of the request, after its end or when it was given up."""
        return EngineCounters()


def asked(server: Server, reply: Reply) -> Iterator[Arrival]:
    """Post a request and yield its arrivals; closing the iterator closes the connection.

    Raises EngineFault, see :meth:`Server.events` and :meth:`Reply.take`; or Lost if the answer has no end.
    """
    with closing(server.events(reply.path, reply.body)) as events:
        for at_ns, event in events:
            yield from reply.take(at_ns, event)
            if reply.finished:
                return
    raise Lost("its connection was lost in the middle of an answer")
