"""A question ends by its deadline in whatever phase the other side is slow, and nothing of it goes on afterwards."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from specbench.common.errors import EnvironmentRefused
from specbench.evals.judge import endpoint
from specbench.evals.judge.endpoint import Endpoint
from specbench.evals.judge.prompts import JudgePrompt

LIMIT_S, SLACK_S = 0.5, 1.5
ENDLESS_S = 8.0  # as long as a server of these tests goes on
PACE_S = 0.05

Act = Callable[[socket.socket, threading.Event], None]


@contextmanager
def listening(act: Act) -> Iterator[int]:
    """Port of a server that does ``act`` with every connection."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    made, _ = server.accept()
                    threading.Thread(target=one, args=(made,), daemon=True).start()

        def one(made: socket.socket) -> None:
            with made, suppress(OSError):
                act(made, over)

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)


def dribbles(begin: bytes, again: bytes = b"x") -> Act:
    """Reads the request, says ``begin`` at once and then ``again`` and again."""

    def act(made: socket.socket, over: threading.Event) -> None:
        made.recv(1 << 16)
        made.sendall(begin)
        until = time.monotonic() + ENDLESS_S
        while not over.wait(PACE_S) and time.monotonic() < until:
            made.sendall(again)

    return act


def silent(made: socket.socket, over: threading.Event) -> None:
    over.wait(ENDLESS_S)


def status(code: int, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {code} So", *headers, "", ""]).encode()


PHASES: dict[str, Act] = {
    "silent": silent,
    "status line": dribbles(b"HTTP/1.1 200 "),
    "a header": dribbles(b"HTTP/1.1 200 OK\r\nX-Long: "),
    "100 forever": dribbles(b"", status(100, "X: y")),
    "trailers": dribbles(status(200, "Transfer-Encoding: chunked") + b"0\r\n", b"X: y\r\n"),
    **{f"body of {code}": dribbles(status(code, "Content-Length: 1000")) for code in (200, 400, 401, 500, 302)},
    **{f"endless body of {code}": dribbles(status(code)) for code in (200, 400, 503)},
    **{
        f"chunks of {code}": dribbles(status(code, "Transfer-Encoding: chunked"), b"1\r\nx\r\n")
        for code in (200, 401, 500)
    },
}
HANDSHAKE = b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc"  # a TLS record of 16 KiB, which never gets there


@pytest.fixture(autouse=True)
def _once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_TRIES", 1)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def asks_in_vain(url: str, words: int = 1) -> None:
    """Ends in time, says why, and leaves no thread behind."""
    made = Endpoint("gpt-4", url, "sk-secret", max_tokens=9, timeout_s=LIMIT_S)
    begun = time.monotonic()
    with pytest.raises(EnvironmentRefused, match=r"no answer within 0\.5 s"):
        made.ask(JudgePrompt("single-v1", "Be fair.", "word " * words))
    assert time.monotonic() - begun < LIMIT_S + SLACK_S


def assert_nothing_goes_on() -> None:
    until = time.monotonic() + SLACK_S
    while any(thread.name == "judge" for thread in threading.enumerate()):
        assert time.monotonic() < until, "the question is still being asked"
        time.sleep(0.01)


@pytest.mark.parametrize("phase", PHASES)
def test_a_slow_answer_ends_in_time(phase: str) -> None:
    with listening(PHASES[phase]) as port:
        asks_in_vain(f"http://127.0.0.1:{port}/v1")
        assert_nothing_goes_on()


def test_a_question_that_is_not_read_ends_in_time() -> None:
    with listening(silent) as port:
        asks_in_vain(f"http://127.0.0.1:{port}/v1", words=4 << 20)
        assert_nothing_goes_on()


@pytest.mark.parametrize("act", [silent, dribbles(HANDSHAKE)], ids=["silent", "dribbling"])
def test_a_slow_handshake_ends_in_time(act: Act) -> None:
    with listening(act) as port:
        asks_in_vain(f"https://127.0.0.1:{port}/v1")
        assert_nothing_goes_on()


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("act", [dribbles(b"HTTP/1.1 200 "), dribbles(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n")])
def test_a_slow_proxy_ends_in_time(scheme: str, act: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(act) as port:
        monkeypatch.setenv(f"{scheme}_proxy", f"http://127.0.0.1:{port}")
        asks_in_vain(f"{scheme}://judge.invalid/v1")
        assert_nothing_goes_on()


def test_a_connection_that_nobody_takes_ends_in_time() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        waiting = [socket.socket() for _ in range(8)]
        for other in waiting:  # fill the queue: whoever comes after them is not even refused
            other.setblocking(False)
            other.connect_ex(server.getsockname())
        try:
            asks_in_vain(f"http://127.0.0.1:{server.getsockname()[1]}/v1")
        finally:
            for other in waiting:
                other.close()


def test_a_name_that_resolves_slowly_ends_in_time_and_nothing_is_sent_later(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    found = threading.Event()
    look_up = socket.getaddrinfo

    def slow(host: str, port: Any, *options: Any, **named: Any) -> Any:
        time.sleep(LIMIT_S + SLACK_S + 0.5)
        try:
            return look_up("127.0.0.1", port, *options, **named)
        finally:
            found.set()

    with listening(lambda made, over: sent.append(made.recv(1))) as port:
        monkeypatch.setattr(socket, "getaddrinfo", slow)
        asks_in_vain(f"http://judge.invalid:{port}/v1")
        assert found.wait(10)
        assert_nothing_goes_on()
        time.sleep(0.2)
        assert b"".join(sent) == b""


def test_ctrl_c_ends_a_question_and_its_thread() -> None:
    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have us ignore it
    timer = threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT))
    try:
        with listening(dribbles(status(200))) as port:
            made = Endpoint("gpt-4", f"http://127.0.0.1:{port}/v1", None, max_tokens=9, timeout_s=60)
            timer.start()
            begun = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                made.ask(JudgePrompt("single-v1", "Be fair.", "word"))
            assert time.monotonic() - begun < 0.3 + SLACK_S
            assert_nothing_goes_on()
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)
