"""Events over HTTP: when they were here, and every way in which a server may not send them."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from support.engines import WRONG_ANSWERS, Completing, begin, completing, event, whole
from support.wording import wording

from specbench.backends.streaming import Refused, Server
from specbench.common import UsageError
from specbench.common.errors import EngineFault

Wrong = Callable[[Completing, BaseHTTPRequestHandler], object]


def read(server: Completing, timeout: float = 10, key_env: str = "") -> list[tuple[int, Any]]:
    return list(Server(server.url, timeout, key_env).events("/v1/completions", {"x": 1}))


def test_events_have_the_time_at_which_they_were_here() -> None:
    def stream(handler: BaseHTTPRequestHandler, asked: Any) -> None:
        begin(handler)
        handler.wfile.write(b": a comment\n\nevent: ping\n\n")
        event(handler, {"at": 1})
        time.sleep(0.1)
        handler.wfile.write(b'data: {"at": 2}\n\ndata: {"at"')
        handler.wfile.flush()
        time.sleep(0.1)
        handler.wfile.write(b': 3}\r\n\r\ndata: [DONE]\n\ndata: {"after": 1}\n\n')

    with completing(stream=stream) as server:
        before = time.perf_counter_ns()
        found = read(server)
        after = time.perf_counter_ns()
    assert [event for _, event in found] == [{"at": 1}, {"at": 2}, {"at": 3}]
    first, second, third = (at for at, _ in found)
    assert before < first < second < third < after
    assert second - first > 50_000_000
    assert third - second > 50_000_000
    assert server.asked == [{"x": 1}]


def _stalls(server: Completing, handler: BaseHTTPRequestHandler) -> None:
    begin(handler)
    event(handler, {})
    server.over.wait(20)


def _drips(server: Completing, handler: BaseHTTPRequestHandler) -> None:
    begin(handler)
    while not server.over.wait(0.02):
        handler.wfile.write(b":\n")
        handler.wfile.flush()


def _endless(server: Completing, handler: BaseHTTPRequestHandler) -> None:
    begin(handler)
    for _ in range(60):
        handler.wfile.write(b"x" * 100_000)


@pytest.mark.parametrize("wrong", [*WRONG_ANSWERS, _stalls, _drips, _endless])
def test_each_way_to_send_no_answer_is_one_sentence(wrong: Wrong) -> None:
    with completing() as server:
        server.stream = lambda handler, asked: wrong(server, handler)
        with pytest.raises(EngineFault, check=wording) as fault:
            read(server, timeout=0.4)
    assert "\n" not in str(fault.value)
    assert len(str(fault.value)) < 300


def test_the_time_that_a_run_takes_between_two_events_is_not_the_servers() -> None:
    def stream(handler: BaseHTTPRequestHandler, asked: Any) -> None:
        begin(handler)
        event(handler, 1)
        time.sleep(0.3)
        event(handler, 2)

    with completing(stream=stream) as server:
        events = Server(server.url, 0.5).events("/v1/completions", {})
        assert next(events)[1] == 1
        time.sleep(0.7)
        assert next(events)[1] == 2


def test_closing_the_iterator_closes_the_connection() -> None:
    with completing() as server:
        events = Server(server.url, 10).events("/v1/completions", {"prompt": [1], "max_tokens": 10_000_000})
        next(events)
        events.close()
        assert server.left.wait(10)


def test_no_server_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(EngineFault, check=wording):
        Server(f"http://127.0.0.1:{port}", 5).get("/version")


def test_the_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk-of-mine-1234"
    monkeypatch.setenv("MY_KEY", key)

    def echoes(handler: BaseHTTPRequestHandler, asked: Any) -> None:
        whole(handler, 401, json.dumps({"error": f"wrong key {handler.headers['Authorization']}"}).encode())

    with completing(stream=echoes) as server:
        with pytest.raises(Refused, check=wording) as fault:
            read(server, key_env="MY_KEY")
        assert server.headers[0]["Authorization"] == f"Bearer {key}"
    assert fault.value.status == 401
    assert key not in str(fault.value)
    with pytest.raises(UsageError, check=wording):
        Server(server.url, 5, "OTHER_KEY")
