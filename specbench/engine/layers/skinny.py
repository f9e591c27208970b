"""Compute products of up to 16 rows with our own kernel where it measures faster than torch.

With so few rows, a product mostly reads its weight, and libraries do not use the whole memory bandwidth for that. Our
kernel (:mod:`specbench.engine.kernels.skinny`) computes a row in the same way for any number of rows, so a row's
rounding does not depend on the size of the tree. Which weight shapes use the kernel, and with which tiles, is decided
once by timing and stored in a run's record, because another kernel rounds differently and can change the text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from specbench.engine.fast_paths import WORTH, reason, triton_fault
from specbench.engine.graphs import cuda_capture

MOST_ROWS = 16  # largest number of rows for our kernel
_ROWS = (1, MOST_ROWS)  # numbers of rows that both are timed at
_TIMED = 9  # replays of a timed product; the median counts
# Relative error of an output over some rows, between two orders of the same sums, each rounded to the dtype.
_BOUND = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2}

Shape = tuple[int, int]  # outputs and inputs of a weight


class Config(NamedTuple):
    """How the kernel divides a product.

    Attributes:
        block_n, block_k: outputs and inputs of a tile of the weight.
        splits: number of programs that divide the inputs of the same outputs among them.
    """

    block_n: int
    block_k: int
    splits: int
    warps: int
    stages: int


#: (x [n, K], weight [N, K], bias [N] or None, config) -> [n, N].
Kernel = Callable[[Tensor, Tensor, Tensor | None, Config], Tensor]
#: Configurations to try for a shape, the most promising first.
Candidates = Callable[[Shape, torch.dtype], Sequence[Config]]
#: Measures the seconds of device work, which launches the same operations at every call.
Time = Callable[[Callable[[], None]], float]


class SkinnyProducts:
    """Compute a model's products with torch or our kernel, chosen for each weight shape; ``pinned``: always torch.

    ``why_not``: why the kernel is not used for any shape, or an empty string if it may be used.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        pinned: bool = False,
        kernel: Kernel | None = None,
        candidates: Candidates | None = None,
    ) -> None:
        self._device = device
        self._kernel, self._candidates = kernel, candidates
        self.why_not = ""
        if pinned:
            self.why_not = "measured times may not decide"
        elif kernel is None:
            self.why_not = self._load()
        self._chosen: dict[Shape, dict[str, Any]] = {}  # in the form of a run's record
        self._configs: dict[Shape, Config] = {}  # of the shapes that use our kernel
        self._final = False

    def _load(self) -> str:
        """Load the kernel for the device; return why it is not available, or an empty string."""
        if self._device.type != "cuda":
            return "the kernel needs a CUDA device"
        if why := triton_fault(self._device):
            return why
        from specbench.engine.kernels import skinny as ours

        processors = torch.cuda.get_device_properties(self._device).multi_processor_count
        self._kernel = ours.skinny
        self._candidates = lambda shape, dtype: ours.configs(*shape, dtype, processors)
        return ""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute ``nn.functional.linear``."""
        config = self._configs.get((weight.shape[0], weight.shape[1]))
        rows = x.shape[:-1].numel()
        if config is None or not 1 <= rows <= MOST_ROWS:
            return nn.functional.linear(x, weight, bias)
        assert self._kernel is not None
        return self._kernel(x.reshape(rows, -1), weight, bias, config).view(*x.shape[:-1], -1)

    def keep(self, choices: Sequence[Mapping[str, Any]], *, only: bool = False) -> None:
        """Use an earlier run's choices from its :meth:`report`, without timing these shapes.

        ``only``: use torch for all other shapes and do not time anything.
        """
        self._final |= only
        for each in () if self.why_not else choices:
            shape = int(each["out"]), int(each["in"])
            self._chosen[shape] = dict(each)
            if each["kernel"] == "own":
                self._configs[shape] = Config(**each["config"])

    def leave(self, why: str) -> None:
        """Use torch for every product, also for shapes already chosen; call it before anything is captured."""
        self.why_not, self._chosen, self._configs = why, {}, {}

    @torch.inference_mode()
    def choose(self, weights: Mapping[Shape, Sequence[Tensor]], time: Time | None = None) -> None:
        """Choose torch or our kernel for every shape without a choice.

        ``weights``: weights [N, K] of each shape, from different layers. They are read one after the other, so that
        reading from memory is timed, not from a cache that holds one weight. ``time``: default is :func:`cuda_time`.
        """
        if self.why_not or self._final or not weights:
            return
        time = time or cuda_time(self._device)
        for shape, each in weights.items():
            if shape not in self._chosen:
                self.keep([self._choice(shape, each, time)])

    def _choice(self, shape: Shape, weights: Sequence[Tensor], time: Time) -> dict[str, Any]:
        """Choose for one shape; return the choice and its reasons, for the record."""
        assert self._kernel is not None
        assert self._candidates is not None
        first = weights[0]
        choice: dict[str, Any] = {"out": shape[0], "in": shape[1], "kernel": "torch", "config": None}
        choice |= {"torch_s": [], "timed": [], "why_not": ""}
        if first.dtype not in _BOUND:
            return choice | {"why_not": f"the kernel does not support {str(first.dtype).removeprefix('torch.')}"}
        generator = torch.Generator(first.device).manual_seed(0)
        rows = torch.randn(MOST_ROWS, shape[1], generator=generator, dtype=first.dtype, device=first.device)

        def seconds(product: Callable[[Tensor, Tensor], Tensor]) -> list[float]:
            def work(few: Tensor) -> None:
                for weight in weights:
                    product(few, weight)

            return [time(partial(work, rows[:count])) for count in _ROWS]

        torch_s, faults = seconds(nn.functional.linear), list[str]()
        timed: dict[Config, list[float]] = {}
        for config in self._candidates(shape, first.dtype):
            try:
                timed[config] = seconds(partial(self._ours, config))
            except Exception as error:  # a compiler or driver may reject these tiles with any error
                faults.append(f"{_words(config)}: {reason(error)}")
        choice["torch_s"] = torch_s
        choice["timed"] = [{"config": config._asdict(), "seconds": taken} for config, taken in timed.items()]
        best = min(map(sum, timed.values()), default=math.inf)
        for config in sorted(timed, key=lambda each: sum(timed[each])):
            if sum(torch_s) <= WORTH * sum(timed[config]):
                break
            if not (fault := self._fault(config, rows, first)):
                return choice | {"kernel": "own", "config": config._asdict()}
            faults.append(f"{_words(config)}: {fault}")
        if timed and sum(torch_s) <= WORTH * best:
            faults.append(f"the best tiles take {best / sum(torch_s):.2f} of torch's time")
        return choice | {"why_not": "; ".join(faults) or "no tiles fit this shape"}

    def _ours(self, config: Config, x: Tensor, weight: Tensor) -> Tensor:
        assert self._kernel is not None
        return self._kernel(x, weight, None, config)

    def _fault(self, config: Config, rows: Tensor, weight: Tensor) -> str:
        """Return what is wrong with the kernel's products, or an empty string."""
        assert self._kernel is not None
        bound = _BOUND[weight.dtype]
        generator = torch.Generator(weight.device).manual_seed(1)
        some = torch.randn(len(weight), generator=generator, dtype=weight.dtype, device=weight.device)
        alone = self._kernel(rows[:1], weight, None, config)
        for bias in (None, some):
            expected = nn.functional.linear(rows, weight, bias).float()
            found = self._kernel(rows, weight, bias, config)
            # Per output: a wrong tile is a small part of a large vocabulary, and outputs differ in size.
            error = (found.float() - expected).norm(dim=0)
            if not bool((error <= bound * expected.norm(dim=0)).all()):
                worst = float((error / expected.norm(dim=0).clamp_min(1e-30)).max())
                return f"an output has a relative error of {worst:.2g}"
            if bias is None and not torch.equal(found[:1], alone):
                return "the result of a row depends on the number of rows"
        return ""

    def report(self) -> list[dict[str, Any]]:
        """The choice for each shape and the measured times, for the record and for :meth:`keep`."""
        return [*self._chosen.values()]


def cuda_time(device: torch.device) -> Time:
    """Return a function that times work on a CUDA device: the median of replays of one capture, by device clock."""
    capture = cuda_capture(device)

    def time(work: Callable[[], None]) -> float:
        replay = capture(work)
        replay()
        taken = []
        for _ in range(_TIMED):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            replay()
            end.record()
            end.synchronize()
            taken.append(start.elapsed_time(end) / 1e3)
        return sorted(taken)[_TIMED // 2]

    return time


def _words(config: Config) -> str:
    return f"tiles of {config.block_n} × {config.block_k} in {config.splits}"
