"""Draft heads whose rounds run in our C++ draft what they draft with torch."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.decoders import alone
from support.small_heads import BLOCKS, KINDS, head, outcomes, passes, played, target
from torch import Tensor

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.common import EnvironmentRefused
from specbench.engine.cpu import library
from specbench.engine.layers.cpu_head import CpuOps
from specbench.engine.layers.cpu_structures import Structures
from specbench.engine.layers.kernel_pieces import PIECES
from specbench.engine.ops import TorchOps
from specbench.heads.block_head import BlockRounds
from specbench.methods.dspark.config import DSparkConfig
from specbench.methods.dspark.drafting import DSparkRounds
from specbench.methods.dspark.head import DSparkHead
from specbench.methods.medusa.config import HeadConfig as MedusaConfig
from specbench.methods.medusa.drafting import Rounds as MedusaRounds
from specbench.methods.medusa.head import DraftHead as MedusaHead
from specbench.methods.mtp.drafting import MtpRounds
from specbench.methods.mtp.head import MtpConfig, MtpHead

ROUNDS = (((0, 9), (2, 4)), ((1, 1),), ((2, 3), (0, 2)))  # prompts, rows of several texts, and a text between them
CASES = (*KINDS, "dspark", "medusa", "mtp")


def drawn(kind: str) -> Any:
    """A head for the small target."""
    if kind in KINDS:
        return head(kind, "cpu")
    config = target("cpu").config
    if kind == "dspark":
        return DSparkHead.random(DSparkConfig.for_target(config, mask_token_id=299, layers=2))
    if kind == "medusa":
        return MedusaHead.random(MedusaConfig.for_target(config, heads=3, blocks=2))
    return MtpHead.random(MtpConfig.of(target("cpu"), "deepseek"))


def drafted(kind: str, drafts: Any, native: bool | None) -> tuple[list[tuple[Tensor, ...]], dict[str, Any]]:
    """What a copy of a head drafts in :data:`ROUNDS`, and the report."""
    drafts, model = copy.deepcopy(drafts), target("cpu", drafts.dtype)
    what = replace(alone(model, slots=3, capacity=60), native=native)
    made: Any
    if kind == "dspark":
        made = DSparkRounds(drafts, what, depth=5, width=2)
    elif kind == "medusa":
        made = MedusaRounds(drafts, what, depth=3, width=4)
    elif kind == "mtp":
        made = MtpRounds(drafts, what, depth=4, width=2)
    else:
        made = passes(kind, drafts, native)
    return played(made._passes, drafts, ROUNDS), made._passes.report()


def assert_ours(kind: str, report: dict[str, Any]) -> None:
    without = PIECES if kind in ("medusa", "mtp") else () if kind in (*BLOCKS, "dspark") else ("keep",)
    assert report["linears"] == "own"
    assert report["fusions"] == [piece for piece in PIECES if piece not in without]
    assert report["not_fused"] == {}


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def exact_in_bf16(drafts: Any) -> Any:
    """The same head with weights that bf16 holds."""
    return copy.deepcopy(drafts).to(torch.bfloat16).to(drafts.dtype)


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.usefixtures("threads")
def test_rounds_draft_what_torch_drafts(kind: str, halves: bool) -> None:
    drafts = exact_in_bf16(drawn(kind)) if halves else drawn(kind)
    plain, _ = drafted(kind, drafts, False)
    ours, report = drafted(kind, drafts, None)
    assert_ours(kind, report)
    assert (report["bf16_products"] > 0) is halves
    for expected, got in zip(plain, ours, strict=True):
        for one, other in zip(expected, got, strict=True):
            if one.is_floating_point():
                assert (one - other).abs().max() < 1e-3
            else:
                assert torch.equal(one, other)


@pytest.mark.parametrize("kind", CASES)
def test_bf16_rounds_err_no_more_than_torch(kind: str) -> None:
    exact = exact_in_bf16(drawn(kind))
    truth, _ = drafted(kind, exact, False)
    exact = exact.to(torch.bfloat16)
    plain, _ = drafted(kind, exact, False)
    ours, report = drafted(kind, exact, None)
    assert_ours(kind, report)
    assert error(ours, truth) < 1.2 * error(plain, truth)


def error(rounds: list[tuple[Tensor, ...]], truth: list[tuple[Tensor, ...]]) -> float:
    """Mean error of log-probabilities in rank order, of the first levels: later ones may follow other tokens."""
    logp = [next(each for each in some if each.is_floating_point()) for some in (*rounds, *truth)]
    ranked = torch.stack([each.flatten()[:6].sort().values for each in logp]).view(2, len(rounds), -1)
    return float((ranked[0] - ranked[1]).abs().mean())


@pytest.mark.parametrize(("size", "count"), [(1, 1), (7, 3), (64, 64), (257, 10), (4099, 4)])
def test_best_tokens_are_torchs(size: int, count: int) -> None:
    scores = torch.randn(2, 3, size, generator=torch.Generator().manual_seed(size))
    scores[0, 1, 1::2] = -torch.inf
    scores[1, 2] = -torch.arange(size)  # already sorted, and far apart
    logp, ids = CpuOps().best(scores, count)
    expected, _ = TorchOps().best(scores, count)
    torch.testing.assert_close(logp, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(scores.gather(-1, ids), scores.topk(count).values)
    assert all(len({*row}) == count for row in ids.flatten(0, 1).tolist())


def test_weights_in_bf16_give_the_same_bits() -> None:
    work, generator = library.Work(library.open_cpu_library()), torch.Generator().manual_seed(0)
    for out, size, rows in ((5, 3, 1), (90, 65, 2), (33, 1000, 7), (2100, 600, 1)):
        linear = torch.nn.Linear(size, out)
        assert work.halve(linear.weight.detach()) is None
        with torch.no_grad():
            linear.weight.copy_(linear.weight.bfloat16())
        x = torch.randn(rows, size, generator=generator)
        plain, halved = Structures().linear(linear), Structures(work).linear(linear)
        assert (plain.type, halved.type) == (library.TYPES[torch.float32], library.TYPES[torch.bfloat16])
        assert torch.equal(work.linear(plain, x), work.linear(halved, x))


def test_heads_of_other_kinds_run_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    drafts = head("block", "cpu")
    assert isinstance(passes("block", drafts, None)._passes._ops, CpuOps)
    drafts.layers[0].mlp.register_parameter("gain", torch.nn.Parameter(torch.ones(1)))
    assert outcomes("block", drafts, None)[1]["not_fused"] == {"all": "its layers have a mlp.gain"}
    captured = replace(alone(target("cpu"), slots=1, capacity=60), capture=recorded_capture(torch.device("cpu")))
    for rounds in (
        passes("block", head("block", "cpu").double(), None),
        BlockRounds(head("block", "cpu"), captured, depth=3, width=5),
    ):
        assert type(rounds._passes._ops) is TorchOps

    def no_compiler(*_: Any) -> Any:
        raise EnvironmentRefused("no C++ compiler was found")

    monkeypatch.setattr(library, "open_cpu_library", no_compiler)
    assert type(passes("block", head("block", "cpu"), None)._passes._ops) is TorchOps


def test_release_frees_the_cache() -> None:
    drafts = head("block", "cpu")
    rounds = passes("block", drafts, None)._passes
    cache = weakref.ref(rounds._cache)
    rounds.release()
    gc.collect()
    assert cache() is None
    assert drafts.fc(torch.zeros(1, drafts.features)).shape == (1, drafts.config.hidden_size)
