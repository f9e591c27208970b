"""vLLM as a row: against a fake package in a real worker; the slow tests below against vLLM itself, where it is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engines import VERSION, environment, follows
from support.wording import wording

import specbench
from specbench.backends import vllm
from specbench.backends.protocol import EngineCounters, Question, Served, Several
from specbench.backends.vllm_options import MODES, speculation
from specbench.backends.workers.program import Program, made_here
from specbench.backends.workers.vllm_heads import head_for_vllm
from specbench.common.child import pause, resume
from specbench.common.errors import EngineFault, UsageError
from specbench.common.options import parse_options
from specbench.results.engine_facts import ServedWeights

Make = Callable[..., vllm.Backend]
NEVER: frozenset[int] = frozenset()


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(environment(tmp_path_factory.mktemp("environment")))


@pytest.fixture
def make(python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes a backend over the fake, which goes wrong as it is named."""
    made: list[vllm.Backend] = []
    monkeypatch.setenv("FAKE_VLLM_SEES", str(tmp_path / "sees.json"))
    weights = ServedWeights(format="hf", sha256="0" * 64, fingerprint="f" * 64, verified=True)
    monkeypatch.setattr(vllm, "weights_of", lambda served, kind: (tmp_path, weights))

    def backend(wrong: str = "", mode: str = "ar", timeout: float = 20, together: int = 1, **raw: Any) -> vllm.Backend:
        monkeypatch.setenv("FAKE_VLLM", wrong)
        model: Any = SimpleNamespace(
            model=SimpleNamespace(device=SimpleNamespace(type="cpu")), pad_id=0, vocab_size=1000
        )
        own = options(mode, python=python, timeout=timeout, **raw)
        made.append(vllm.Backend(mode, own, Served(f"vllm:{mode}", model, "float32", 2, 256, together=together)))
        return made[-1]

    yield backend
    for each in made:
        each.close()


def options(mode: str, **raw: Any) -> Any:
    return parse_options(MODES[mode].options, raw, f"vllm:{mode}")


def answer(backend: vllm.Backend, last: int, budget: int, stop: frozenset[int] = NEVER) -> list[list[int]]:
    return [list(arrival.ids) for arrival in backend.ask(Question([3, last], budget, stop))]


