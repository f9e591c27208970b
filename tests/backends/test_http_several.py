"""Many requests at once over HTTP: times, order, connections, and every way in which a server may fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from itertools import pairwise
from typing import Any

import pytest
from support.engines import (
    WRONG_ANSWERS,
    Completing,
    begin,
    completing,
    dribbles,
    event,
    listening,
    not_whole,
    silent,
    status,
    whole,
)
from support.load_server import MODEL, load_server
from support.wording import wording

from specbench.backends import Arrival, EngineCounters, Question, Served, Several
from specbench.backends.completions import Completion, Completions
from specbench.backends.http_several import HttpSeveral
from specbench.backends.streaming import Server
from specbench.backends.vllm_options import MODES
from specbench.backends.vllm_server import VllmServer
from specbench.common import EngineFault
from specbench.common.options import parse_options


def connect(url: str, timeout: float = 10) -> HttpSeveral:
    completions = Completions(Server(url, timeout), "m", MODEL)
    return HttpSeveral(completions.server, lambda question: Completion(completions, question))


def question(budget: int = 4) -> Question:
    return Question([1, 2, 3], budget, frozenset())


def finish(several: Several, wanted: int) -> dict[int, list[Arrival]]:
    found: dict[int, list[Arrival]] = {}
    ended = 0
    until = time.monotonic() + 20
    while ended < wanted:
        assert time.monotonic() < until
        for number, arrival in several.poll(1):
            found.setdefault(number, [])
            if arrival is None:
                ended += 1
            else:
                found[number].append(arrival)
    return found


def test_answers_arrive_side_by_side() -> None:
    with load_server(events=4, gap=0.05) as server:
        several = connect(server.url)
        numbers = [several.submit(question()) for _ in range(3)]
        began = time.perf_counter_ns()
        found = finish(several, 3)
        assert {*found} == {*numbers}
        for arrivals in found.values():
            assert [each.ids for each in arrivals] == [(0,), (1,), (2,), (3,)]
            gaps = [later.at_ns - earlier.at_ns for earlier, later in pairwise(arrivals)]
            assert all(0.03e9 < gap < 0.5e9 for gap in gaps)
        assert time.perf_counter_ns() - began < 1.5e9
        several.close()


def test_connections_are_used_again() -> None:
    with load_server(events=2, gap=0.001) as server:
        several = connect(server.url)
        for _ in range(5):
            several.submit(question())
            finish(several, 1)
            several.poll(0.2)  # the body's end, after which the connection is free
        assert server.connections() == 1
        several.close()


def test_a_closed_free_connection_is_replaced() -> None:
    with load_server(events=1, gap=0.0, closes_idle=0.05) as server:
        several = connect(server.url)
        for _ in range(3):
            several.submit(question())
            assert len(finish(several, 1)) == 1
            time.sleep(0.15)
        assert server.connections() == 3
        several.close()


def test_a_given_up_request_closes_its_connection() -> None:
    with completing() as server:
        several = connect(server.url)
        number = several.submit(Question([1], 10_000_000, frozenset()))
        while not several.poll(1):
            pass
        several.give_up(number)
        assert several.counters(number).forwards is None
        assert server.left.wait(10)
        assert several.poll(0.05) == []
        several.close()


def test_a_slow_reader_of_a_long_request_does_not_block() -> None:
    with load_server(events=1, gap=0.0) as server:
        several = connect(server.url)
        several.submit(Question([7] * 2_000_000, 1, frozenset()))
        assert len(finish(several, 1)) == 1
        several.close()


def _stalls(server: Completing, handler: BaseHTTPRequestHandler) -> None:
    begin(handler)
    event(handler, {"choices": [{"text": "a", "token_ids": [1], "finish_reason": None}]})
    server.over.wait(20)


def _no_end(server: Completing, handler: BaseHTTPRequestHandler) -> None:
    begin(handler)
    event(handler, {"choices": [{"text": "a", "token_ids": [1], "finish_reason": None}]})
    handler.wfile.write(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    "wrong",
    [
        *WRONG_ANSWERS,
        _stalls,
        _no_end,
        lambda server, handler: not_whole(handler, "zz"),
        lambda server, handler: whole(handler, 429, b'{"error": {"message": "slow down"}}'),
    ],
)
def test_each_failure_is_one_sentence(wrong: Callable[[Completing, BaseHTTPRequestHandler], Any]) -> None:
    with completing() as server:
        server.stream = lambda handler, asked: wrong(server, handler)
        several = connect(server.url, timeout=0.4)
        several.submit(question())
        several.submit(question())
        with pytest.raises(EngineFault, check=wording) as fault:
            finish(several, 2)
        assert "\n" not in str(fault.value)
        several.close()


@pytest.mark.parametrize("drafted", [6, -1, None])
def test_vllm_counts_the_drafts_of_each_request(drafted: int | None) -> None:
    counts = {"num_draft_tokens": drafted, "num_accepted_draft_tokens": 2, "acceptance_histogram": [1, 0, 1]}

    def stream(handler: BaseHTTPRequestHandler, asked: Any) -> None:
        assert asked["stream_options"] == {"include_usage": True}
        begin(handler)
        for ids, finish_reason in (([1], None), ([2, 3, 4], None), ([5], "length")):
            event(handler, {"choices": [{"text": "a", "token_ids": ids, "finish_reason": finish_reason}]})
        metrics = {} if drafted is None else {"metrics": {"speculative_decoding": counts}}
        event(handler, {"choices": [], "usage": {"completion_tokens": 5}, **metrics})

    with completing(stream=stream) as server:
        served = Served("vllm:ngram", MODEL, "float32", 2, 256, url=server.url)
        options = parse_options(MODES["ngram"].options, {"model": "m"}, "vllm:ngram")
        several = VllmServer("ngram", options, served).several()
        number = several.submit(question(5))
        assert [arrival.ids for arrival in finish(several, 1)[number]] == [(1,), (2, 3, 4), (5,)]
        if drafted == -1:
            with pytest.raises(EngineFault):
                several.counters(number)
        else:
            expected = EngineCounters(2, 6, 2, [1, 0, 1]) if drafted else EngineCounters(2)
            assert several.counters(number) == expected
        several.close()


@pytest.mark.parametrize("act", [silent, dribbles(b"", b"x"), dribbles(status(200), b": comment\n")])
def test_a_server_without_tokens_has_stalled(act: Any) -> None:
    with listening(act) as port:
        several = connect(f"http://127.0.0.1:{port}", timeout=0.4)
        several.submit(question())
        began = time.monotonic()
        with pytest.raises(EngineFault):
            finish(several, 1)
        assert time.monotonic() - began < 3
        several.close()


def test_no_server_listens() -> None:
    with load_server(events=1, gap=0.0) as server:
        url = server.url
    several = connect(url, timeout=2)
    several.submit(question())
    with pytest.raises(EngineFault, match="cannot be reached"):
        finish(several, 1)
    several.close()


def test_a_killed_server_is_one_sentence() -> None:
    with load_server(events=1000, gap=0.01) as server:
        several = connect(server.url)
        for _ in range(4):
            several.submit(question(1000))
        several.poll(1)
        threading.Timer(0.1, server.kill).start()
        with pytest.raises(EngineFault):
            finish(several, 4)
        several.close()
