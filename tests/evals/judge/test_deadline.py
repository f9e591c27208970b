"""A question ends by its deadline in whatever phase the other side is slow, and nothing of it goes on afterwards."""

from __future__ import annotations

import signal
import socket
import threading
import time
import tracemalloc
from typing import Any

import pytest
from support.engines import HANDSHAKE, PHASES, Act, dribbles, floods, listening, silent, status
from support.wording import wording

from specbench.common.errors import EnvironmentRefused
from specbench.evals.judge import endpoint
from specbench.evals.judge.endpoint import Endpoint
from specbench.evals.judge.judge import Unanswered
from specbench.evals.judge.posting import GivenUp
from specbench.evals.judge.prompts import JudgePrompt

LIMIT_S, SLACK_S = 0.5, 1.5


@pytest.fixture(autouse=True)
def _once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_TRIES", 1)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def asks_in_vain(url: str, words: int = 1) -> None:
    """Ends in time, says why, and leaves no thread behind."""
    made = Endpoint("gpt-4", url, "sk-secret", max_tokens=9, timeout_s=LIMIT_S)
    begun = time.monotonic()
    with pytest.raises(EnvironmentRefused, check=wording):
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


@pytest.mark.parametrize("code", [200, 400, 503])
@pytest.mark.parametrize("size", ["-1", "-5", "f" * 26, "f" * 20_000])
def test_a_chunk_of_an_absurd_size_is_not_taken_whole(code: int, size: str) -> None:
    begin = status(code, "Transfer-Encoding: chunked") + f"{size}\r\n".encode()
    with listening(floods(begin, b"x")) as port:
        made = Endpoint("gpt-4", f"http://127.0.0.1:{port}/v1", None, max_tokens=9, timeout_s=20)
        tracemalloc.start()
        try:
            with pytest.raises((EnvironmentRefused, Unanswered)) as error:
                made.ask(JudgePrompt("single-v1", "Be fair.", "word"))
            assert tracemalloc.get_traced_memory()[1] < 40 << 20
        finally:
            tracemalloc.stop()
        assert "no answer within" not in str(error.value)
        assert_nothing_goes_on()


@pytest.mark.parametrize("length", ["99999999999999999999", "-1", "1e9", "9" * 5000, "5, 6", ""])
def test_a_length_that_is_none_or_a_lie_is_no_hold_up(length: str) -> None:
    with listening(floods(status(200, f"Content-Length: {length}"), b"x")) as port:
        made = Endpoint("gpt-4", f"http://127.0.0.1:{port}/v1", None, max_tokens=9, timeout_s=20)
        with pytest.raises(EnvironmentRefused, check=wording):
            made.ask(JudgePrompt("single-v1", "Be fair.", "word"))


def test_headers_without_end_are_refused() -> None:
    for header in (b"X: y\r\n", b"X: " + b"y" * 70_000):
        with listening(floods(b"HTTP/1.1 200 OK\r\n", header)) as port:
            made = Endpoint("gpt-4", f"http://127.0.0.1:{port}/v1", None, max_tokens=9, timeout_s=20)
            with pytest.raises(EnvironmentRefused, check=wording):
                made.ask(JudgePrompt("single-v1", "Be fair.", "word"))


def test_closing_ends_what_others_are_waiting_for() -> None:
    with listening(silent) as port:
        made = Endpoint("gpt-4", f"http://127.0.0.1:{port}/v1", None, max_tokens=9, timeout_s=60)
        ended: list[Exception] = []

        def ask() -> None:
            try:
                made.ask(JudgePrompt("single-v1", "Be fair.", "word"))
            except Exception as error:
                ended.append(error)

        asking = [threading.Thread(target=ask) for _ in range(3)]
        for each in asking:
            each.start()
        time.sleep(0.2)
        made.close()
        for each in asking:
            each.join(SLACK_S)
        assert [type(error) for error in ended] == [GivenUp] * 3
        with pytest.raises(GivenUp):
            made.ask(JudgePrompt("single-v1", "Be fair.", "word"))
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
