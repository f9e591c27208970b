"""A run that goes on where it was stopped: warm before its first request, its stretches numbered on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from conversations import plan, prepared, said
from toys import toy

from specbench.common.prompt import Prompt
from specbench.decoding.protocol import Method
from specbench.results.schema import RequestRecord
from specbench.runner import execution
from specbench.runner.loop import Request

METHODS = (toy(label="ar"), toy(label="mine"))
PROMPTS = [Prompt(f"p{number}", "one", True) for number in range(3)]


class Session:
    """Answers each request in a stretch of the number it was given, and keeps what it was asked to do."""

    methods = METHODS

    def __init__(self) -> None:
        self.done: list[str] = []

    def warm_up(self, prepared: Any) -> None:
        self.done.append("warm")

    def report(self) -> dict[str, Any]:
        return {}

    def decode(self, method: Method, requests: Sequence[Request], number: int) -> Iterator[RequestRecord]:
        for request in requests:
            self.done.append(f"{method.label} {request.prompt_id}")
            yield said(method.label, request).model_copy(update={"segment": number})


def decoded(before: Sequence[RequestRecord]) -> tuple[list[str], list[RequestRecord]]:
    """What a session did in a folder that holds some requests, and all records."""
    session, progress = Session(), execution.Silent()
    folder = SimpleNamespace(records=lambda: iter(before), log=SimpleNamespace(append=lambda line: None))
    made: Any = plan(METHODS)
    records = execution._decode(made, [session], prepared(PROMPTS), folder, progress, bool(before))  # type: ignore[list-item,arg-type]
    return session.done, records


@pytest.mark.parametrize("done", range(7))
def test_it_is_warm_before_its_first_request_and_numbers_its_stretches_on_however_many_are_done(done: int) -> None:
    _, whole = decoded([])
    assert [one.segment for one in whole] == list(range(6))
    did, records = decoded(whole[:done])
    assert did[:1] == ["warm"] * (done < 6), "what is done once would be paid for by the request that comes first"
    assert did.count("warm") == (done < 6), "nothing is warmed up where nothing is left"
    assert len(did) == (1 + 6 - done if done < 6 else 0)
    assert [one.request_id for one in records] == [one.request_id for one in whole]
    assert len({one.segment for one in records}) == 6, "times of one stretch share a clock, and no others do"
