"""The whole step on a GPU, as far as that can be known without one."""

from __future__ import annotations

import pytest
from support.gpu import families, step
from support.models import REFUSED, SUPPORTED
from support.wording import wording

from specbench.engine.layers import rotary
from specbench.engine.program import StepKind
from specbench.engine.sampler import Sampling

SAMPLED = Sampling(0.8, seed=2**40)
KINDS = {
    "greedy": StepKind(Sampling(), attention="triton"),
    "sampled": StepKind(SAMPLED, attention="triton"),
    "filtered": StepKind(Sampling(0.8, top_k=5, top_p=0.9, seed=2**40), attention="triton"),
    "top-k": StepKind(SAMPLED, top_k=4, attention="triton"),
    "tapped": StepKind(Sampling(), taps=(0, 1), attention="triton"),
    "forced": StepKind(Sampling(), forced=True, attention="triton"),
    "probabilities": StepKind(SAMPLED, attention="triton", probabilities=True),
    "filtered probabilities": StepKind(Sampling(0.8, top_p=0.9), attention="triton", probabilities=True),
}
#: Families whose layers are not fused: they store and attend by our kernels all the same.
NOT_FUSED = ("gpt2", "gpt_oss", "llama4")


@pytest.mark.parametrize("family", families())
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "as it is"])
def test_a_step_reads_nothing_back_and_stays_on_the_gpu(
    family: str, kind: str, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = step(SUPPORTED[family], KINDS[kind], monkeypatch, fused=fused)
    assert seen.faults == []
    layers = seen.launches.count("_rotate" if fused and family not in NOT_FUSED else "_write")
    assert layers == seen.launches.count("attend") > 0, "every layer stores and attends by our kernels"
    assert {"_tree_bits", "_accept", "_commit"} <= set(seen.launches)


@pytest.mark.parametrize("rope", ["dynamic rope", "longrope"])
def test_a_rope_that_asks_for_the_length_is_held(rope: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, _ = REFUSED[rope]
    assert step(recipe, KINDS["greedy"], monkeypatch).faults == []
    if rope == "dynamic rope":
        monkeypatch.setattr(rotary, "_asks", lambda rope_type: False)
        with pytest.raises(RuntimeError, check=wording):
            step(recipe, KINDS["greedy"], monkeypatch)
