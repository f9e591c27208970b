"""Steps and draft heads on tensors without memory: what would be launched on a GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from support.decoders import alone
from support.kernels import cases
from support.models import SUPPORTED, build
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.gpu_check.meta_step import META, MetaStep, launches
from specbench.decoding import parse_nodes
from specbench.engine import sampler
from specbench.engine.kernels.ops import TritonOps
from specbench.engine.pack import Shape
from specbench.engine.program import StepKind
from specbench.heads.block_config import BlockHeadConfig
from specbench.heads.block_head import BlockHead, BlockRounds
from specbench.heads.level_rounds import LevelRounds
from specbench.methods.dspark.config import DSparkConfig
from specbench.methods.dspark.drafting import DSparkRounds
from specbench.methods.dspark.head import DSparkHead
from specbench.methods.eagle.config import HeadConfig as Eagle1Config
from specbench.methods.eagle.head import DraftHead as Eagle1Head
from specbench.methods.eagle.trees import EAGLE1
from specbench.methods.eagle3.config import HeadConfig as EagleConfig
from specbench.methods.eagle3.head import DraftHead as EagleHead
from specbench.methods.medusa.config import HeadConfig as MedusaConfig
from specbench.methods.medusa.drafting import Rounds as MedusaRounds
from specbench.methods.medusa.head import DraftHead as MedusaHead
from specbench.methods.mtp.drafting import MtpRounds
from specbench.methods.mtp.head import MtpConfig, MtpHead

# ------------------------------
# A step on a GPU that no one has: tensors without memory say what would run where, and no kernel is launched.
#
# The device is torch's "meta". (Fake tensors of a CUDA device cannot be indexed by a torch that is built without
# CUDA.) What a real card would punish is found here in seconds: a value read on the host (no CUDA graph can hold it),
# a tensor left on the CPU, positions rounded to half precision, noise keyed by 32 bits.


SLOTS, CAPACITY = 3, 64


@dataclass
class Seen(TorchDispatchMode):
    """What a step does, watched operation by operation."""

    faults: list[str] = field(default_factory=list)
    launches: list[str] = field(default_factory=list)
    operations: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operations += 1
        name = str(func)
        tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor)]
        if any(leaf.device != META for leaf in tensors):
            self.faults.append(f"{name} with a tensor on the {next(t.device for t in tensors if t.device != META)}")
        if func in (torch.ops.aten.cos.default, torch.ops.aten.sin.default) and args[0].dtype != torch.float32:
            self.faults.append(f"{name} of positions in {args[0].dtype}")
        return out


_WORDS = {
    torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64",
}  # fmt: skip


@cache
def compiled() -> Mapping[tuple[str, str], set[str]]:
    """By kernel and argument the types of pointers that are compiled ahead of time for an H200."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for case in cases(90):
        for name, word in case.types.items():
            found[case.function.__name__, name].add(word)
    return found


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    """Kernels are noted instead of launched, the device is an H200, and noise has to be keyed by 64 bits."""
    seen = Seen()

    def note(kernel: Any, args: Sequence[Any], named: dict[str, Any]) -> None:
        seen.launches.append(kernel.__name__)
        for name, each in {**dict(zip(kernel.arg_names, args, strict=False)), **named}.items():
            if not isinstance(each, Tensor):
                continue
            if each.device != META:
                seen.faults.append(f"{kernel.__name__} with a tensor on the {each.device}")
            if _WORDS[each.dtype] not in compiled()[kernel.__name__, name]:
                seen.faults.append(f"{kernel.__name__} was not compiled for {name} in {each.dtype}")

    gumbel = sampler.gumbel

    def keyed(seed: Tensor, positions: Tensor, vocab: int) -> Tensor:
        if not seed.dtype == positions.dtype == torch.int64:
            seen.faults.append(f"noise keyed by {positions.dtype}")
        return gumbel(seed, positions, vocab)

    with monkeypatch.context() as patched, launches(note):
        patched.setattr(sampler, "gumbel", keyed)
        yield seen


