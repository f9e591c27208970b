"""One question to an endpoint: what is sent, and what becomes of every way an answer can go wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from support.engines import Server, completion, replies, says, serving
from support.wording import wording

from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.common.http import GivenUp
from specbench.evals.judge.endpoint import Endpoint
from specbench.evals.judge.judge import Unanswered
from specbench.evals.judge.judge_prompts import JudgePrompt

PROMPT = JudgePrompt("single-v1", "Be fair.", "Rate “this”.")
KEY = "sk-se/c+r=et42"


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


def hangs(server: Server) -> Any:
    return lambda handler, body: server.over.wait(20)


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


@pytest.mark.parametrize("code", [429, 500, 502, 503])
def test_a_busy_endpoint_is_asked_three_times_with_pauses(server: Server, code: int) -> None:
    pauses: list[float] = []
    server.answer = replies(code, b'{"error": {"message": "busy\\nnow"}}')
    result = refused(server, EnvironmentRefused, sleep=pauses.append)
    assert len(server.asked) == 3
    assert pauses == [2, 4]
    assert f"{code}" in result
    assert wording(result)


def test_the_second_try_may_succeed(server: Server) -> None:
    def recovers(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        (replies(503, b"") if len(server.asked) == 1 else says("[[9]]"))(handler, body)

    server.answer = recovers
    assert endpoint(server).ask(PROMPT) == "[[9]]"


RUBBISH = [
    (b"", "chat completion: ''"),
    (b"<html>it works</html>", "'<html>it works</html>'"),
    (b"\xff\xfe\x00", "chat completion"),
    (b"[]", "chat completion"),
    (b"null", "chat completion"),
    (b'{"choices": []}', "chat completion"),
    (b'{"choices": [{"text": "[[5]]"}]}', "chat completion"),
    (completion(7), "message whose content"),
    (completion([{"type": "text"}]), "message whose content"),
]


@pytest.mark.parametrize(("body", "expected"), RUBBISH, ids=range(len(RUBBISH)))
def test_rubbish_is_no_judgment(server: Server, body: bytes, expected: str) -> None:
    server.answer = replies(200, body)
    assert expected in refused(server, EnvironmentRefused)
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    "code",
    [401, 403, 404],
)
def test_a_wrong_key_model_or_path_is_not_tried_again(server: Server, code: int) -> None:
    server.answer = replies(code, json.dumps({"error": {"message": "no"}}).encode())
    assert wording(refused(server, UsageError))
    assert len(server.asked) == 1


@pytest.mark.parametrize("code", [400, 413, 422])
def test_a_refused_prompt_is_no_reason_to_stop(server: Server, code: int) -> None:
    server.answer = replies(code, b'{"error": "context length"}')
    assert refused(server, Unanswered) == f"HTTP {code}: context length"
    assert len(server.asked) == 1


def test_an_error_or_a_judgment_that_echoes_the_key_does_not_show_it(server: Server) -> None:
    for code in (400, 401, 429):
        server.answer = replies(code, json.dumps({"error": {"message": f"bad key {'x' * 140}{KEY} given"}}).encode())
        kind = {400: Unanswered, 401: UsageError, 429: EnvironmentRefused}[code]
        assert "sk-" not in refused(server, kind)
    server.answer = replies(200, b"<" * 50 + KEY.encode())
    assert "sk-" not in refused(server, EnvironmentRefused)
    oops: Any = lambda handler, body: handler.wfile.write(f"HTTP/1.1 oops {KEY}\r\n\r\n".encode())  # noqa: E731
    server.answer = oops
    assert "sk-" not in refused(server, EnvironmentRefused)
    server.answer = says(f"You are {KEY}. [[7]]")
    assert endpoint(server).ask(PROMPT) == "You are [key]. [[7]]"


def test_closing_ends_what_others_are_waiting_for(server: Server) -> None:
    server.answer = hangs(server)
    made = endpoint(server, timeout_s=60)
    threading.Timer(0.2, made.close).start()
    with pytest.raises(GivenUp):
        made.ask(PROMPT)
    with pytest.raises(GivenUp):
        made.ask(PROMPT)


@pytest.mark.parametrize("model", ["", " \t", KEY, f"gpt-4 {KEY}", KEY.upper()])
def test_a_judge_without_a_name_or_with_the_key_for_one_is_refused(server: Server, model: str) -> None:
    with pytest.raises(UsageError, check=wording) as error:
        Endpoint(model, server.url, KEY, max_tokens=1, timeout_s=1)
    assert "sk-" not in str(error.value)
