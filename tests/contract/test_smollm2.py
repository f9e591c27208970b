"""The contract on the embedded model and real HumanEval prompts: AR is transformers' generate, every method is AR."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from specbench import registry
from specbench.models import LoadedModel
from specbench.plan import Plan, plan_methods, plan_tasks
from specbench.records import SamplingSpec
from specbench.run import check, make_engine, make_runner, prepare

FEW = pytest.param(4, 12, id="4 prompts")
MANY = pytest.param(20, 64, id="20 prompts", marks=pytest.mark.slow)
LOSSLESS = sorted(name for name, card in registry.methods().items() if card.info["lossless"])


def plan(prompts: int, tokens: int, *, temperature: float = 0.0, seed: int = 0, concurrency: int = 1) -> Plan:
    return Plan(
        methods=plan_methods([*LOSSLESS, "jacobi"], ["jacobi#2.window=sliding", "jacobi#2.prefill_draft=true"]),
        tasks=plan_tasks(["humaneval"], []),
        model="smollm2-135m",
        dtype="float32",
        device="cpu",
        revision=None,
        sampling=SamplingSpec(temperature=temperature, top_k=0, top_p=1.0, seed=seed),
        max_new_tokens=tokens,
        limit=prompts,
        repeats=1,
        concurrency=concurrency,
        data_dir=None,
        out=Path(),
    )


def generate(model: LoadedModel, ids: Sequence[int], tokens: int) -> list[int]:
    prompt = torch.tensor([list(ids)])
    with torch.inference_mode():
        out = model.model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, do_sample=False
        )
    found: list[int] = out[0, len(ids) :].tolist()
    return found


@pytest.mark.parametrize(("prompts", "tokens"), [FEW, MANY])
def test_ar_is_generate(smollm2: LoadedModel, prompts: int, tokens: int) -> None:
    wanted = plan(prompts, tokens)
    prepared = prepare(wanted, wanted.tasks[0], smollm2)
    expected = {key: generate(smollm2, request.ids, tokens) for key, request in prepared.requests.items()}
    engine = make_engine(wanted, smollm2, prepared.longest + tokens)
    try:
        runner = make_runner(wanted, smollm2, engine)
        records = list(runner.segment(wanted.methods[0], list(prepared.requests.values())))
    finally:
        engine.close()
    assert len(records) == prompts
    for record in records:
        # a stop string of the task may end ours earlier; generate knows only stop ids
        assert record.ids == expected[record.prompt_id][: record.n_out]
        assert record.stop_reason == "stop-string" or record.n_out == len(expected[record.prompt_id])


SAMPLINGS = [(0.0, 0), (0.7, 1), (1.0, 2)]


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize(
    ("prompts", "tokens", "temperature", "seed"),
    [
        *(pytest.param(3, 12, *sampling, id=f"3 prompts T={sampling[0]}") for sampling in SAMPLINGS[:2]),
        *(pytest.param(20, 64, *s, id=f"20 prompts T={s[0]}", marks=pytest.mark.slow) for s in SAMPLINGS),
    ],
)
def test_methods_are_ar(
    smollm2: LoadedModel, prompts: int, tokens: int, temperature: float, seed: int, concurrency: int
) -> None:
    wanted = plan(prompts, tokens, temperature=temperature, seed=seed, concurrency=concurrency)
    graded = check(wanted, wanted.tasks[0], smollm2)
    assert set(graded) == {method.label for method in wanted.methods} - {"ar"}
    assert {label: counts["divergences"] for label, counts in graded.items()} == {label: [] for label in graded}
    assert all(counts["exact"] == prompts for counts in graded.values())
