"""OpenVINO GenAI as a row: a fake package in a real worker, and in the slow test OpenVINO itself if it is installed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from support.engines import environment, follows
from support.wording import wording

from specbench.backends import openvino
from specbench.backends.protocol import Question, Served
from specbench.backends.workers.program import made_here
from specbench.common.errors import EngineFault
from specbench.common.options import parse_options
from specbench.results.engine_facts import ServedWeights

VERSION = "2026.4.1.0"
NEVER: frozenset[int] = frozenset()

# The next token is the one after; prompt lookup brings two tokens per step. FAKE_OPENVINO names what goes wrong.
_GENAI = """
import json, os, time
from types import SimpleNamespace

WRONG = os.environ.get("FAKE_OPENVINO", "")
GenerationStatus = SimpleNamespace(RUNNING=0, FINISHED=1, IGNORED=2, CANCEL=3)
SchedulerConfig = GenerationConfig = type("Settings", (), {"ignore_eos": False})


def get_version():
    return "2026.4.1.0"


def draft_model(path, device, **properties):
    return [path, device, properties]


class Handle:
    def __init__(self, last, config, many):
        self.last, self.config, self.many = last, config, many
        self.status, self.unread, self.out = 0, [], []

    def can_read(self):
        return bool(self.unread)

    def read(self):
        ids, self.unread = self.unread, []
        return {0: SimpleNamespace(generated_ids=ids)}

    def get_status(self):
        return self.status

    def cancel(self):
        self.status = 3

    def step(self):
        for _ in range(self.many if self.out else 1):
            self.out.append((self.out[-1] if self.out else self.last) + 1)
            self.unread.append(self.out[-1])
            ends = not self.config.ignore_eos and self.out[-1] in self.config.stop_token_ids
            if ends or len(self.out) == self.config.max_new_tokens:
                self.status = 1
                return


class ContinuousBatchingPipeline:
    def __init__(self, path, scheduler, device, properties):
        if WRONG == "refuses":
            raise RuntimeError("cannot read the model")
        with open(os.environ["FAKE_OPENVINO_SEES"], "w") as file:
            json.dump([path, vars(scheduler), device, properties, [n for n in os.environ if n.startswith("OV_")]], file)
        self.running, self.many = [], 2 if properties.get("prompt_lookup") else 1

    def add_request(self, number, ids, config):
        self.running.append(Handle(int(ids.data[0][-1]), config, self.many))
        return self.running[-1]

    def step(self):
        time.sleep(0.002)
        for handle in self.running:
            if WRONG == "stalls" and len(handle.out) == 3:
                time.sleep(60)
            if WRONG == "no memory" and len(handle.out) == 3:
                handle.status = 2
            if handle.status == 0:
                handle.step()
        self.running = [handle for handle in self.running if handle.status == 0]
"""
_OPENVINO = """
from types import SimpleNamespace


def Core():
    return SimpleNamespace(get_property=lambda device, name: ["FP32", "INT8"])


def Tensor(array):
    return SimpleNamespace(data=array)


def get_version():
    return "2026.4.1"