def step(
    recipe: Any,
    kind: StepKind,
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype = torch.bfloat16,
    *,
    fused: bool = True,
) -> Seen:
    """What a captured step of a family does on the GPU."""
    model = on_meta(recipe, dtype)
    meta = MetaStep(model, TritonOps(META), slots=SLOTS, capacity=CAPACITY, fused=fused)
    with watched(monkeypatch) as seen:
        held = model.state_dict().keys()
        for name, buffer in model.named_buffers():
            if name not in held and buffer.is_floating_point() and buffer.dtype != torch.float32:
                seen.faults.append(f"{name}, which is computed, in {buffer.dtype}")
        with seen:
            outcome, hidden, probabilities = meta.run(16, kind)
        assert outcome.shape == (Shape(16, SLOTS, 4).width_out(kind.top_k),)
        assert (hidden is not None, probabilities is not None) == (bool(kind.taps), kind.probabilities)
    return seen


def on_meta(recipe: Any, dtype: torch.dtype = torch.bfloat16) -> Any:
    """A model of a family without memory."""
    with torch.device(META):
        model = build(recipe)
    _cast(model, dtype)
    return model


def _cast(model: Any, dtype: torch.dtype) -> None:
    """As a checkpoint is read in a precision: what is computed, such as rotary frequencies, stays as it is."""
    held = model.state_dict().keys()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name in held and tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)


def families() -> Sequence[Any]:
    """Those that the project supports; by default four of different kinds."""
    few = ("llama", "qwen3", "gemma3", "mixtral")
    return [pytest.param(name, marks=[] if name in few else pytest.mark.slow) for name in SUPPORTED]


# ------------------------------
# Draft heads on tensors without memory: what their rounds would launch on a GPU.


#: (the target's configuration, what a head knows of it) -> the head's drafting.
Make = Callable[[Any, Any], Any]


def jetspec(layers: int, *, causal: bool = True) -> Make:
    def make(config: Any, target: Any) -> BlockRounds:
        shape = BlockHeadConfig.for_target(config, mask_token_id=299, block_size=16, layers=layers, causal=causal)
        return BlockRounds(BlockHead.random(shape, device=META, dtype=torch.bfloat16), target, depth=15, width=7)

    return make


def eagle(depth: int) -> Make:
    def make(config: Any, target: Any) -> LevelRounds:
        head = EagleHead.random(EagleConfig.for_target(config), device=META, dtype=torch.bfloat16)
        return LevelRounds(head, target, depth=depth, width=4)

    return make


def dspark(layers: int = 1, *, depth: int = 7, width: int = 4, **shape: Any) -> Make:
    def make(config: Any, target: Any) -> DSparkRounds:
        chosen = DSparkConfig.for_target(config, mask_token_id=299, layers=layers, **shape)
        head = DSparkHead.random(chosen, device=META, dtype=torch.bfloat16)
        return DSparkRounds(head, target, depth=depth, width=width)

    return make


def medusa(heads: int, blocks: int = 1) -> Make:
    def make(config: Any, target: Any) -> MedusaRounds:
        shape = MedusaConfig.for_target(config, heads=heads, blocks=blocks)
        head = MedusaHead.random(shape, device=META, dtype=torch.bfloat16)
        return MedusaRounds(head, target, depth=heads, width=10)

    return make


def eagle1(depth: int, tree: str = "dynamic") -> Make:
    def make(config: Any, target: Any) -> LevelRounds:
        head = Eagle1Head.random(Eagle1Config.for_target(config), device=META, dtype=torch.bfloat16)
        nodes = parse_nodes(EAGLE1) if tree == "static" else ()
        return LevelRounds(head, target, depth=depth, width=4, nodes=nodes)

    return make


def mtp(depth: int) -> Make:
    def make(config: Any, target: Any) -> MtpRounds:
        head = MtpHead.random(MtpConfig.of(target.model, "deepseek"), device=META, dtype=torch.bfloat16)
        return MtpRounds(head, target, depth=depth, width=1)

    return make


def passes_of(make: Make, slots: int = 1, capture: Callable[..., Any] = lambda work: work) -> Any:
    """The head passes of a drafting; within :func:`benchmarks.gpu_check.meta_step.launches`."""
    model = on_meta(SUPPORTED["qwen3"])
    return make(model.config, alone(model, slots=slots, capacity=64, attention="triton", capture=capture))._passes
