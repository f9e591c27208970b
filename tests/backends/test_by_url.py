"""Rows of servers that only the user can start, against replies in the form of their sources: content is made up."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from support.engines import MODEL, Completing, begin, completing, event, whole
from support.wording import wording

from specbench.backends.catalog import engine_mode
from specbench.backends.protocol import Arrival, Question, Served, Several
from specbench.common.errors import EngineFault
from specbench.common.options import parse_options

REPLIES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "url_replies.json").read_text())
ENGINES = [*REPLIES]
QUESTION = Question(ids=(5, 6, 7), budget=8, stop_ids=frozenset())
SPEC = {"sglang": "eagle3", "lmdeploy": "eagle3", "tensorrt-llm": "ngram"}

Behaviour = Callable[[BaseHTTPRequestHandler, list[Any]], object]


def replay(handler: BaseHTTPRequestHandler, events: list[Any]) -> None:
    begin(handler)
    for each in events:
        event(handler, each)
    handler.wfile.write(b"data: [DONE]\n\n")


@contextmanager
def served(engine: str, kind: str = "ar", answer: str = "", behaves: Behaviour = replay) -> Iterator[Completing]:
    """A server that is started without or with speculation ("ar", "spec"); its answer to a start is always good."""
    replies = REPLIES[engine]
    counted = dict.fromkeys(("generation_tokens", *(f"spec_decode_num_{each}" for each in DRAFTS)), 0)

    def metrics() -> str:
        labels = '{engine="0",model_name="tiny"}'
        return "# HELP\n" + "\n".join(f"lmdeploy:{key}_total{labels} {value}.0" for key, value in counted.items())

    def stream(handler: BaseHTTPRequestHandler, asked: Any) -> None:
        try:
            answer_to(handler, asked)
        except OSError:
            server.left.set()

    def answer_to(handler: BaseHTTPRequestHandler, asked: Any) -> None:
        if "logprob_start_len" in asked:
            whole(handler, 400, json.dumps(replies["refused"][kind]).encode())
        elif 3 not in (len(asked.get(key, ())) for key in ("input_ids", "prompt")):
            counted["generation_tokens"] += 2
            replay(handler, replies["probe"])
        else:
            counted["generation_tokens"] += 8
            for key, value in DRAFTS.items() if kind == "spec" else ():
                counted[f"spec_decode_num_{key}"] += value
            behaves(handler, json.loads(json.dumps(replies[answer or kind])))

    pages = {**({"/metrics": metrics} if engine == "lmdeploy" else {}), **replies["pages"][kind]}
    with completing(stream=stream, pages=pages) as server:
        yield server


#: Of the recorded answer with speculation: 1 token, then 3, 1 and 3 of 4, with three tokens per draft.
DRAFTS = {"drafts": 3, "draft_tokens": 9, "accepted_tokens": 5}


def row(server: Completing, engine: str, mode: str = "ar", **options: Any) -> Any:
    made, mode, kind = engine_mode(f"{engine}:{mode}")
    own = parse_options(kind.options, {"timeout": 5, **options}, engine)
    return made(mode, own, Served(f"{engine}:{mode}", MODEL, "float32", 2, 64, url=server.url))


def ids(arrivals: list[Arrival]) -> list[int]:
    return [token for each in arrivals for token in each.ids]


def tokens(arrivals: list[Arrival]) -> list[list[int]]:
    return [list(each.ids) for each in arrivals]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_version_tried_is_the_recordings(engine: str) -> None:
    for mode in engine_mode(f"{engine}:ar")[0].modes.values():
        kind, _, whose = mode.tried.partition(": ")
        assert kind == "imitated"
        assert re.findall(r"0\.\d+\.\d+|[0-9a-f]{8}", whose)[0] in REPLIES[engine]["source"]


@pytest.mark.parametrize("engine", ENGINES)
def test_plain_decoding_is_one_forward_per_token(engine: str) -> None:
    with served(engine) as server:
        backend = row(server, engine)
        facts = backend.start()
        assert tokens(list(backend.ask(QUESTION))) == [[token] for token in range(8, 16)]
        counters = backend.counters()
    assert (facts.engine, facts.how, facts.ids, facts.counts) == (engine, "url", True, "total")
    assert not facts.weights.verified
    assert (counters.forwards, counters.draft_tokens, counters.accepted_tokens) == (7, None, None)
    assert set(counters.own) <= set(backend.modes["ar"].measures)


@pytest.mark.parametrize("engine", ENGINES)
def test_forwards_of_speculation_are_ours(engine: str) -> None:
    with served(engine, "spec") as server:
        backend = row(server, engine, SPEC[engine])
        backend.start()
        assert tokens(list(backend.ask(QUESTION))) == [[8], [9, 10, 11], [12], [13, 14, 15]]
        counters = backend.counters()
    assert counters.forwards == 3
    if engine != "tensorrt-llm":
        assert (counters.draft_tokens, counters.accepted_tokens) == (9, 5)
    own = {"spec_accept_length": 8 / 3, "mean_accept_length": 1 + 5 / 3, "avg_decoded_tokens_per_iter": 2.0}
    assert counters.own.keys() <= set(backend.modes[backend.mode].measures)
    (named,) = own.keys() & counters.own.keys()
    assert counters.own[named] == pytest.approx(own[named])


@pytest.mark.parametrize("engine", ENGINES)
def test_url_rows_answer_several_at_once(engine: str) -> None:
    with served(engine, "spec") as server:
        backend = row(server, engine, SPEC[engine])
        backend.start()
        several = backend.several()
        found: dict[int, list[int]] = {several.submit(QUESTION): [] for _ in range(3)}
        left, until = len(found), time.monotonic() + 20
        while left and time.monotonic() < until:
            for number, arrival in several.poll(1):
                found[number] += arrival.ids if arrival else []
                left -= arrival is None
        assert [*found.values()] == [[*range(8, 16)]] * 3
        # LMDeploy's counters are those of all requests.
        assert {several.counters(number).forwards for number in found} == {None if engine == "lmdeploy" else 3}
        several.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_stop_token_ends_and_arrives(engine: str) -> None:
    with served(engine, answer="stop") as server:
        backend = row(server, engine)
        backend.start()
        asked = Question((5, 6, 7), 8, frozenset([10, 4]), temperature=0.7, top_p=0.9, seed=3)
        assert tokens(list(backend.ask(asked))) == [[8], [9], [10]]
        body = server.asked[-1]
    sampling = body.get("sampling_params", body)
    assert sampling["stop_token_ids"] == [4, 10]
    assert [sampling[key] for key in ("temperature", "top_p")] == [0.7, 0.9]
    assert sampling["top_k"] in (0, -1)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("kind", "mode"), [("ar", "spec"), ("spec", "ar")])
def test_a_mode_that_the_server_does_not_run(engine: str, kind: str, mode: str) -> None:
    with served(engine, kind) as server, pytest.raises(EngineFault, check=wording):
        row(server, engine, SPEC[engine] if mode == "spec" else "ar").start()


def _ids_as_text(handler: BaseHTTPRequestHandler, events: list[Any]) -> None:
    replay(handler, json.loads(json.dumps(events).replace("[8", '["eight"')))


def _another_prompt(handler: BaseHTTPRequestHandler, events: list[Any]) -> None:
    replay(handler, json.loads(json.dumps(events).replace('"prompt_tokens": 3', '"prompt_tokens": 4')))


def _aborted(handler: BaseHTTPRequestHandler, events: list[Any]) -> None:
    replay(handler, json.loads(json.dumps(events).replace('"length"', '"abort"')))


def _too_many(handler: BaseHTTPRequestHandler, events: list[Any]) -> None:
    replay(handler, json.loads(json.dumps(events).replace("[8]", "[8, 8, 8, 8, 8, 8, 8, 8, 8]")))


def _killed(handler: BaseHTTPRequestHandler, events: list[Any]) -> None:
    begin(handler)
    event(handler, events[0])


def _no_end(handler: BaseHTTPRequestHandler, events: list[Any]) -> None:
    replay(handler, events[:4])


def _stalled(handler: BaseHTTPRequestHandler, events: list[Any]) -> None:
    begin(handler)
    event(handler, events[0])
    time.sleep(1.5)


def _empty(handler: BaseHTTPRequestHandler, events: list[Any]) -> None:
    nothing = json.loads(
        json.dumps(events[0]).replace("[8]", "[]").replace('"completion_tokens": 1', '"completion_tokens": 0')
    )
    begin(handler)
    for _ in range(30):
        event(handler, nothing)
        time.sleep(0.05)


BEHAVIOURS: Mapping[str, Behaviour] = {
    "killed": _killed,
    "refuses": lambda handler, events: whole(handler, 503, b'{"error": {"message": "out of memory"}}'),
    "error": lambda handler, events: replay(handler, [events[0], {"error": {"message": "out of memory"}}]),
    "no completion": lambda handler, events: replay(handler, [[1]]),
    "text for ids": _ids_as_text,
    "another prompt": _another_prompt,
    "aborted": _aborted,
    "too many": _too_many,
    "no end": _no_end,
    "stalled": _stalled,
    "empty": _empty,
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_a_fault_of_a_server_is_one_sentence(engine: str, behaviour: str) -> None:
    with served(engine, behaves=BEHAVIOURS[behaviour]) as server:
        backend = row(server, engine, timeout=0.5)
        backend.start()
        with pytest.raises(EngineFault, check=wording) as raised:
            list(backend.ask(QUESTION))
    assert "\n" not in str(raised.value)


def poll(several: Several, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        several.poll(0.2)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_faults_of_several_requests_are_noticed_too(engine: str, behaviour: str) -> None:
    with served(engine, behaves=BEHAVIOURS[behaviour]) as server:
        backend = row(server, engine, timeout=0.5)
        backend.start()
        several = backend.several()
        several.submit(QUESTION)
        with pytest.raises(EngineFault):
            poll(several, 5)
        several.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_an_answer_that_is_given_up(engine: str) -> None:
    def slow(handler: BaseHTTPRequestHandler, events: list[Any]) -> None:
        begin(handler)
        for each in events * 100:
            event(handler, each)
            time.sleep(0.01)

    with served(engine, "spec", behaves=slow) as server:
        backend = row(server, engine, SPEC[engine])
        backend.start()
        arrivals = backend.ask(QUESTION)
        assert [*next(arrivals).ids, *next(arrivals).ids] == [8, 9, 10, 11]
        arrivals.close()
        assert server.left.wait(5), "the connection is closed"
        counters = backend.counters()
    assert (counters.forwards, counters.draft_tokens) == (None if engine == "lmdeploy" else 1, None)


# ------------------------------------------------------------------------------------------------------------- SGLang


def answered(engine: str, kind: str, answer: str, change: Callable[[list[Any]], object]) -> Any:
    """The counters of an answer whose events were changed."""

    def behaves(handler: BaseHTTPRequestHandler, events: list[Any]) -> None:
        change(events)
        replay(handler, events)

    with served(engine, kind, answer, behaves) as server:
        backend = row(server, engine, SPEC[engine] if kind == "spec" else "ar")
        backend.start()
        assert ids(list(backend.ask(QUESTION))) == [*range(8, 16)]
        return backend.counters()


def test_sglang_events_may_have_only_new_ids() -> None:
    assert answered("sglang", "spec", "increments", lambda events: None).forwards == 3


def test_sglang_events_may_be_sent_together() -> None:
    counters = answered("sglang", "spec", "spec", lambda events: events.pop(1))
    assert (counters.forwards, counters.histogram) == (3, [1, 0, 1, 1])


def test_sglang_steps_without_a_draft_are_forwards() -> None:
    def fewer(events: list[Any]) -> None:
        events[-1]["meta_info"] |= {"spec_verify_ct": 2, "spec_num_correct_drafts": 4}

    counters = answered("sglang", "spec", "spec", fewer)
    assert counters.forwards == 3, "two that verified, and one for the token that neither explains"
    assert counters.histogram is None, "it does not add up"


def test_sglang_draft_tokens_of_varying_length_are_unknown() -> None:
    counters = answered("sglang", "spec", "spec", lambda events: events[-1]["meta_info"].update(spec_cap_length=2.5))
    assert (counters.draft_tokens, counters.accepted_tokens) == (None, 5)


@pytest.mark.parametrize(
    "setting",
    [{"dtype": "bfloat16"}, {"speculative_accept_threshold_acc": 0.8}, {"speculative_algorithm": "NGRAM"}],
)
def test_an_sglang_server_that_does_not_fit(setting: dict[str, Any]) -> None:
    with served("sglang", "spec") as server:
        server.pages = {"/server_info": {**server.pages["/server_info"], **setting}}
        with pytest.raises(EngineFault, check=wording):
            row(server, "sglang", "eagle3").start()


def test_sglang_facts_name_the_settings_without_folders() -> None:
    with served("sglang", "spec") as server:
        facts = row(server, "sglang", "eagle3").start()
    assert facts.version == "0.5.23"
    assert {"model_path=tiny", "speculative_algorithm=EAGLE3", "speculative_draft_model_path=toy"} <= {*facts.command}
    assert "/" not in "".join(facts.command)


# ------------------------------------------------------------------------------------------- TensorRT-LLM, LMDeploy


def test_tensorrt_llm_may_not_count_its_last_iteration() -> None:
    def fewer(events: list[Any]) -> None:
        events[-2]["choices"][0]["avg_decoded_tokens_per_iter"] = 8 / 3

    assert answered("tensorrt-llm", "spec", "spec", fewer).forwards == 3


def test_lmdeploy_counters_with_other_requests_are_not_used() -> None:
    with served("lmdeploy", "spec") as server:
        backend = row(server, "lmdeploy", "eagle3")
        backend.start()
        list(backend.ask(QUESTION))
        list(backend.ask(QUESTION))  # the counters were not read in between
        assert backend.counters().forwards is None
        list(backend.ask(QUESTION))
        assert backend.counters().forwards == 3