def test_plain_rows_get_a_token_an_arrival_and_end_by_stop_ids_and_budget(make: Make, tmp_path: Path) -> None:
    backend = make()
    facts = backend.start()
    assert answer(backend, 6, 5) == [[token] for token in follows(6, 5)]
    counters = backend.counters()
    assert (counters.forwards, counters.draft_tokens, counters.accepted_tokens) == (None, None, None)
    assert 0 <= counters.own["pipe_share"] < 1
    assert answer(backend, 6, 9, frozenset({9})) == [[7], [8], [9]]
    assert (facts.version, facts.how, facts.counts, facts.dtype) == (VERSION, "worker", "forwards", "float32")
    assert wording(facts.package)
    assert facts.weights.verified
    assert facts.ids
    settings, own, path, _ = json.loads((tmp_path / "sees.json").read_text())
    assert settings["enable_prefix_caching"] is False
    assert settings["max_num_seqs"] == 1
    assert settings["max_model_len"] == 256
    assert settings["dtype"] == "float32"
    assert "speculative_config" not in settings
    assert own["OMP_NUM_THREADS"] == "2"
    assert own["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert not any(place.endswith("backends") for place in path)
    assert not any(str(tmp_path) in part or "/bin" in part for part in facts.command)


def test_arguments_of_its_own_reach_vllm_unless_the_run_decides_them(make: Make, tmp_path: Path) -> None:
    make(engine_args='{"block_size": 64}').start()
    settings, *_ = json.loads((tmp_path / "sees.json").read_text())
    assert settings["block_size"] == 64
    for refused in ("block_size=64", "[64]", '{"max_model_len": 64}'):
        with pytest.raises(UsageError, match="engine_args"):
            options("ar", engine_args=refused)


def test_a_step_with_a_draft_is_one_arrival_and_counted_as_vllm_counts(make: Make) -> None:
    backend = make(mode="ngram", num_speculative_tokens=4)
    facts = backend.start()
    assert answer(backend, 0, 10) == [[1], [2, 3, 4], [5, 6, 7], [8, 9, 10]]
    counters = backend.counters()
    assert (counters.draft_tokens, counters.accepted_tokens) == (12, 6)
    assert counters.histogram == [0, 0, 3]
    assert counters.own["mean_acceptance_length"] == 3.0
    assert counters.own["forwards_by_counters"] == 3
    assert any('"method": "ngram"' in part for part in facts.command)
    answer(backend, 0, 4)
    assert backend.counters().draft_tokens == 4, "of the last request, and not of all"


def test_variables_of_vllm_that_happen_to_be_set_decide_nothing(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "hidden-away")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    facts = make().start()
    _, own, path, where = json.loads((tmp_path / "sees.json").read_text())
    assert "VLLM_API_KEY" not in own
    assert str(tmp_path) not in path
    assert where == "/"
    assert "hidden-away" not in str(facts)


@pytest.mark.parametrize(
    "wrong",
    [
        "dies at start",
        "refuses",
    ],
)
def test_what_does_not_start_says_why(make: Make, wrong: str) -> None:
    backend = make(wrong)
    with pytest.raises(EngineFault, check=wording):
        backend.start()


@pytest.mark.parametrize(
    "wrong",
    [
        "dies in the middle",
        "raises in the middle",
        "stalls",
        "garbage",
        "no tokens",
        "huge line",
    ],
)
def test_what_goes_wrong_in_the_middle_is_one_sentence_and_leaves_no_process(make: Make, wrong: str) -> None:
    backend = make(wrong, timeout=1)
    backend.start()
    (pid,) = backend.processes()
    arrivals = backend.ask(Question([1, 2], 20, NEVER))
    assert [list(next(arrivals).ids) for _ in range(3)] == [[3], [4], [5]]
    with pytest.raises(EngineFault, check=wording) as fault:
        next(arrivals)
    assert "\n" not in str(fault.value)
    backend.close()
    assert not psutil.pid_exists(pid)


def gathered(several: Several, asked: Mapping[int, int], until: int = 0) -> dict[int, list[list[int]]]:
    """Poll until so many of the requests have not ended; return the ids of each arrival."""
    arrived: dict[int, list[list[int]]] = {number: [] for number in asked}
    running = set(asked)
    while len(running) > until:
        for number, arrival in several.poll(20):
            if arrival is None:
                running.remove(number)
            else:
                arrived[number].append(list(arrival.ids))
    return arrived


@pytest.mark.parametrize("wrong", ["", "an older version"])
def test_several_requests_each_get_their_tokens(make: Make, wrong: str) -> None:
    backend = make(wrong, mode="ngram", together=2, num_speculative_tokens=4)
    backend.start()
    several = backend.several()
    asked = {several.submit(Question([3, last], 10, NEVER)): last for last in (0, 10, 20)}
    arrived = gathered(several, asked)
    for number, last in asked.items():
        assert [token for ids in arrived[number] for token in ids] == follows(last, 10)
        counters = several.counters(number)
        known = (12, 6, [0, 0, 3]) if not wrong else (None, None, None)
        assert (counters.draft_tokens, counters.accepted_tokens, counters.histogram) == known
        assert "forwards_by_counters" not in counters.own
    assert answer(backend, 0, 10) == [[1], [2, 3, 4], [5, 6, 7], [8, 9, 10]]
    assert backend.counters().draft_tokens == 12, "one after another, vLLM's sums are those of the request"


def test_a_request_that_is_given_up_leaves_the_others(make: Make) -> None:
    backend = make(mode="ngram", together=3, num_speculative_tokens=4)
    backend.start()
    several = backend.several()
    endless = several.submit(Question([1, 2], 100_000, NEVER))
    seen: list[list[int]] = []
    while len(seen) < 3:
        seen += [list(arrival.ids) for _, arrival in several.poll(20) if arrival is not None]
    several.give_up(endless)
    counters = several.counters(endless)
    assert (counters.draft_tokens, counters.accepted_tokens, counters.histogram) == (8, 4, [0, 0, 2])
    number = several.submit(Question([1, 2], 7, NEVER))
    assert gathered(several, {number: 2})[number] == [[3], [4, 5, 6], [7, 8, 9]]
    several.submit(Question([1, 2], 100_000, NEVER))
    several.close()
    assert several.poll(0.05) == ()
    assert answer(backend, 6, 3) == [[7], [8, 9]]


def test_a_long_queue_of_prompts_waits_for_no_engine(make: Make) -> None:
    backend = make(together=2)
    backend.start()
    several = backend.several()
    (pid,) = backend.processes()
    pause([pid])
    asked = {several.submit(Question([5] * 4000, 2, NEVER)): 5 for _ in range(40)}
    resume([pid])
    arrived = gathered(several, asked)
    assert all(arrived[number] == [[6], [7]] for number in asked)


@pytest.mark.parametrize(
    "wrong",
    [
        "dies in the middle",
        "raises in the middle",
        "stalls",
        "garbage",
        "no tokens",
        "an unknown request",
        "an unknown end",
        "outside the vocabulary",
        "ends without tokens",
    ],
)
def test_faults_with_several_requests_leave_no_process(make: Make, wrong: str) -> None:
    backend = make(wrong, timeout=1, together=2)
    backend.start()
    (pid,) = backend.processes()
    several = backend.several()
    asked = {several.submit(Question([1, 2], 20, NEVER)): 2 for _ in range(3)}
    with pytest.raises(EngineFault, check=wording) as fault:
        gathered(several, asked)
    assert "\n" not in str(fault.value)
    backend.close()
    assert not psutil.pid_exists(pid)


def test_an_answer_that_is_given_up_leaves_it_idle_and_ready(make: Make) -> None:
    backend = make(mode="ngram")
    backend.start()
    arrivals = backend.ask(Question([1, 2], 100_000, NEVER))
    assert [list(next(arrivals).ids) for _ in range(2)] == [[3], [4, 5, 6]]
    arrivals.close()  # type: ignore[attr-defined]
    assert "forwards_by_counters" not in backend.counters().own
    assert backend.counters().draft_tokens is not None
    assert answer(backend, 6, 3) == [[7], [8, 9]]


def test_stopped_by_signal_it_goes_on_when_it_is_woken_and_ends_when_it_is_not(make: Make) -> None:
    backend = make()
    assert not backend.start().stopped
    (pid,) = backend.processes()
    pause([pid])
    resume([pid])
    assert answer(backend, 1, 3) == [[2], [3], [4]]
    pause([pid])
    until = time.monotonic() + 5  # the kernel stops it when it next looks
    while (status := psutil.Process(pid).status()) != psutil.STATUS_STOPPED and time.monotonic() < until:
        time.sleep(0.01)
    assert status == psutil.STATUS_STOPPED
    backend.close()
    backend.close()
    assert not psutil.pid_exists(pid)
    assert backend.processes() == (), "the id may belong to another process by now, which must not be stopped"


def test_an_environment_that_is_not_there_or_has_no_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plain = options("ar")
    with pytest.raises(EngineFault, check=wording):
        vllm.Backend.version(plain)
    with pytest.raises(EngineFault, check=wording):
        vllm.Backend.version(plain.model_copy(update={"python": "/no/python"}))
    made = environment(tmp_path / "specbench" / "engines" / "vllm", "vllm")
    assert vllm.Backend.version(plain) == VERSION
    assert Program("vllm", "", "vllm:ar").package == "", "that of its makers"
    (gone,) = made.parent.parent.glob("lib/*/site-packages/*.dist-info")
    (gone / "METADATA").unlink()
    gone.rmdir()
    with pytest.raises(EngineFault, check=wording):
        vllm.Backend.version(plain)


def test_what_a_mode_makes_of_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(mode: str, **raw: Any) -> Any:
        return speculation(mode, options(mode, **raw), SimpleNamespace())  # type: ignore[arg-type]

    assert made("ar") is None
    lookup = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 5, "prompt_lookup_min": 5}
    assert made("ngram") == lookup
    assert made("ngram", prompt_lookup_max=3) == {**lookup, "prompt_lookup_max": 3, "prompt_lookup_min": 3}
    assert made("mtp") == {"method": "mtp", "num_speculative_tokens": 1}
    (tmp_path / "head" / "inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert made("eagle3", model="head")["model"] == str(tmp_path / "head")
    assert made("eagle3", model="head::inner")["model"] == str(tmp_path / "head" / "inner")
    assert made("eagle3", model="org/head")["model"] == "org/head"
    at_random = {"method": "mtp", "num_speculative_tokens": 5, "rejection_sample_method": "synthetic"}
    assert made("synthetic", method="mtp") == {**at_random, "synthetic_acceptance_length": 2.0}
    both = made("synthetic", method="eagle3", model="head", num_speculative_tokens=2, acceptance_rates="0.8,0.5")
    assert (both["method"], both["synthetic_acceptance_rates"]) == ("eagle3", [0.8, 0.5])
    assert "synthetic_acceptance_length" not in both
    with pytest.raises(UsageError):
        options("synthetic", acceptance_rates="0.5,0.8")
    assert not MODES["synthetic"].lossless


def head(folder: Path, **config: Any) -> str:
    """A head's folder with two tensors."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {"token_map": torch.arange(3), "blocks.0.layers.0.weight": torch.ones(2, 2)}
    save_file(tensors, folder / "model.safetensors")
    return str(folder)


def test_a_head_in_another_layout_is_written_for_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lm_head = torch.arange(12.0).reshape(6, 2)
    model: Any = SimpleNamespace(
        spec=SimpleNamespace(fingerprint="f"),
        model=SimpleNamespace(get_output_embeddings=lambda: SimpleNamespace(weight=lm_head)),
    )
    causal = head(tmp_path / "a", dflash_config={"mask_token_id": 5, "causal_head": True})
    found = Path(head_for_vllm("dflash", causal, model))
    assert json.loads((found / "config.json").read_text())["dflash_config"]["causal"] is True
    assert load_file(found / "model.safetensors").keys() == load_file(Path(causal) / "model.safetensors").keys()
    noncausal = head(tmp_path / "b", dflash_config={"mask_token_id": 5})
    assert head_for_vllm("dflash", noncausal, model) == noncausal
    medusa = head(tmp_path / "c", vocab_size=6, truncated_vocab_size=3, original_lm_head=True)
    found = Path(head_for_vllm("medusa", medusa, model))
    assert json.loads((found / "config.json").read_text())["truncated_vocab_size"] == 6
    tensors = load_file(found / "model.safetensors")
    assert tensors.keys() == {"blocks.0.layers.0.weight", "lm_heads.0.weight"}
    assert torch.equal(tensors["lm_heads.0.weight"], lm_head)
    assert head_for_vllm("medusa", medusa, model) == str(found), "written once"


INSTALLED = made_here("vllm")
HAVE = INSTALLED is not None and (INSTALLED / "bin" / "python").exists()
needs_vllm = pytest.mark.skipif(not HAVE, reason="vLLM's environment is not installed; make engines makes it")


HEADS = Path(specbench.__file__ or "").parent / "methods"
TRIED: dict[str, dict[str, Any]] = {
    "ar": {},
    "ngram": {},
    "draft_model": {"model": "smollm2-135m", "num_speculative_tokens": 3},
    "eagle3": {"model": str(HEADS / "eagle3/heads/smollm2-135m"), "num_speculative_tokens": 4},
    "dflash": {"model": str(HEADS / "jetspec/heads/smollm2-135m"), "num_speculative_tokens": 7},
    "medusa": {"model": str(HEADS / "medusa/heads/smollm2-135m")},
}


def test_the_modes_said_to_have_run_are_those_of_the_test() -> None:
    assert {mode for mode, kind in MODES.items() if kind.tried} == TRIED.keys()


@pytest.mark.slow
@needs_vllm
def test_vllm_itself_gives_our_ids_and_counts_our_forwards() -> None:
    from specbench.models import load
    from specbench.planning.methods import plan_methods
    from specbench.runner import Request, Session, StopRule

    loaded = load("smollm2-135m")
    # It goes on as it began, so that five tokens in a row were there before, which is what vLLM looks for.
    texts = ("one two three four five six seven eight nine ten. " * 4, "def add(a, b):\n    return a + b\n\ndef sub(")
    prompts = [loaded.tokenizer(text)["input_ids"] for text in texts]
    rule = StopRule(loaded.stop_ids, (), 48, loaded.decode)
    with Session(loaded, plan_methods(["ar"], []), capacity=256) as session:
        ours = [
            record.output_ids
            for ids in prompts
            for record in session.decode(session.methods[0], [Request("p", 0, ids, rule)])
        ]
    for mode, raw in TRIED.items():
        how = options(mode, enforce_eager=True, timeout=600, **raw)
        backend = vllm.Backend(mode, how, Served(f"vllm:{mode}", loaded, "float32", 2, 256, together=2))
        try:
            backend.start()
            alone: list[EngineCounters] = []
            for ids in prompts:
                arrivals = list(backend.ask(Question(ids, 48, loaded.stop_ids)))
                assert [token for arrival in arrivals for token in arrival.ids] == ours[len(alone)], mode
                alone.append(backend.counters())
                if mode != "ar":
                    assert alone[-1].own["forwards_by_counters"] == len(arrivals) - 1
            several = backend.several()
            asked = {several.submit(Question(ids, 48, loaded.stop_ids)): 0 for ids in prompts}
            arrived = gathered(several, asked)
            assert [[token for ids in arrived[number] for token in ids] for number in asked] == ours, mode
            together = [several.counters(number) for number in asked]
        finally:
            backend.close()
        if mode != "ar":
            assert alone[0].accepted_tokens
            counted = [
                [(each.draft_tokens, each.accepted_tokens, each.histogram) for each in these]
                for these in (alone, together)
            ]
            assert counted[0] == counted[1], "sums of all requests, and each request's own"
