"""Skinny products: of up to 16 rows and a weight, by a kernel of our own where it is measured to be the faster one.

Of so few rows a product is the reading of its weight, and libraries leave a part of the memory's bandwidth unused
there. Our kernel (:mod:`specbench.engine.kernels.skinny`) does a row alike however many run with it, so where it
serves, a row's rounding does not depend on the size of a tree. Which shape of weights gets it, and with which tiles, is
settled once, by time, and is part of a run's record: another kernel is another rounding, which can be another text.
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

MOST_ROWS = 16  # of a product by our kernel
_ROWS = (1, MOST_ROWS)  # that both are timed at
_TIMED = 9  # replays, of which a time is the median
# Relative error of an output over some rows, between two orders of the same sums, each rounded to the dtype.
_BOUND = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2}

Shape = tuple[int, int]  # of a weight: outputs, inputs


class Config(NamedTuple):
    """How the kernel cuts a product.

    Attributes:
        block_n, block_k: outputs and inputs of a tile of the weight.
        splits: programs that share the inputs of a tile's outputs.
    """

    block_n: int
    block_k: int
    splits: int
    warps: int
    stages: int


#: (x [n, K], weight [N, K], bias [N] or None, config) -> [n, N].
Kernel = Callable[[Tensor, Tensor, Tensor | None, Config], Tensor]
#: Configurations to try for a shape, the best guess first.
Candidates = Callable[[Shape, torch.dtype], Sequence[Config]]
#: Seconds that some device work takes, which launches the same operations at every call.
Time = Callable[[Callable[[], None]], float]


class SkinnyProducts:
    """Compute a model's products, each shape of weights by torch or by our kernel; ``pinned``: always by torch.

    ``why_not`` says why no product is ours, whatever its shape; empty where one may be.
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
            self.why_not = "no measured time may decide"
        elif kernel is None:
            self.why_not = self._load()
        self._chosen: dict[Shape, dict[str, Any]] = {}  # as a run's record has it
        self._configs: dict[Shape, Config] = {}  # of the shapes that are ours
        self._final = False

    def _load(self) -> str:
        """Takes the kernel for the device; why not, where there is none."""
        if self._device.type != "cuda":
            return "the kernel is for CUDA devices"
        if why := triton_fault(self._device):
            return why
        from specbench.engine.kernels import skinny as ours

        processors = torch.cuda.get_device_properties(self._device).multi_processor_count
        self._kernel = ours.skinny
        self._candidates = lambda shape, dtype: ours.configs(*shape, dtype, processors)
        return ""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """``nn.functional.linear``."""
        config = self._configs.get((weight.shape[0], weight.shape[1]))
        rows = x.shape[:-1].numel()
        if config is None or not 1 <= rows <= MOST_ROWS:
            return nn.functional.linear(x, weight, bias)
        assert self._kernel is not None
        return self._kernel(x.reshape(rows, -1), weight, bias, config).view(*x.shape[:-1], -1)

    def keep(self, choices: Sequence[Mapping[str, Any]], *, only: bool = False) -> None:
        """Takes what an earlier run settled, as its :meth:`report` has it: nothing is timed for these shapes.

        ``only``: leave all other shapes to torch, and time nothing.
        """
        self._final |= only
        for each in () if self.why_not else choices:
            shape = int(each["out"]), int(each["in"])
            self._chosen[shape] = dict(each)
            if each["kernel"] == "own":
                self._configs[shape] = Config(**each["config"])

    def leave(self, why: str) -> None:
        """Leaves every product to torch, whatever was settled; for before anything is captured."""
        self.why_not, self._chosen, self._configs = why, {}, {}

    @torch.inference_mode()
    def choose(self, weights: Mapping[Shape, Sequence[Tensor]], time: Time | None = None) -> None:
        """Chooses for every shape that no earlier run has chosen for.

        ``weights``: those of each shape, [N, K], of different layers: they are read one after the other, so that the
        memory is timed and not a cache that holds one of them. ``time``: default is :func:`cuda_time`.
        """
        if self.why_not or self._final or not weights:
            return
        time = time or cuda_time(self._device)
        for shape, each in weights.items():
            if shape not in self._chosen:
                self.keep([self._choice(shape, each, time)])

    def _choice(self, shape: Shape, weights: Sequence[Tensor], time: Time) -> dict[str, Any]:
        """What runs the products of a shape and how that came about, for the records."""
        assert self._kernel is not None
        assert self._candidates is not None
        first = weights[0]
        choice: dict[str, Any] = {"out": shape[0], "in": shape[1], "kernel": "torch", "config": None}
        choice |= {"torch_s": [], "timed": [], "why_not": ""}
        if first.dtype not in _BOUND:
            return choice | {"why_not": f"the kernel has no {str(first.dtype).removeprefix('torch.')}"}
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
            except Exception as error:  # whatever a compiler or a driver has to say of these tiles
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
        return choice | {"why_not": "; ".join(faults) or "there are no tiles for it"}

    def _ours(self, config: Config, x: Tensor, weight: Tensor) -> Tensor:
        assert self._kernel is not None
        return self._kernel(x, weight, None, config)

    def _fault(self, config: Config, rows: Tensor, weight: Tensor) -> str:
        """What is wrong with its products; empty where nothing is."""
        assert self._kernel is not None
        bound = _BOUND[weight.dtype]
        generator = torch.Generator(weight.device).manual_seed(1)
        some = torch.randn(len(weight), generator=generator, dtype=weight.dtype, device=weight.device)
        alone = self._kernel(rows[:1], weight, None, config)
        for bias in (None, some):
            expected = nn.functional.linear(rows, weight, bias).float()
            found = self._kernel(rows, weight, bias, config)
            # Of each output: a tile that is wrong is few of a large vocabulary's, and outputs differ in size.
            error = (found.float() - expected).norm(dim=0)
            if not bool((error <= bound * expected.norm(dim=0)).all()):
                worst = float((error / expected.norm(dim=0).clamp_min(1e-30)).max())
                return f"an output comes out {worst:.2g} off"
            if bias is None and not torch.equal(found[:1], alone):
                return "a row depends on how many rows run beside it"
        return ""

    def report(self) -> list[dict[str, Any]]:
        """What runs the products of each shape and what was measured, for the records and for :meth:`keep`."""
        return [*self._chosen.values()]


def cuda_time(device: torch.device) -> Time:
    """Times work on a CUDA device as a step runs it, captured once and replayed: the median, by the device's clock."""
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
