"""An exchange ends by its deadline whatever the other side does, takes no more than asked, and goes nowhere else."""

from __future__ import annotations

import signal
import socket
import threading
import time
import tracemalloc
from typing import Any

import pytest
from support.engines import (
    MODEL,
    PHASES,
    dribbles,
    floods,
    listening,
    replies,
    serving,
    silent,
    status,
)  # fmt: skip

from specbench.backends.completions import Completions
from specbench.backends.protocol import Question
from specbench.backends.streaming import Server
from specbench.common.errors import EngineFault, UsageError
from specbench.common.http import ConnectionLost, Deadline, GivenUp, check_address, is_loopback, send

LIMIT_S, SLACK_S = 0.3, 1.5
STREAM = status(200, "Content-Type: text/event-stream")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def ask(url: str, body: bytes | None = b"{}", seconds: float = LIMIT_S, over: threading.Event | None = None) -> bytes:
    with send(url, body, "sk-secret", Deadline(seconds, over)) as response:
        return response.beginning(1 << 20)


def given_up(url: str, body: bytes = b"{}") -> None:
    begun = time.monotonic()
    with pytest.raises((TimeoutError, ConnectionLost)):
        ask(url, body)
    assert time.monotonic() - begun < LIMIT_S + SLACK_S


@pytest.mark.parametrize("phase", PHASES)
def test_slow_answer_ends_in_time(phase: str) -> None:
    with listening(PHASES[phase]) as port:
        given_up(f"http://127.0.0.1:{port}")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_slow_proxy_ends_in_time(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(dribbles(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n")) as port:
        monkeypatch.setenv(f"{scheme}_proxy", f"http://127.0.0.1:{port}")
        given_up(f"{scheme}://judge.invalid/v1")


def test_unread_question_ends_in_time() -> None:
    with listening(silent) as port:
        given_up(f"http://127.0.0.1:{port}", b"x" * (16 << 20))


def test_slow_name_ends_in_time_and_sends_nothing_later(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    look_up = socket.getaddrinfo

    def slow(host: str, port: Any, *options: Any, **named: Any) -> Any:
        time.sleep(2 * LIMIT_S)
        return look_up("127.0.0.1", port, *options, **named)

    with listening(lambda made, over: sent.append(made.recv(1))) as port:
        monkeypatch.setattr(socket, "getaddrinfo", slow)
        given_up(f"http://judge.invalid:{port}/v1")
        time.sleep(3 * LIMIT_S)
        assert b"".join(sent) == b""


@pytest.mark.parametrize(
    "begin",
    [
        *(status(200, "Transfer-Encoding: chunked") + f"{size}\r\n".encode() for size in ("-1", "f" * 26)),
        *(status(200, f"Content-Length: {length}") for length in ("9" * 20, "-1", "9" * 5000, "5, 6", "")),
        b"HTTP/1.1 200 OK\r\nX: ",
    ],
)
def test_absurd_sizes_take_no_memory(begin: bytes) -> None:
    with listening(floods(begin, b"x")) as port:
        tracemalloc.start()
        try:
            assert len(ask(f"http://127.0.0.1:{port}", seconds=20)) == 1 << 20
        except ConnectionLost:
            pass
        finally:
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert most < 40 << 20


def test_giving_up_ends_what_is_waited_for() -> None:
    over = threading.Event()
    with listening(silent) as port:
        threading.Timer(0.2, over.set).start()
        with pytest.raises(GivenUp):
            ask(f"http://127.0.0.1:{port}", seconds=60, over=over)


def test_ctrl_c_ends_a_request() -> None:
    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have us ignore it
    timer = threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT))
    try:
        with listening(dribbles(status(200))) as port:
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                ask(f"http://127.0.0.1:{port}/v1", seconds=60)
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("code", [301, 308])
def test_key_does_not_follow_a_redirect(code: int) -> None:
    with serving() as server, serving() as elsewhere:
        server.answer = replies(code, b"", Location=f"{elsewhere.url}/completions")
        with send(server.url, b"{}", "sk-secret", Deadline(5)) as response:
            assert response.status == code
        assert server.headers[0]["Authorization"] == "Bearer sk-secret"
        assert elsewhere.paths == []


@pytest.mark.parametrize("again", [b":\n", b"event: ping\n\n", b"x: y\n"])
@pytest.mark.parametrize("act", [dribbles, floods])
def test_stream_without_an_event_ends_in_time(act: Any, again: bytes) -> None:
    with listening(act(STREAM, again)) as port:
        begun = time.monotonic()
        with pytest.raises(EngineFault, match="0\\.3 s"):
            list(Server(f"http://127.0.0.1:{port}", LIMIT_S).events("/v1/completions", {}))
        assert time.monotonic() - begun < LIMIT_S + SLACK_S


@pytest.mark.parametrize("result", ['{"choices": []}', '{"choices": [{"text": null, "token_ids": []}]}'])
@pytest.mark.parametrize("act", [dribbles, floods])
def test_events_without_tokens_end_in_time(act: Any, result: str) -> None:
    question = Question(ids=[1, 2], budget=3, stop_ids=frozenset())
    with listening(act(STREAM, f"data: {result}\n\n".encode())) as port:
        asked: Any = Completions(Server(f"http://127.0.0.1:{port}", LIMIT_S), "m", MODEL)
        begun = time.monotonic()
        with pytest.raises(EngineFault, match="0\\.3 s"):
            list(asked.ask(question))
        assert time.monotonic() - begun < LIMIT_S + SLACK_S


GOOD = {
    "http://localhost:8000/v1": "localhost:8000", "HTTPS://Judge.example/v1/": "Judge.example", "http://h:/v1": "h:",
    "http://[::1]:8000/v1": "[::1]:8000", "http://[fe80::1%25eth0]/v1": "[fe80::1%25eth0]",
    "http://my_host.docker/a%20b/~c": "my_host.docker", "http://b\u00fccher.example/v1": "b\u00fccher.example",
}  # fmt: skip
BAD = [
    "", "localhost:8000", "http:", "http://:80/v1", "//h/v1", "file:///etc/passwd", "http://h:0/v1", "http://h:99999/v1",
    "http://a b/v1", "http://h/v1\r\nX: y", "http://h/v1?a=b", "http://h/v1#x", "http://[::1/v1", "http://[1.2.3.4]/v1",
    f"http://{'a' * 64}.x/v1", f"http://h/{'a' * 3000}", "http://h/\u00fc", "http://\u202eh/v1", "http://\udc80/v1",
    "http://me:secret@h/v1", "http://secret@h", "me:secret@h:80/v1", "http://h/secret", "http://secret.example/v1",
]  # fmt: skip


@pytest.mark.parametrize(("url", "host"), GOOD.items())
def test_addresses_that_are_taken(url: str, host: str) -> None:
    assert check_address(url, "--base-url", "--api-key-env", str) == host


@pytest.mark.parametrize("url", BAD, ids=range(len(BAD)))
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match="--base-url") as error:
        check_address(url, "--base-url", "--api-key-env", lambda text: text.replace("secret", "[key]"))
    assert str(error.value).isprintable()
    assert "secret" not in str(error.value)
    assert len(str(error.value)) < 250


def test_which_hosts_are_this_machine() -> None:
    hosts = ("localhost", "127.0.0.2", "::1", "example.org", "10.0.0.1")
    assert [host for host in hosts if is_loopback(host)] == ["localhost", "127.0.0.2", "::1"]
