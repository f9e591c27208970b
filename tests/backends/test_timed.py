"""A server that dribbles is given up in whatever phase it does so, and one that floods is not taken whole."""

from __future__ import annotations

import socket
import time
import tracemalloc
from typing import Any

import pytest
from support.engines import HANDSHAKE, MODEL, PHASES, Act, dribbles, floods, listening, silent, status
from support.wording import wording

from specbench.backends.completions import Completions
from specbench.backends.protocol import Question
from specbench.backends.streaming import Server
from specbench.common.errors import EngineFault

LIMIT_S, SLACK_S = 0.3, 1.5
STREAM = status(200, "Content-Type: text/event-stream")
QUESTION = Question(ids=[1, 2], budget=3, stop_ids=frozenset())


def given_up(url: str, match: str = r"stalled: .* for 0\.3 s") -> None:
    server = Server(url, LIMIT_S)
    for ask in (lambda: list(server.events("/v1/completions", {"x": 1})), lambda: server.get("/version")):
        begun = time.monotonic()
        with pytest.raises(EngineFault, check=wording):
            ask()
        assert time.monotonic() - begun < LIMIT_S + SLACK_S


# The beginning of an error says what there is to say, also where the rest of it is late.
LATE_ERRORS = [
    phase for phase in PHASES if phase.endswith(tuple("of " + code for code in ("400", "401", "500", "503", "302")))
]


@pytest.mark.parametrize("phase", PHASES)
def test_a_slow_answer_ends_in_time(phase: str) -> None:
    with listening(PHASES[phase]) as port:
        given_up(f"http://127.0.0.1:{port}", "answers HTTP" if phase in LATE_ERRORS else r"stalled: .* for 0\.3 s")


@pytest.mark.parametrize("act", [silent, dribbles(HANDSHAKE)], ids=["silent", "dribbling"])
def test_a_slow_handshake_ends_in_time(act: Act) -> None:
    with listening(act) as port:
        given_up(f"https://127.0.0.1:{port}")


def test_a_slow_proxy_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(dribbles(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n")) as port:
        for scheme in ("http", "https"):
            monkeypatch.setenv(f"{scheme}_proxy", f"http://127.0.0.1:{port}")
            given_up(f"{scheme}://engine.invalid")


def test_a_name_that_resolves_slowly_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments: time.sleep(LIMIT_S + SLACK_S))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EngineFault, check=wording):
        Server("http://engine.invalid", LIMIT_S).get("/version")


def test_all_addresses_of_a_name_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where the first of them does not answer, the next one may."""
    with socket.socket() as closed, listening(floods(status(200, "Content-Length: 1"), b"x")) as port:
        closed.bind(("127.0.0.1", 0))
        there = [
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", at)) for at in (closed.getsockname()[1], port)
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments: there)
        assert Server("http://localhost", LIMIT_S).get("/version") == b"x"
        monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments: [])
        with pytest.raises(EngineFault, check=wording):
            Server("http://localhost", LIMIT_S).get("/version")


@pytest.mark.parametrize("code", [200, 400])
@pytest.mark.parametrize("size", ["-1", "f" * 26])
def test_a_chunk_of_an_absurd_size_is_not_taken_whole(code: int, size: str) -> None:
    with listening(floods(status(code, "Transfer-Encoding: chunked") + f"{size}\r\n".encode(), b"x")) as port:
        server = Server(f"http://127.0.0.1:{port}", 20)
        for ask in (lambda: list(server.events("/", {})), lambda: server.get("/")):
            tracemalloc.start()
            try:
                with pytest.raises(EngineFault, check=wording):
                    ask()
                assert tracemalloc.get_traced_memory()[1] < 60 << 20
            finally:
                tracemalloc.stop()


@pytest.mark.parametrize("again", [b":\n", b"event: ping\n\n", b"\n", b"x: y\n"])
def test_a_stream_kept_awake_without_an_event_ends_in_time(again: bytes) -> None:
    for act in (dribbles(STREAM, again), floods(STREAM, again)):
        with listening(act) as port:
            server = Server(f"http://127.0.0.1:{port}", LIMIT_S)
            begun = time.monotonic()
            with pytest.raises(EngineFault, check=wording):
                list(server.events("/v1/completions", {}))
            assert time.monotonic() - begun < LIMIT_S + SLACK_S


@pytest.mark.parametrize(
    "said", ['{"choices": []}', '{"choices": [{"text": ""}]}', '{"choices": [{"text": null, "token_ids": []}]}']
)
def test_events_without_tokens_do_not_go_on_for_ever(said: str) -> None:
    for act in (dribbles, floods):
        with listening(act(STREAM, f"data: {said}\n\n".encode())) as port:
            asked: Any = Completions(Server(f"http://127.0.0.1:{port}", LIMIT_S), "m", MODEL)
            begun = time.monotonic()
            with pytest.raises(EngineFault, check=wording):
                list(asked.ask(QUESTION))
            assert time.monotonic() - begun < LIMIT_S + SLACK_S


def test_text_that_makes_no_tokens_does_not_go_on_for_ever() -> None:
    with listening(floods(STREAM, b'data: {"choices": [{"text": "x"}]}\n\n')) as port:
        asked: Any = Completions(Server(f"http://127.0.0.1:{port}", 20), "m", MODEL)
        asked.ids = False
        with pytest.raises(EngineFault, check=wording):
            list(asked.ask(QUESTION))
