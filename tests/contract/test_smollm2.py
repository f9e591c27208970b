"""The contract on the embedded model: AR is transformers' generate, every method is AR."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from support import decoders

from specbench.common.prompt import Prompt
from specbench.decoding.protocol import Context, Method
from specbench.engine.engine import Engine
from specbench.engine.sampler import Sampling, gumbel
from specbench.models.loaded_model import LoadedModel
from specbench.planning.tasks import plan_tasks
from specbench.results import SamplingSpec
from specbench.runner import Runner
from specbench.runner.grades import lossless
from specbench.runner.record import Request
from specbench.runner.setup.sampling import sampling_of
from specbench.runner.stop import StopRule

MANY, TOKENS = 5, 96
GSM8K = "gsm8k_test.jsonl"

AR = decoders.with_options("ar", {})
DEFAULTS = decoders.lossless(decoders.DEFAULTS)
#: Every method with a tiny tree.
SMALL: dict[str, Method] = {
    name: decoders.with_options(name, sets[0]) if (sets := decoders.OPTION_SETS.get(name)) else method
    for name, method in DEFAULTS.items()
}
#: Every method with a tree of tens of rows, as it comes where that is what it drafts.
MIDDLE: dict[str, Method] = DEFAULTS | {
    name: decoders.with_options(name, options)
    for name, options in (("lookahead", {"W": 5, "N": 4, "G": 5}), ("jf", {"n": 16, "pool": 3}))
}
SHORT, FEW = ("Count to ten: 1, 2, 3,", "def add(a, b):", "The cat sat on the"), 4


def humaneval() -> Sequence[Prompt]:
    (task,) = plan_tasks(["humaneval"], [])
    prompts: Sequence[Prompt] = task.module.Task(task.options).prompts(chat=True)
    return prompts


def gsm8k() -> Sequence[Prompt]:
    folder = os.environ.get("SPECBENCH_DATA")
    file = Path(folder or ".") / GSM8K
    if folder is None or not file.is_file():
        pytest.skip(f"no {GSM8K}: SPECBENCH_DATA has to name the folder that holds it")
    with file.open(encoding="utf-8") as lines:
        questions = [json.loads(line)["question"] for line, _ in zip(lines, range(MANY), strict=False)]
    return [Prompt(f"gsm8k/{number}", question, chat=True) for number, question in enumerate(questions)]


def short() -> Sequence[Prompt]:
    return [Prompt(f"short/{number}", text, chat=False) for number, text in enumerate(SHORT)]


TASKS = {"humaneval": humaneval, "gsm8k": gsm8k, "short": short}


def requests(model: LoadedModel, task: str, prompts: int, tokens: int) -> list[Request]:
    found = [
        Request(prompt.id, 0, model.encode(prompt), StopRule(model.stop_ids, prompt.stops, tokens, model.decode))
        for prompt in TASKS[task]()[:prompts]
    ]
    assert len(found) == prompts
    return found


@contextmanager
def attached(model: LoadedModel, asked: Sequence[Request], max_rows: int, slots: int) -> Iterator[Engine]:
    room = max(len(request.ids) + request.rule.budget for request in asked)
    engine = Engine(model.model, slots=slots, capacity=room, max_rows=max_rows)
    try:
        yield engine
    finally:
        engine.detach()


def decode(
    model: LoadedModel,
    engine: Engine,
    method: Method,
    asked: Sequence[Request],
    sampling: Sampling,
    concurrency: int = 1,
) -> dict[str, list[int]]:
    """Ids of each answer by prompt."""

    def context(label: str, request: Request) -> Context:
        return Context(model.vocab_size, model.pad_id, random.Random(f"{sampling.seed}/{request.prompt_id}"))

    engine.sampling = sampling
    runner = Runner(engine, context, concurrency)
    return {r.prompt_id: r.output_ids for r in runner.segment(decoders.ready(method, engine), asked)}


def assert_is_ar(
    engine: Engine,
    method: Method,
    asked: Sequence[Request],
    answers: dict[str, list[int]],
    mine: dict[str, list[int]],
) -> None:
    """Compares answers with AR's, one sequence at a time. Flips by rounding are no faults."""
    if mine == answers:
        return
    ids = {request.prompt_id: request.ids for request in asked}
    graded = lossless.grade_all(engine, method.max_rows, ids, answers, {"it": mine})["it"]
    # In float32 two scores are within rounding once in some hundred thousand tokens.
    assert graded["lossy"] == 0, graded
    assert graded["numeric_tie"] <= len(asked) // 20, graded


# ------------------------------------------------------------------ AR