"""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., openvino.Backend]]:
    """Makes a backend over the fake, which goes wrong as it is named."""
    python = str(environment(tmp_path / "environment", "openvino-genai", VERSION))
    site = next((tmp_path / "environment").glob("lib/*/site-packages"))
    (site / "openvino_genai.py").write_text(_GENAI)
    (site / "openvino.py").write_text(_OPENVINO)
    (site / "numpy.py").write_text("int64 = int\n\n\ndef array(rows, dtype):\n    return rows\n")
    made: list[openvino.Backend] = []
    monkeypatch.setenv("FAKE_OPENVINO_SEES", str(tmp_path / "sees.json"))
    monkeypatch.setenv("OV_SOMETHING", "1")
    weights = ServedWeights(format="openvino", sha256="0" * 64, fingerprint="f" * 64, verified=True)
    monkeypatch.setattr(openvino, "converted", lambda model, dtype, program: (tmp_path / model.name, weights))
    monkeypatch.setattr(openvino, "drafter", lambda name, served: SimpleNamespace(name=name))

    def backend(wrong: str = "", mode: str = "ar", dtype: str = "float32", **raw: Any) -> openvino.Backend:
        monkeypatch.setenv("FAKE_OPENVINO", wrong)
        model: Any = SimpleNamespace(name="target", pad_id=0, vocab_size=1000)
        own = parse_options(openvino.Backend.modes[mode].options, {"python": python, "timeout": 2, **raw}, mode)
        made.append(openvino.Backend(mode, own, Served(f"openvino:{mode}", model, dtype, 2, 512, together=2)))
        return made[-1]

    yield backend
    for each in made:
        each.close()


def answer(backend: openvino.Backend, last: int, budget: int, stop: frozenset[int] = NEVER) -> list[list[int]]:
    return [list(arrival.ids) for arrival in backend.ask(Question([3, last], budget, stop))]


def test_answers_end_by_stop_ids_and_budget(make: Callable[..., openvino.Backend], tmp_path: Path) -> None:
    backend = make()
    facts = backend.start()
    assert answer(backend, 6, 5) == [[token] for token in follows(6, 5)]
    assert answer(backend, 6, 9, frozenset({9})) == [[7], [8], [9]]
    assert backend.counters().draft_tokens is None
    assert (facts.version, facts.how, facts.counts, facts.dtype) == (VERSION, "worker", "forwards", "float32")
    path, scheduler, device, properties, environment = json.loads((tmp_path / "sees.json").read_text())
    assert (path, device, environment) == (str(tmp_path / "target"), "CPU", [])
    assert scheduler["max_num_seqs"] == 2
    assert scheduler["max_num_batched_tokens"] == 512
    assert properties["INFERENCE_PRECISION_HINT"] == properties["KV_CACHE_PRECISION"] == "f32"
    assert properties["INFERENCE_NUM_THREADS"] == 2
    assert not any(str(tmp_path) in part for part in facts.command)


def test_each_mode_sets_its_own_properties(make: Callable[..., openvino.Backend], tmp_path: Path) -> None:
    backend = make(mode="pld", num_assistant_tokens=7)
    backend.start()
    assert answer(backend, 6, 4) == [[7], [8, 9], [10]]
    assert json.loads((tmp_path / "sees.json").read_text())[3]["prompt_lookup"] is True
    make(mode="draft", model="small").start()
    path, device, properties = json.loads((tmp_path / "sees.json").read_text())[3]["draft_model"]
    assert (path, device) == (str(tmp_path / "small"), "CPU")
    assert properties["INFERENCE_PRECISION_HINT"] == "f32"


def test_several_requests_and_one_that_is_given_up(make: Callable[..., openvino.Backend]) -> None:
    backend = make(mode="pld")
    backend.start()
    several = backend.several()
    endless, last = (several.submit(Question([3, last], budget, NEVER)) for last, budget in ((0, 900), (20, 5)))
    seen: dict[int, list[int]] = {endless: [], last: []}
    ended = False
    while not ended:
        for number, arrival in several.poll(20):
            if arrival is None:
                ended = number == last
            else:
                seen[number] += arrival.ids
    assert seen[last] == follows(20, 5)
    assert seen[endless]
    several.give_up(endless)
    several.close()
    assert answer(backend, 6, 3) == [[7], [8, 9]]


@pytest.mark.parametrize("wrong", ["stalls", "no memory"])
def test_a_fault_in_the_middle_leaves_no_process(make: Callable[..., openvino.Backend], wrong: str) -> None:
    backend = make(wrong)
    backend.start()
    (pid,) = backend.processes()
    with pytest.raises(EngineFault, check=wording):
        answer(backend, 6, 9)
    backend.close()
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize(("wrong", "how"), [("refuses", {}), ("", {"dtype": "bfloat16"}), ("", {"mode": "draft"})])
def test_what_does_not_start_says_why(make: Callable[..., openvino.Backend], wrong: str, how: Any) -> None:
    with pytest.raises(EngineFault, check=wording):
        make(wrong, **how).start()


def test_a_conversion_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "a warning\nValueError: unknown architecture\n")
    monkeypatch.setattr(openvino.subprocess, "run", lambda *command, **how: failed)
    with pytest.raises(EngineFault, check=wording):
        openvino._convert(SimpleNamespace(python="python"), tmp_path, tmp_path / "model")  # type: ignore[arg-type]


INSTALLED = made_here("openvino")


@pytest.mark.slow
@pytest.mark.skipif(
    INSTALLED is None or not (INSTALLED / "bin" / "python").exists(), reason="OpenVINO's environment is not installed"
)
def test_openvino_itself_gives_our_ids() -> None:
    from specbench.models import load
    from specbench.planning.methods import plan_methods
    from specbench.runner import Request, Session, StopRule

    loaded = load("smollm2-135m")
    texts = ("one two three four five six seven eight nine ten. " * 4, "The capital of France is")
    prompts = [loaded.tokenizer(text)["input_ids"] for text in texts]
    rule = StopRule(loaded.stop_ids, (), 40, loaded.decode)
    with Session(loaded, plan_methods(["ar"], []), capacity=256) as session:
        ours = [
            record.output_ids
            for ids in prompts
            for record in session.decode(session.methods[0], [Request("p", 0, ids, rule)])
        ]
    for mode, raw in (("ar", {}), ("pld", {}), ("draft", {"model": "smollm2-135m"})):
        own = parse_options(openvino.Backend.modes[mode].options, {"timeout": 300, **raw}, mode)
        backend = openvino.Backend(mode, own, Served(f"openvino:{mode}", loaded, "float32", 2, 256, together=2))
        try:
            facts = backend.start()
            assert facts.weights.verified
            for ids, wanted in zip(prompts, ours, strict=True):
                arrivals = [arrival.ids for arrival in backend.ask(Question(ids, 40, loaded.stop_ids))]
                assert [token for new in arrivals for token in new] == wanted, mode
                if mode == "draft":
                    assert len(arrivals[1]) == 6, "its own draft is right"
            several = backend.several()
            arrived: dict[int, list[int]] = {several.submit(Question(ids, 40, loaded.stop_ids)): [] for ids in prompts}
            running = set(arrived)
            while running:
                for number, arrival in several.poll(60):
                    if arrival is None:
                        running.remove(number)
                    else:
                        arrived[number] += arrival.ids
            assert list(arrived.values()) == ours, mode
        finally:
            backend.close()
