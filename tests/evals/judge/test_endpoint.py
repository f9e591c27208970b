"""One question to an endpoint: what is sent, and what becomes of every way an answer can go wrong."""

from __future__ import annotations

import base64
import json
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import quote

import pytest
from support.engines import Server, completion, in_any_order, replies, says, serving
from support.wording import wording

from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.evals.judge import posting
from specbench.evals.judge.endpoint import Endpoint
from specbench.evals.judge.judge import Unanswered
from specbench.evals.judge.prompts import JudgePrompt

PROMPT = JudgePrompt("single-v1", "Be fair.", "Rate “this”.")
KEY = "sk-se/c+r=et42"


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


def endpoint(server: Server, **changes: Any) -> Endpoint:
    values: dict[str, Any] = {"max_tokens": 99, "timeout_s": 5.0, "sleep": lambda seconds: None, "key": KEY}
    return Endpoint("gpt-4", server.url, **(values | changes))


def refused(server: Server, kind: type[Exception], **changes: Any) -> str:
    """The line that an error is; it never holds the key."""
    with pytest.raises(kind) as error:
        endpoint(server, **changes).ask(PROMPT)
    assert "\n" not in str(error.value)
    assert KEY not in str(error.value)
    return str(error.value)


def test_it_asks_greedily_with_both_prompts_and_the_key(server: Server) -> None:
    made = endpoint(server)
    assert made.ask(PROMPT) == "[[7]]"
    messages = [{"role": "system", "content": "Be fair."}, {"role": "user", "content": "Rate “this”."}]
    assert server.asked == [{"model": "gpt-4", "messages": messages, "temperature": 0, "max_tokens": 99}]
    assert server.paths == ["/v1/chat/completions"]
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert KEY not in made.spec.model_dump_json()
    assert (made.spec.id, made.spec.kind, made.spec.max_tokens) == ("gpt-4", "endpoint", 99)


def test_without_a_key_none_is_sent_and_a_slash_at_the_end_does_no_harm(server: Server) -> None:
    server.url += "/"
    assert endpoint(server, key=None).ask(PROMPT) == "[[7]]"
    assert "Authorization" not in server.headers[0]
    assert server.paths == ["/v1/chat/completions"]