@pytest.mark.parametrize(
    ("task", "prompts", "tokens"),
    [
        pytest.param("short", 1, 6, id="few"),
        pytest.param("humaneval", 20, 128, id="many", marks=pytest.mark.slow),
    ],
)
def test_ar_is_generate(smollm2: LoadedModel, task: str, prompts: int, tokens: int) -> None:
    asked = requests(smollm2, task, prompts, tokens)
    with attached(smollm2, asked, 1, 1) as engine:
        answers = decode(smollm2, engine, AR, asked, Sampling())
    whole = 0
    for request in asked:
        prompt = torch.tensor([list(request.ids)])
        with torch.inference_mode():
            out = smollm2.model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, do_sample=False
            )
        answer, result = answers[request.prompt_id], out[0, len(request.ids) :].tolist()
        # A stop string of the task may end ours earlier; generate knows only stop ids.
        assert answer == result[: len(answer)]
        assert len(answer) == len(result) or any(stop in smollm2.decode(answer) for stop in request.rule.stops)
        whole += len(answer) == len(result)
    assert whole or prompts > 1


# ------------------------------------------------------------------ every method


@pytest.fixture(scope="module")
def prepared(smollm2: LoadedModel) -> tuple[Engine, Sequence[Request], Callable[[Sampling], dict[str, list[int]]]]:
    """An engine that does not serve yet, prompts of a line, and what AR says there to them."""
    asked = requests(smollm2, "short", len(SHORT), FEW)
    with attached(smollm2, asked, max(method.max_rows for method in SMALL.values()), len(asked)) as engine:
        return engine, asked, cache(lambda sampling: decode(smollm2, engine, AR, asked, sampling))


@pytest.fixture
def few(prepared: Any) -> Iterator[Any]:
    """The same for one test: another may want the model for an engine of its own."""
    engine = prepared[0]
    engine.attach()
    yield prepared
    engine.detach()


# Each method in one of the two ways, in turn; a draft model as large as the target takes its time, as do random Medusa
# heads, each with an LM head of its own.
@pytest.mark.parametrize(
    ("method", "sampling", "concurrency"),
    [
        pytest.param(method, *way, id=f"{name}-{way[1]}-at-a-time", marks=[pytest.mark.slow] * odd)
        for at, (name, method) in enumerate(SMALL.items())
        for turn, way in enumerate([(Sampling(), 1), (Sampling(0.7, seed=1), 3)])
        for odd in [(at + turn) % 2 or name in ("sps", "medusa")]
    ],
)
def test_methods_are_ar(smollm2: LoadedModel, few: Any, method: Method, sampling: Sampling, concurrency: int) -> None:
    engine, asked, answers = few
    mine = decode(smollm2, engine, method, asked, sampling, concurrency)
    assert_is_ar(engine, method, asked, answers(sampling), mine)


_answers: dict[tuple[str, Sampling], dict[str, list[int]]] = {}


@pytest.mark.slow
@pytest.mark.parametrize("method", [pytest.param(method, id=name) for name, method in DEFAULTS.items()])
@pytest.mark.parametrize(
    ("task", "sampling", "concurrency"),
    [
        pytest.param("gsm8k", Sampling(), 1, id="greedy"),
        pytest.param("humaneval", Sampling(), 3, id="greedy-3-at-a-time"),
        pytest.param("humaneval", Sampling(0.7, seed=1), 1, id="T0.7"),
        pytest.param("gsm8k", Sampling(1.0, seed=2), 3, id="T1-3-at-a-time"),
    ],
)
def test_methods_are_ar_on_many_prompts(
    smollm2: LoadedModel, task: str, sampling: Sampling, concurrency: int, method: Method
) -> None:
    if not (sampling.greedy and concurrency == 1):
        method = MIDDLE[method.name]
    asked = requests(smollm2, task, MANY, TOKENS)
    with attached(smollm2, asked, method.max_rows, concurrency) as engine:
        if (task, sampling) not in _answers:
            _answers[task, sampling] = decode(smollm2, engine, AR, asked, sampling)
        answers = _answers[task, sampling]
        mine = decode(smollm2, engine, method, asked, sampling, concurrency)
        assert_is_ar(engine, method, asked, answers, mine)


# ------------------------------------------------------------------ with logit processors

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},  # the model would write line breaks until the budget ends
}
_JSON = {"grammar": {"kind": "json", "text": json.dumps(_SCHEMA)}}
_PENALTIES = {"repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.3}
PROCESSED: dict[str, dict[str, Any]] = {
    "penalties": _PENALTIES,
    "penalties-sampled": {"temperature": 0.8, "seed": 3, "min_p": 0.05, "logit_bias": {" the": 1.5}, **_PENALTIES},
    "json": _JSON,
    "json-sampled": {"temperature": 1.0, "seed": 4, "top_p": 0.95, **_JSON, **_PENALTIES},
}


def processing(model: LoadedModel, name: str) -> Sampling:
    if name.startswith("json"):
        pytest.importorskip("llguidance")
    plain = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0}
    return sampling_of(SamplingSpec.model_validate(plain | PROCESSED[name]), model)


