"""The whole engine on a CUDA device: graphs and kernels against eager steps on the oracle, token for token in fp32."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from packaging.version import parse
from support.decoders import hiding_drafts
from support.models import RECURRENT, attached, autoregressive, decode, prompt, supported, tiny_llama

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.decoding.tree import TokenTree
from specbench.engine import graphs as graphs_
from specbench.engine.buckets import ROW_BUCKETS
from specbench.engine.sampler import Sampling

CUDA = torch.cuda.is_available()
on_a_gpu = [pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="needs a CUDA device")]
in_the_interpreter = pytest.mark.skipif(CUDA, reason="Triton compiles its kernels here")
TOKENS = 24
FAMILIES = (
    "llama", "qwen2", "qwen3", "mistral", "phi3", "gemma3", "gpt2", "mixtral", "gpt_oss", "gemma2", "llama4",
)  # fmt: skip
SAMPLINGS = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=0.9, seed=3),
    "filtered": Sampling(temperature=0.9, top_k=30, top_p=0.95, seed=3),
}


def on_device(family: str) -> Any:
    return copy.deepcopy(supported(family)).to("cuda")


def trees(seed: int, truth: list[int], vocab: int) -> Any:
    return hiding_drafts(seed, truth, vocab, 7, 40, apart=True)


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("backend", ["triton", "reference"])
@pytest.mark.parametrize("sampling", list(SAMPLINGS))
@pytest.mark.parametrize("family", FAMILIES)
def test_every_way_to_run_a_step_says_the_same(family: str, sampling: str, backend: str, graphs: bool) -> None:
    model = on_device(family)
    vocab = model.get_input_embeddings().num_embeddings
    prompts = [prompt(length, vocab, seed) for seed, length in enumerate((1, 30, 9))]
    options: dict[str, Any] = {"slots": 2, "capacity": 90, "max_rows": 64, "sampling": SAMPLINGS[sampling]}
    with attached(model, backend="reference", graphs=False, **options) as engine:
        expected = [autoregressive(engine, ids, TOKENS) for ids in prompts]
    with attached(model, backend=backend, graphs=graphs, **options) as engine:
        for seed, (ids, truth) in enumerate(zip(prompts, expected, strict=True)):
            assert autoregressive(engine, ids, TOKENS) == truth
            assert decode(engine, ids, TOKENS, trees(seed, truth, vocab)) == truth
        engine.alloc()
        assert decode(engine, prompts[1], TOKENS, trees(9, expected[1], vocab)) == expected[1]


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
@pytest.mark.skipif(parse(transformers.__version__) < parse("5.21"), reason="needs transformers 5.21")
@pytest.mark.parametrize("family", RECURRENT)
def test_recurrent_models_decode_trees_on_a_card(family: str) -> None:
    model = on_device(family)
    prompts = [prompt(length, 97, seed) for seed, length in enumerate((1, 30))]
    with attached(model, slots=2, capacity=90, max_rows=64) as engine:
        assert not engine.report()["graphs"]
        for seed, ids in enumerate(prompts):
            truth = autoregressive(engine, ids, TOKENS)
            assert decode(engine, ids, TOKENS, trees(seed, truth, 97)) == truth


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
def test_a_seed_and_a_temperature_are_not_baked_into_a_graph() -> None:
    model = on_device("llama")
    ids = prompt(9, 97)
    settings = ((1, 0.7), (2, 0.7), (1, 1.4))
    texts: dict[bool, list[list[int]]] = {True: [], False: []}
    for graphs in (False, True):
        with attached(model, capacity=60, max_rows=8, graphs=graphs) as engine:
            for seed, temperature in settings:
                engine.sampling = Sampling(temperature=temperature, seed=seed)
                texts[graphs].append(autoregressive(engine, ids, TOKENS))
    assert texts[True] == texts[False]
    assert len(set(map(tuple, texts[True]))) == 3


@pytest.mark.parametrize(
    "device", [pytest.param("cuda", marks=on_a_gpu), pytest.param("cpu", marks=in_the_interpreter)]
)
def test_captures_are_made_beforehand_and_reported(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device == "cpu":  # recorded, so that what no graph can hold is refused; the interpreter is too slow to replay
        record = recorded_capture(torch.device("cpu"))
        monkeypatch.setattr(graphs_, "cuda_capture", lambda _: lambda work: (record(work), lambda: None)[1])
    model = tiny_llama(97, num_hidden_layers=1).to(device)
    with attached(model, capacity=60, max_rows=16, graphs=True, backend="triton") as engine:
        engine.prepare(16, context=30)
        found = engine.report()
        kinds = engine.attentions.steps(16, 1)
        assert [(kind.tall, kind.fewest, kind.widest) for kind in kinds] == [(False, 1, 8), (True, 9, 16)]
        # Short tiles up to 8 rows, and their rows padded to 16 where that is faster; tall ones above.
        made = [ROW_BUCKETS[: ROW_BUCKETS.index(16) + 1], [16]]
        assert found["graphs"] == sum(map(len, made))
        assert [[*curve["step_s"]] for curve in found["steps"]] == [list(each) for each in made]
        assert found["late_captures"] == 0
        assert found["capture_s"] > 0
        assert all(seconds > 0 for curve in found["steps"] for seconds in curve["step_s"].values())
        for rows in range(1, 17) if CUDA else ():  # what was recorded and is not replayed has no outcome
            slot = engine.alloc()
            engine.prefill(slot, [3, 4])
            engine.step({slot: TokenTree.chain([5] * rows)})
            engine.free(slot)
        assert engine.report()["late_captures"] == 0