def test_a_message_held_back_is_empty_and_no_proxy_is_asked(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answer = says(None)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert endpoint(server).ask(PROMPT) == ""


@pytest.mark.parametrize("code", [429, 500, 502, 503])
def test_a_busy_endpoint_is_asked_three_times_with_pauses(server: Server, code: int) -> None:
    pauses: list[float] = []
    server.answer = replies(code, b'{"error": {"message": "busy\\nnow"}}')
    said = refused(server, EnvironmentRefused, sleep=pauses.append)
    assert len(server.asked) == 3
    assert pauses == [2, 4]
    assert f"{code}" in said
    assert wording(said)


def test_the_second_try_may_succeed(server: Server) -> None:
    def recovers(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        (replies(503, b"") if len(server.asked) == 1 else says("[[9]]"))(handler, body)

    server.answer = recovers
    assert endpoint(server).ask(PROMPT) == "[[9]]"


RUBBISH = [
    (b"", "an answer that is no chat completion: ''"),
    (b"<html>it works</html>", "'<html>it works</html>'"),
    (b"\xff\xfe\x00", "no chat completion"),
    (b"[]", "no chat completion"),
    (b"null", "no chat completion"),
    (b'{"choices": []}', "no chat completion"),
    (b'{"choices": [{"text": "[[5]]"}]}', "no chat completion"),
    (completion(7), "a message whose content is no text"),
    (completion([{"type": "text"}]), "a message whose content is no text"),
]


@pytest.mark.parametrize(("body", "expected"), RUBBISH, ids=range(len(RUBBISH)))
def test_rubbish_is_no_judgment(server: Server, body: bytes, expected: str) -> None:
    server.answer = replies(200, body)
    assert expected in refused(server, EnvironmentRefused)
    assert len(server.asked) == 3


def test_an_answer_without_end_is_cut_off(server: Server) -> None:
    def endless(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not server.over.is_set():
            handler.wfile.write(b"x" * 65536)

    server.answer = endless
    assert wording(refused(server, EnvironmentRefused))


def test_a_connection_that_breaks_off_is_no_answer(server: Server) -> None:
    def breaks(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        whole = completion("[[7]]")
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(whole) + 100))
        handler.end_headers()
        handler.wfile.write(whole)

    server.answer = breaks
    assert wording(refused(server, EnvironmentRefused))


@pytest.mark.parametrize(
    ("code", "expected"),
    [(401, "refuses the key (HTTP 401: no)"), (403, "refuses the key"), (404, "knows no such model or path")],
)
def test_a_wrong_key_model_or_path_is_not_tried_again(server: Server, code: int, expected: str) -> None:
    server.answer = replies(code, json.dumps({"error": {"message": "no"}}).encode())
    assert expected in refused(server, UsageError)
    assert len(server.asked) == 1


@pytest.mark.parametrize("code", [400, 413, 422])
def test_a_refused_prompt_is_no_reason_to_stop(server: Server, code: int) -> None:
    server.answer = replies(code, b'{"error": "context length"}')
    assert refused(server, Unanswered) == f"HTTP {code}: context length"
    assert len(server.asked) == 1


@pytest.mark.parametrize("code", [301, 302, 307, 308])
def test_the_key_does_not_follow_a_redirect(server: Server, code: int) -> None:
    with serving() as elsewhere:
        server.answer = replies(code, b"", Location=f"{elsewhere.url}/chat/completions")
        assert f"{code}" in refused(server, UsageError)
        assert elsewhere.paths == []


ECHOES = {
    "bare": KEY, "bearer": f"Bearer {KEY}", "percent": quote(quote(f"Bearer {KEY}", safe=""), safe=""),
    "json": json.dumps(json.dumps(KEY)), "unicode": "".join(f"\\u{ord(char):04x}" for char in KEY),
    "base64": base64.b64encode(f"Bearer {KEY}".encode()).decode(), "across the cut": "x" * 155 + KEY,
    "lines": "\n".join((KEY[:4], KEY[4:])),
}  # fmt: skip


def assert_hidden(said: str) -> None:
    for size in range(5, len(KEY)):
        assert KEY[:size] not in said
        assert KEY[-size:] not in said
        assert quote(KEY[-size:], safe="") not in said
    for text in (KEY, f"Bearer {KEY}"):
        assert base64.b64encode(text.encode()).decode()[-10:] not in said


@pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES)
def test_an_error_or_a_judgment_that_echoes_the_key_does_not_show_it(server: Server, echo: str) -> None:
    for code in (400, 401, 403, 404, 413, 422, 429, 500):
        server.answer = replies(code, json.dumps({"error": {"message": f"bad key {echo} given"}}).encode())
        kind = UsageError if code in (401, 403, 404) else Unanswered if code in (400, 413, 422) else EnvironmentRefused
        said = refused(server, kind)
        assert_hidden(said)
        assert wording(said)
    server.answer = says(f"You are {echo}. [[7]]")
    said = endpoint(server).ask(PROMPT)
    assert_hidden(said)
    assert said.endswith(". [[7]]")


def test_what_is_no_completion_does_not_show_a_part_of_the_key(server: Server) -> None:
    for before in range(44, 61):
        server.answer = replies(200, b"<" * before + KEY.encode() + b" and more of it")
        assert_hidden(refused(server, EnvironmentRefused))


def test_an_error_longer_than_what_is_read_does_not_show_it(server: Server) -> None:
    for before in range(65536 - 40, 65536 - 20):
        start = b'{"error": "'
        server.answer = replies(400, start + b" " * (before - len(start)) + KEY.encode() + b'"}')
        assert_hidden(refused(server, Unanswered))


@pytest.mark.parametrize(
    "line", [f"HTTP/1.1 oops Bearer {KEY}", f"Bearer {KEY}", f"HTTP/1.1 503 Bearer {KEY}", f"HTTP/{KEY} 200 OK"]
)
def test_a_status_line_or_header_that_echoes_the_key_does_not_show_it(server: Server, line: str) -> None:
    def answers(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        handler.wfile.write(f"{line}\r\nX-Key: {KEY}\r\nContent-Length: 2\r\n\r\n{{}}".encode())

    server.answer = answers
    assert_hidden(refused(server, EnvironmentRefused))


@pytest.mark.parametrize(
    "error",
    [
        ValueError(f"Invalid header value b'Bearer {KEY}'"), RuntimeError(f"Bearer {KEY}"),
        OSError(f"Tunnel connection failed: 407 {KEY}"), OSError(5, f"No {KEY}"), UnicodeError(f"label {KEY}"),
    ],
    ids=repr,
)  # fmt: skip
def test_an_exception_that_holds_the_key_is_one_line_without_it(
    server: Server, error: Exception, monkeypatch: Any
) -> None:
    def raises(*arguments: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(posting.urllib.request.OpenerDirector, "open", raises)
    with pytest.raises(EnvironmentRefused) as found:
        endpoint(server).ask(PROMPT)
    assert_hidden("".join(traceback.format_exception(found.value)))


def test_what_is_no_web_address_is_refused_before_anything_is_sent() -> None:
    for url in (
        *("localhost:8000", "ftp://localhost/v1", "http://", "http://user:pass@localhost/v1", "file:///etc/passwd"),
        *("http://h:x/v1", "http://h/v1?a=b"),
    ):
        with pytest.raises(UsageError, match="--base-url"):
            Endpoint("gpt-4", url, None, max_tokens=1, timeout_s=1)


@pytest.mark.parametrize("model", ["", " \t", KEY, f"gpt-4 {KEY}", KEY.upper()])
def test_a_judge_without_a_name_or_with_the_key_for_one_is_refused(server: Server, model: str) -> None:
    with pytest.raises(UsageError, check=wording) as error:
        Endpoint(model, server.url, KEY, max_tokens=1, timeout_s=1)
    assert_hidden(str(error.value))


@pytest.mark.parametrize("size", [1 << 18, 1 << 21])
def test_a_judgment_of_any_length_keeps_its_beginning_alone(server: Server, size: int) -> None:
    server.answer = says(f"{KEY} [[7]] " + "w" * size)
    said = endpoint(server).ask(PROMPT)
    assert said.startswith("[key] [[7]] www")
    assert len(said) <= 1 << 18


def test_it_is_asked_by_several_threads_at_once(server: Server) -> None:
    server.answer = in_any_order(lambda handler, body: says(body["messages"][1]["content"])(handler, body), seed=1)
    made = endpoint(server)
    prompts = [JudgePrompt("single-v1", "Be fair.", f"number {at}") for at in range(24)]
    with ThreadPoolExecutor(8) as workers:
        assert list(workers.map(made.ask, prompts)) == [prompt.user for prompt in prompts]
