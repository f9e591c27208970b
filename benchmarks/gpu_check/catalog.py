"""Catalog: the parts of the check, the most valuable first, and the time that each may take. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A part of the check, run in a process of its own.

    Attributes:
        name: what ``--only`` takes.
        title: of its section on the page.
        seconds: that it is expected to take on an H200.
        target: ``module:function``, called with a :class:`benchmarks.gpu_check.bench.Bench`; yields figures.
        predicts: the module has ``predicted``, called with a :class:`benchmarks.gpu_check.predict.Known`; yields the
            figures that it predicts, without values.
        compiles: seconds of ``seconds`` that Triton is expected to compile kernels, estimated on a CPU.
        least_s: it is never ended earlier.
    """

    name: str
    title: str
    seconds: float
    target: str
    predicts: bool = False
    compiles: float = 0.0
    least_s: float = 0.0

    def limit_s(self, pace: float | None = None) -> float:
        """Seconds after which it is ended: twice what it is expected to take on this machine.

        Args:
            pace: measured over expected seconds of compiling, of the parts so far; None before any has compiled.
        """
        slower = _UNKNOWN_PACE if pace is None else max(1.0, pace)
        return max(self.least_s, 2 * (self.seconds + (slower - 1) * self.compiles))


_UNKNOWN_PACE = 2.0
_PARTS = "benchmarks.gpu_check.parts"

#: Comes before the parts, whichever of them are asked for. An image that was never used imports torch in a minute.
DEVICE = Part("device", "The device", 20, "benchmarks.gpu_check.device:run", least_s=120)

#: Seconds of ``steps`` and of what follows are from compile times measured on a CPU and from counted captures.
PARTS: Sequence[Part] = (
    Part("ceilings", "What the device does at best", 15, f"{_PARTS}.ceilings:run", True),
    Part("steps", "AR, and the step over 1 to 512 rows", 140, f"{_PARTS}.steps:run", True, 60),
    Part("jetspec", "A round of JetSpec at simulated acceptance", 85, f"{_PARTS}.jetspec:run", True, 10),
    Part("lossless", "AR's own text hidden in wild trees", 45, f"{_PARTS}.lossless:run"),
    Part("eager", "AR with graphs off, and transformers' own loop", 35, f"{_PARTS}.eager:run"),
    Part("kernels", "Kernels of a step, by the profiler", 30, f"{_PARTS}.kernels:run", True),
    Part("concurrency", "Sequences stepped together", 80, f"{_PARTS}.concurrency:run", True, 10),
    Part("tests", "Chosen tests of the suite", 60, f"{_PARTS}.tests:run", False, 30),
    Part(
        "compiled",
        "The same step through torch.compile, and as transformers has it",
        100,
        f"{_PARTS}.compiled:run",
        True,
    ),
    Part("attention", "Tree attention against SDPA and flash-attn", 60, f"{_PARTS}.attention:run", True, 10),
    Part("model", "A real model on real prompts", 45, f"{_PARTS}.model:run", False, 10),
)
