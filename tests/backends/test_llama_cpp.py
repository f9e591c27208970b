"""llama.cpp: what its server sends becomes arrivals and faults; against a fake, recorded streams, and a real one."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
import torch
from support.wording import wording

from specbench.backends.catalog import engine_mode
from specbench.backends.llama import llama_cpp, llama_options
from specbench.backends.llama.llama_program import Program
from specbench.backends.llama.llama_stream import Steps
from specbench.backends.protocol import Arrival, Question, Served, Several
from specbench.common.errors import EngineFault
from specbench.common.options import parse_options
from specbench.results.engine_facts import ServedWeights

HERE = Path(__file__).parent
FAKE = HERE / "fake_llama_server.py"
_SPEC = util.spec_from_file_location("fake_llama_server", FAKE)
assert _SPEC is not None
assert _SPEC.loader is not None
fake = util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fake)

STREAMS: dict[str, list[dict[str, Any]]] = json.loads((HERE / "llama_streams.json").read_text())
QUESTION = Question(ids=(5, 6, 7), budget=8, stop_ids=frozenset())


def of_cpu() -> Any:
    """As much of a loaded model as the backend looks at."""
    return SimpleNamespace(
        model=SimpleNamespace(device=torch.device("cpu")), spec=SimpleNamespace(name="toy", fingerprint="f")
    )


def backend(
    row: str, url: str | None = None, loaded: Any = None, together: int = 1, **options: Any
) -> llama_cpp.Backend:
    made, mode, described = engine_mode(row)
    served = Served(row, loaded or of_cpu(), "float32", 1, 256, url=url, together=together)
    return cast(llama_cpp.Backend, made(mode, parse_options(described.options, options, row), served))


def ids(arrivals: list[Arrival]) -> list[int]:
    return [each for arrival in arrivals for each in arrival.ids]


def at_once(several: Several, questions: list[Question]) -> dict[int, list[Arrival]]:
    """The answers to all questions by request."""
    found: dict[int, list[Arrival]] = {several.submit(question): [] for question in questions}
    left, until = len(found), time.monotonic() + 60
    while left and time.monotonic() < until:
        for number, arrival in several.poll(1):
            found[number] += [arrival] if arrival else []
            left -= arrival is None
    assert not left
    return found


# ------------------------------------------------------------------------------------------------------------ the steps


def steps_of(events: list[dict[str, Any]], budget: int, stop: frozenset[int] = frozenset()) -> Steps:
    return Steps(Question((0,) * events[0]["timings"]["prompt_n"], budget, stop), drafts=True)


def flat(arrivals: list[list[Arrival]]) -> list[Arrival]:
    return [one for each in arrivals for one in each]


def pushed(steps: Steps, events: list[dict[str, Any]]) -> list[list[Arrival]]:
    """The arrivals that each event completes."""
    return [list(steps.take(at, event)) for at, event in enumerate(events)]


@pytest.mark.parametrize(
    ("name", "forwards", "mean_len"),
    # What the server that sent them wrote into its log: 1 + accepted / verified, counted by itself.
    [("ar", 5, None), ("ngram-simple", 15, 3.93), ("ngram-mod", 7, 8.43), ("mixed", 46, 5.25)],
)
def test_recorded_streams_are_split_into_forwards(name: str, forwards: int, mean_len: float | None) -> None:
    events = STREAMS[name]
    sent = [each for event in events for each in event["tokens"]]
    steps = steps_of(events, len(sent))
    arrivals = flat(pushed(steps, events))
    counters = steps.counters()
    histogram = counters.histogram or ()
    assert ids(arrivals) == sent
    assert len(arrivals[0].ids) == 1
    accepted = events[-1]["timings"].get("draft_n_accepted", 0)
    assert len(arrivals) - 1 == len(sent) - 1 - accepted == forwards
    assert sum(count * number for number, count in enumerate(histogram)) == counters.accepted_tokens == accepted
    assert counters.own.get("mean_len") == (None if mean_len is None else pytest.approx(mean_len, abs=0.005))
    # An arrival's time is that of its last token, not of later events.
    ends = [sum(len(each.ids) for each in arrivals[: at + 1]) - 1 for at in range(len(arrivals))]
    assert [each.at_ns for each in arrivals] == ends


def test_a_step_is_handed_over_as_soon_as_it_is_complete() -> None:
    events = STREAMS["mixed"]
    assert [at for at, made in enumerate(pushed(steps_of(events, 64), events), 1) if made][:3] == [1, 2, 11]


def test_a_step_that_an_end_cuts_is_handed_over_with_what_came() -> None:
    end = {
        "tokens": [],
        "stop": True,
        "tokens_predicted": 5,
        "stop_type": "eos",
        "timings": STREAMS["mixed"][4]["timings"],
    }
    events = [*STREAMS["mixed"][:5], end]
    last = events[4]["tokens"][0]
    arrivals = flat(pushed(steps_of(events, 64, frozenset([last])), events))
    assert [len(each.ids) for each in arrivals] == [1, 1, 3]
    assert arrivals[-1].at_ns == 4


# ------------------------------------------------------------------------------------------------------ by URL, a fake


@contextmanager
def served(behaviour: str = "", **more: Any) -> Iterator[Any]:
    with fake.Fake(behaviour, **more) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_by_url_it_answers_and_nothing_is_said_of_its_weights() -> None:
    with served() as server:
        engine = backend("llama.cpp:ar", server.url)
        facts = engine.start()
        arrivals = list(engine.ask(QUESTION))
        counters = engine.counters()
        engine.close()
    assert (facts.how, facts.version, facts.counts, facts.ids) == ("url", "b1-fake", "forwards", True)
    assert not facts.weights.verified
    assert [list(each.ids) for each in arrivals] == [[8], [9], [10], [11], [12], [13], [14], [15]]
    assert (counters.forwards, counters.draft_tokens, counters.accepted_tokens) == (None, None, None)
    assert counters.own == {"prompt_ms": 2.0, "predicted_ms": 70.0}
    assert not engine.processes()


def test_drafts_are_counted_and_the_engines_own_figures_are_by_its_own_names() -> None:
    with served(speculative=True) as server:
        engine = backend("llama.cpp:ngram-simple", server.url)
        engine.start()
        arrivals = list(engine.ask(QUESTION))
        counters = engine.counters()
    assert [len(each.ids) for each in arrivals] == [1, 2, 1, 2, 1, 1]
    assert (counters.draft_tokens, counters.accepted_tokens) == (4, 2)
    assert counters.own == {"prompt_ms": 2.0, "predicted_ms": 50.0, "mean_len": 2.0, "draft_acceptance": 0.5}
    assert set(counters.own) == set(engine.modes["ngram-simple"].measures)


def test_several_requests_have_counters_of_their_own() -> None:
    with served("slow", speculative=True) as server:
        server.slots = 2
        engine = backend("llama.cpp:ngram-simple", server.url, together=2)
        engine.start()
        several = engine.several()
        short = Question(ids=(20,), budget=3, stop_ids=frozenset())
        found = at_once(several, [QUESTION, short])
        assert [ids(each) for each in found.values()] == [[*range(8, 16)], [21, 22, 23]]
        assert [several.counters(number).accepted_tokens for number in found] == [2, 0]
        several.submit(Question((5,), 500, frozenset()))
        while not several.poll(1):
            pass
        several.close()
        assert not server.busy, "it is idle again"


def test_every_sampler_but_the_runs_is_left_out() -> None:
    with served() as server:
        engine = backend("llama.cpp:ar", server.url)
        engine.start()
        list(engine.ask(QUESTION))
        list(engine.ask(Question((1,), 4, frozenset(), temperature=0.7, top_k=5, top_p=0.9, seed=(1 << 40) + 3)))
    greedy, drawn = server.asked[1:]
    assert (greedy["samplers"], greedy["top_k"], greedy["temperature"]) == (["top_k"], 1, 0.0)
    assert drawn["samplers"] == ["top_k", "temperature", "top_p"]
    assert [drawn[key] for key in ("temperature", "top_k", "top_p", "seed")] == [0.7, 5, 0.9, 3]
    for body in (greedy, drawn):
        assert (body["cache_prompt"], body["ignore_eos"], body["mirostat"], body["dynatemp_range"]) == (False,) * 2 + (
            0,
        ) * 2


@pytest.mark.parametrize(
    "behaviour",
    [
        "error",
        "an error",
        "garbage",
        "text for ids",
        "held back",
        "no timings",
        "early",
        "eos",
        "break",
        "stall",
        "trickle",
    ],
)
def test_what_a_server_does_wrong_is_one_sentence(behaviour: str) -> None:
    drafts = behaviour == "no timings"
    with served(behaviour, speculative=drafts) as server:
        row = "llama.cpp:ngram-simple" if drafts else "llama.cpp:ar"
        engine = backend(row, server.url, timeout=0.2 if behaviour in ("stall", "trickle") else 60)
        engine.start()
        with pytest.raises(EngineFault, check=wording) as raised:
            list(engine.ask(QUESTION))
    assert "\n" not in str(raised.value)


def test_an_end_of_its_own_that_is_the_runs_too_is_an_end() -> None:
    with served("eos") as server:
        engine = backend("llama.cpp:ar", server.url)
        engine.start()
        assert ids(list(engine.ask(Question((5, 6, 7), 8, frozenset([10]))))) == [8, 9, 10]


def test_closing_gives_a_request_up_and_returns_when_it_is_idle_again() -> None:
    with served("slow") as server:
        engine = backend("llama.cpp:ar", server.url)
        engine.start()
        arrivals = engine.ask(Question((5,), 500, frozenset()))
        assert [list(next(arrivals).ids) for _ in range(3)] == [[6], [7], [8]]
        assert server.busy
        cast(Any, arrivals).close()
        assert not server.busy
        assert engine.counters().own == {}, "it tells its times at the end"
        assert ids(list(engine.ask(QUESTION))) == list(range(8, 16))


@pytest.mark.parametrize(
    ("row", "behaviour", "options"),
    [
        ("llama.cpp:ngram-simple", "", {}),
        ("llama.cpp:ar", "no slots", {}),
        ("llama.cpp:ar", "small", {}),
        ("llama.cpp:ar", "few slots", {}),
        ("llama.cpp:ar", "", {"flash_attn": "on", "cache_type": "f16"}),
    ],
)
def test_a_server_that_does_not_go_with_the_row_is_refused(
    row: str, behaviour: str, options: Mapping[str, str]
) -> None:
    with served(behaviour) as server:
        server.room = 8 if behaviour == "small" else 512
        with pytest.raises(EngineFault, check=wording):
            backend(row, server.url, together=2 if behaviour == "few slots" else 1, **options).start()


# ---------------------------------------------------------------------------------------------- started here, a fake


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    file = tmp_path / "llama-server"
    file.write_text(f'#!/bin/sh\nexec {sys.executable} -S {FAKE} "$@"\n')
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    weights = ServedWeights(format="gguf", verified=True)
    for module in (llama_cpp, llama_options):
        monkeypatch.setattr(module, "weights_of", lambda served, kind: (tmp_path / "w.gguf", weights))
    return str(file)


def test_it_is_started_with_what_decides_its_speed_and_leaves_no_process(program: str) -> None:
    engine = backend("llama.cpp:ngram-simple", server=program, size_n=3, server_args="--load-mode none")
    assert engine.version(engine.options) == "0.0.0-fake (build 7, commit abc)"
    facts = engine.start()
    (pid,) = engine.processes()
    command = " ".join(facts.command)
    assert command.startswith("llama-server --cache-ram 0 --cache-type-k f32 --cache-type-v f32 --ctx-size 256")
    assert wording(command)
    assert "--spec-ngram-simple-min-hits 1 --spec-ngram-simple-size-m 48 --spec-ngram-simple-size-n 3" in command
    assert "/" not in command
    assert facts.version == "0.0.0-fake (build 7, commit abc)"
    assert 0 < facts.start_s < 60
    assert ids(list(engine.ask(QUESTION))) == list(range(8, 16))
    engine.close()
    engine.close()
    assert not psutil.pid_exists(pid)
    assert not engine.processes()


@pytest.mark.parametrize(
    ("behaviour", "options"),
    [
        ("bad file", {}),
        ("never ready", {"start_timeout": 0.2}),
        ("another help", {}),
        ("", {"server_args": "-c 77"}),
        ("", {"server_args": "--spec-synth-len=3"}),
        ("", {"server_args": "-md other.gguf"}),
        ("", {"server_args": "'"}),
    ],
)
def test_one_that_does_not_start_says_why_and_leaves_no_process(
    program: str, monkeypatch: pytest.MonkeyPatch, behaviour: str, options: Any
) -> None:
    monkeypatch.setenv("FAKE_LLAMA", behaviour)
    before = set(psutil.Process().children(recursive=True))
    engine = backend("llama.cpp:ar", server=program, **options)
    try:
        with pytest.raises(EngineFault, check=wording):
            engine.start()
    finally:
        engine.close()
    made = set(psutil.Process().children(recursive=True)) - before
    assert not [each for each in made if each.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("several", [False, True])
def test_one_that_dies_in_the_middle_says_how(program: str, monkeypatch: pytest.MonkeyPatch, several: bool) -> None:
    monkeypatch.setenv("FAKE_LLAMA", "death")
    engine = backend("llama.cpp:ar", server=program)
    engine.start()
    with pytest.raises(EngineFault, check=wording):
        at_once(engine.several(), [QUESTION]) if several else list(engine.ask(QUESTION))
    assert not engine.processes()
    engine.close()


def test_each_slot_has_the_whole_context(program: str) -> None:
    engine = backend("llama.cpp:ar", server=program, together=3)
    command = " ".join(engine.start().command)
    engine.close()
    assert "--ctx-size 768" in command
    assert "--parallel 3" in command


@pytest.mark.parametrize(
    ("mode", "kind"), [("draft", "draft-simple"), ("eagle3", "draft-eagle3"), ("ngram-map-k4v", "ngram-map-k4v")]
)
def test_the_mode_is_a_type_of_speculation(program: str, mode: str, kind: str) -> None:
    drafts: dict[str, Any] = {} if mode.startswith("ngram") else {"model": "/heads/toy.gguf", "n_max": 5}
    engine = backend(f"llama.cpp:{mode}", server=program, **drafts)
    command = " ".join(engine.start().command)
    engine.close()
    assert f"--spec-type {kind}" in command
    assert ("--spec-draft-n-max 5" in command) == ("--spec-draft-type-k f32" in command) == bool(drafts)


@pytest.mark.parametrize("model", ["", "nowhere", "config:tiny"])
def test_a_draft_model_that_cannot_be_used(program: str, model: str) -> None:
    loaded = SimpleNamespace(**vars(of_cpu()), vocab_size=3)
    with pytest.raises(EngineFault, check=wording):
        backend("llama.cpp:draft", loaded=loaded, server=program, model=model).start()


def test_one_that_is_not_there_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(EngineFault, check=wording):
        backend("llama.cpp:ar").start()
    with pytest.raises(EngineFault, check=wording):
        backend("llama.cpp:ar", server="/nowhere").version(SimpleNamespace(server="/nowhere"))
    made = tmp_path / "specbench" / "engines" / "llama.cpp" / "llama-server"
    made.parent.mkdir(parents=True)
    made.write_text("#!/bin/sh\n")
    made.chmod(0o755)
    assert Program("").path == str(made)


# ------------------------------------------------------------------------------------------------- a real one, if any


def _installed() -> str | None:
    try:
        return Program("").path
    except EngineFault:
        return None


real = pytest.mark.skipif(_installed() is None, reason="no llama-server in the cache's engines nor on the PATH")


def logged(engine: llama_cpp.Backend) -> list[float]:
    """The mean lengths that the server wrote into its log, one per request that had a draft."""
    assert engine._child is not None
    log = os.pread(engine._child._log.fileno(), 1 << 20, 0).decode()
    return [float(each) for each in re.findall(r"mean len = +([\d.]+)", log)]


_LOOKUP = {"size_n": 3, "size_m": 8}
_REAL = [
    ("llama.cpp:ar", {}),
    ("llama.cpp:ngram-simple", _LOOKUP),
    ("llama.cpp:ngram-map-k", _LOOKUP),
    ("llama.cpp:ngram-map-k4v", _LOOKUP),
    ("llama.cpp:ngram-mod", {"n_match": 2, "n_min": 1, "n_max": 8}),
    ("llama.cpp:ngram-cache", {}),
    ("llama.cpp:draft", {"model": "smollm2-135m"}),
]


@pytest.mark.slow
@real
@pytest.mark.parametrize(("row", "options"), _REAL)
def test_a_real_one_decodes_what_our_engine_decodes(row: str, options: Any) -> None:
    from specbench.models import load
    from specbench.planning.methods import plan_methods
    from specbench.runner import Request, Session, StopRule

    loaded = load("smollm2-135m", dtype="float32", device="cpu")
    prompt = loaded.tokenizer("def fib(n):\n    if n < 2:\n        return n\n    return fib(n - 1) + fib(n - 2)\n" * 2)
    with Session(loaded, plan_methods(["ar"], []), capacity=256) as session:
        asked = Request("p", 0, prompt["input_ids"], StopRule(frozenset(), (), 32, str))
        (record,) = session.decode(session.methods[0], [asked])
    engine = backend(row, loaded=loaded, **options)
    try:
        facts = engine.start()
        question = Question(prompt["input_ids"], 32, frozenset())
        arrivals = list(engine.ask(question))
        counters = engine.counters()
        assert ids(arrivals) == record.output_ids, facts.version
        assert len(arrivals) - 1 == 31 - (counters.accepted_tokens or 0), facts.version
        assert set(counters.own) == set(engine.modes[engine.mode].measures), facts.version
        if counters.accepted_tokens:  # the log's own count of steps
            assert logged(engine) == [pytest.approx(counters.own["mean_len"], abs=0.005)]
        if row == "llama.cpp:draft":
            assert counters.accepted_tokens == counters.draft_tokens, "it is its own draft model"
        early = engine.ask(question)
        assert next(early).ids[0] == record.output_ids[0]
        began = time.monotonic()
        cast(Any, early).close()
        assert not any(slot["is_processing"] for slot in engine._slots()), f"{time.monotonic() - began:.3f} s"
    finally:
        engine.close()


@pytest.mark.slow
@real
@pytest.mark.parametrize(("row", "options"), [_REAL[0], _REAL[1], _REAL[-1]])
def test_slots_of_a_real_one_decode_what_one_does(row: str, options: Any) -> None:
    from specbench.models import load

    loaded = load("smollm2-135m", dtype="float32", device="cpu")
    texts = [
        "def fib(n):\n    if n < 2:\n        return n\n    return fib(n - 1) + fib(n - 2)\n" * 2,
        "1 2 3 4 " * 5,
        "Once",
    ]
    questions = [Question(loaded.tokenizer(text)["input_ids"], 32, frozenset()) for text in texts]
    alone = backend(row, loaded=loaded, **options)
    together = backend(row, loaded=loaded, together=2, **options)
    try:
        alone.start()
        expected = [ids(list(alone.ask(question))) for question in questions]
        together.start()
        assert [slot["n_ctx"] >= 256 for slot in together._slots()] == [True, True]
        several = together.several()
        found = at_once(several, questions)
        counters = [several.counters(number) for number in found]
        assert [ids(each) for each in found.values()] == expected
        for arrivals, each in zip(found.values(), counters, strict=True):
            assert len(arrivals) - 1 == 31 - (each.accepted_tokens or 0)
        own = [each.own["mean_len"] for each in counters if "mean_len" in each.own]
        assert sorted(logged(together)) == [pytest.approx(each, abs=0.005) for each in sorted(own)]
        several.close()
    finally:
        alone.close()
        together.close()