def follows_schema(text: str) -> bool:
    """Whether a text is an object of the schema, by json and a check of its own."""
    found = json.loads(text)
    return (
        found.keys() == _SCHEMA["properties"].keys()
        and len(found["name"]) <= 10
        and type(found["age"]) is int
        and 0 <= found["age"] <= 120
        and len(found["tags"]) <= 3
        and {*found["tags"]} <= {"red", "green", "blue"}
    )


@pytest.fixture(scope="module")
def processed(smollm2: LoadedModel) -> Callable[[str, int], Any]:
    """What AR answers to prompts of a line, and to 20 questions, with processors."""

    @cache
    def made(name: str, prompts: int) -> tuple[list[Request], Sampling, dict[str, list[int]]]:
        asked = requests(smollm2, *(("short", prompts, 10) if prompts <= len(SHORT) else ("humaneval", prompts, 24)))
        sampling = processing(smollm2, name)
        with attached(smollm2, asked, 1, 1) as engine:
            return asked, sampling, decode(smollm2, engine, AR, asked, sampling)

    return made


# In the quick tests every other method has one kind of processors, in turn, on three prompts.
@pytest.mark.parametrize(
    ("method", "name", "prompts"),
    [
        *(
            pytest.param(
                method, kind := [*PROCESSED][at // 2 % 4], 3, id=f"{label}-{kind}", marks=[pytest.mark.slow] * (at % 2)
            )
            for at, (label, method) in enumerate(SMALL.items())
            if label not in ("sps", "medusa", "eagle", "eagle3", "mtp", "dspark")  # as jetspec, whose head is random
        ),
        *(
            pytest.param(method, name, 20, id=f"{label}-{name}-many", marks=pytest.mark.slow)
            for name in PROCESSED
            for label, method in SMALL.items()
        ),
    ],
)
def test_processed_methods_are_ar(
    smollm2: LoadedModel, processed: Any, method: Method, name: str, prompts: int
) -> None:
    asked, sampling, answers = processed(name, prompts)
    with attached(smollm2, asked, method.max_rows, 3) as engine:
        mine = decode(smollm2, engine, method, asked, sampling, concurrency=3)
        assert_is_ar(engine, method, asked, answers, mine)


@pytest.mark.parametrize("prompts", [3, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["json", "json-sampled"])
def test_answers_follow_the_schema(smollm2: LoadedModel, name: str, prompts: int) -> None:
    asked = requests(smollm2, *(("short", 3, 60) if prompts == 3 else ("humaneval", 20, 96)))
    sampling = processing(smollm2, name)
    with attached(smollm2, asked, 1, 3) as engine:
        answers = decode(smollm2, engine, AR, asked, sampling, concurrency=3)
    ended = [ids for ids in answers.values() if ids[-1] in smollm2.stop_ids]
    assert all(follows_schema(smollm2.decode(ids[:-1])) for ids in ended)
    assert len(ended) == prompts


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize(
    ("task", "prompts", "tokens"), [("short", 2, 12), pytest.param("humaneval", 20, 64, marks=pytest.mark.slow)]
)
def test_processed_ar_is_generate(
    smollm2: LoadedModel, task: str, prompts: int, tokens: int, temperature: float
) -> None:
    from transformers import LogitsProcessor, LogitsProcessorList, MinPLogitsWarper, TemperatureLogitsWarper

    class Noise(LogitsProcessor):  # generate is greedy then: the noise that belongs to the position decides
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return scores + gumbel(torch.tensor([[5]]), torch.tensor([[input_ids.shape[1]]]), scores.shape[-1])[0]

    asked = requests(smollm2, task, prompts, tokens)
    sampling = Sampling(temperature, seed=5, min_p=0.1, repetition_penalty=1.3)
    with attached(smollm2, asked, 1, 1) as engine:
        answers = decode(smollm2, engine, AR, asked, sampling)
    ties = 0
    more = [TemperatureLogitsWarper(temperature), MinPLogitsWarper(0.1), Noise()] if temperature else []
    for request in asked:
        ids = torch.tensor([list(request.ids)])
        with torch.inference_mode():
            out = smollm2.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False,
                repetition_penalty=1.3, logits_processor=LogitsProcessorList(more), output_scores=True,
                return_dict_in_generate=True,
            )  # fmt: skip
        answer, result = answers[request.prompt_id], out.sequences[0, len(request.ids) :].tolist()
        if answer != result[: len(answer)]:  # transformers' own forward rounds otherwise: two tokens were equally good
            at = lossless.first_divergence(answer, result)
            assert at is not None
            ours, theirs = (float(out.scores[at][0, each[at]]) for each in (answer, result))
            assert abs(ours - theirs) < 1e-4, (request.prompt_id, at)
            ties += 1
            continue
        assert len(answer) == len(result) or any(stop in smollm2.decode(answer) for stop in request.rule.stops)
    assert ties <= prompts // 20
