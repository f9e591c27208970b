"""Rows of servers by URL, OpenAI-compatible ones and vLLM's, against a fake of ours."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from support.engines import EOS, MODEL, Completing, begin, completing, event
from support.wording import wording

from specbench.backends import openai, vllm
from specbench.backends.protocol import Backend, Question, Served
from specbench.common.errors import EngineFault
from specbench.common.options import parse_options

NEVER: frozenset[int] = frozenset()


def made(server: Completing, mode: str = "ar", kind: Any = openai, **options: Any) -> Any:
    own = parse_options(kind.Backend.modes[mode].options, {"timeout": 5, **options}, mode)
    return kind.Backend(mode, own, Served(f"x:{mode}", MODEL, "float32", 2, 64, url=server.url))


@pytest.fixture
def server() -> Iterator[Completing]:
    with completing() as found:
        yield found


def answer(backend: Backend, *, budget: int = 5, stop: frozenset[int] = NEVER, **how: Any) -> tuple[list[int], str]:
    arrivals = list(backend.ask(Question([1, 2], budget, stop, **how)))
    return [token for each in arrivals for token in each.ids], "".join(each.text for each in arrivals)


def test_ids_in_and_out_where_the_server_can(server: Completing) -> None:
    backend = made(server)
    facts = backend.start()
    assert facts.ids
    assert backend.knows_stop_ids
    assert (facts.version, facts.how, facts.counts) == ("0.32.0", "url", "nothing")
    assert not facts.weights.verified
    assert answer(backend, stop=frozenset({5}))[0] == [3, 4, 5]
    asked = server.asked[-1]
    assert asked["prompt"] == [1, 2]
    assert asked["return_token_ids"] is True
    assert asked["stop_token_ids"] == [5]
    assert asked["ignore_eos"] is True
    assert asked["temperature"] == 0
    assert "seed" not in asked
    counters = backend.counters()
    assert (counters.forwards, counters.draft_tokens) == (None, None)
    assert backend.processes() == ()


def test_sampling_is_the_runs(server: Completing) -> None:
    backend = made(server)
    backend.start()
    answer(backend, temperature=0.7, top_k=20, top_p=0.9, seed=3)
    assert {name: server.asked[-1][name] for name in ("temperature", "top_k", "top_p", "seed")} == {
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 0.9,
        "seed": 3,
    }


def test_text_in_and_out_where_it_cannot_and_the_row_says_so() -> None:
    with completing(ids=False) as server:
        backend = made(server, "spec")
        facts = backend.start()
        assert not facts.ids
        assert not backend.knows_stop_ids
        assert answer(backend) == ([], "defgh")
        assert server.asked[-1]["prompt"] == "bc"
        assert not {"return_token_ids", "stop_token_ids", "ignore_eos"} & server.asked[-1].keys()
        # Its own end is a token that it does not send; what is read from the text has it.
        assert answer(backend, budget=50, stop=frozenset({EOS}))[1] == "defghijklmnopqrstuvwxyz"


def test_a_server_that_takes_ids_and_sends_text_is_a_server_of_text() -> None:
    def text_only(handler: BaseHTTPRequestHandler, asked: Any) -> None:
        begin(handler)
        event(handler, {"choices": [{"index": 0, "text": "d", "finish_reason": "length"}]})

    with completing(stream=text_only) as server:
        assert not made(server).start().ids


@pytest.mark.parametrize(
    "sent",
    [
        {"choices": [{"text": "d", "token_ids": [3], "prompt_token_ids": [9]}]},
        {"choices": [{"text": "d"}]},
        {"choices": [{"text": "d", "token_ids": "3"}]},
        {"choices": ["d"]},
        {"object": "x"},
        [1],
        {"error": {"message": "engine dead"}},
    ],
)
def test_events_that_are_none_are_faults(server: Completing, sent: Any) -> None:
    backend = made(server)
    backend.start()

    def stream(handler: BaseHTTPRequestHandler, asked: Any) -> None:
        begin(handler)
        event(handler, sent)

    server.stream = stream
    with pytest.raises(EngineFault, check=wording):
        answer(backend)


def test_which_model_is_asked_for(server: Completing) -> None:
    backend = made(server)
    backend.start()
    assert server.asked[-1]["model"] == "tiny"
    made(server, model="other").start()
    assert server.asked[-1]["model"] == "other"
    server.models = ["one", "two"]
    with pytest.raises(EngineFault, check=wording):
        made(server).start()


def test_vllm_by_url_counts_by_its_own_counters() -> None:
    with completing(speculates=True) as server:
        backend = made(server, "ngram", vllm)
        facts = backend.start()
        assert (facts.counts, facts.how, facts.stopped) == ("total", "url", False)
        assert not facts.weights.verified
        assert answer(backend, budget=9)[0] == list(range(3, 12))
        counters = backend.counters()
        assert counters is backend.counters(), "asked again it reads nothing anew"
        # After the first token: 3, 3 and 2.
        assert (counters.forwards, counters.draft_tokens, counters.accepted_tokens) == (3, 12, 5)
        assert counters.own == {"mean_acceptance_length": pytest.approx(1 + 5 / 3)}
        answer(backend, budget=4)
        assert (backend.counters().forwards, backend.counters().accepted_tokens) == (1, 2)


def test_counters_with_somebody_elses_tokens_in_them_are_not_taken() -> None:
    with completing(speculates=True) as server:
        backend = made(server, "ngram", vllm)
        backend.start()
        server.others = 7
        answer(backend)
        assert (backend.counters().forwards, backend.counters().draft_tokens, backend.counters().own) == (
            None,
            None,
            {},
        )
        server.others = 0
        answer(backend)
        assert backend.counters().forwards == 2


def test_an_answer_of_vllm_by_url_that_is_given_up_has_its_events_as_forwards(server: Completing) -> None:
    backend = made(server, "ar", vllm)
    backend.start()
    arrivals = backend.ask(Question([1], 1_000_000, NEVER))
    for _ in range(4):
        next(arrivals)
    arrivals.close()
    assert server.left.wait(10)
    assert backend.counters().forwards == 3
    answer(backend)
    assert backend.counters().forwards == 4
