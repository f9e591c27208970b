"""The parts of the check, the most valuable first, and the time that each may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A part of the check, run in its own process.

    Attributes:
        name: name for ``--only``.
        title: title of its section on the page.
        seconds: expected time on an H200.
        target: ``module:function``, called with a :class:`benchmarks.gpu_check.bench.Bench`; yields figures.
        predicts: whether the module has ``predicted``, called with a :class:`benchmarks.gpu_check.predict.Known`, which
            yields the predicted figures without values.
        compiles: expected time for compiling Triton kernels, included in ``seconds``, estimated on a CPU.
        least_s: smallest time limit, in seconds.
    """

    name: str
    title: str
    seconds: float
    target: str
    predicts: bool = False
    compiles: float = 0.0
    least_s: float = 0.0

    def limit_s(self, pace: float | None = None) -> float:
        """Time limit in seconds: twice the expected time on this machine.

        Args:
            pace: measured divided by expected compile time of the parts so far; None before any part has compiled.
        """
        slower = _UNKNOWN_PACE if pace is None else max(1.0, pace)
        return max(self.least_s, 2 * (self.seconds + (slower - 1) * self.compiles))


_UNKNOWN_PACE = 2.0
_PARTS = "benchmarks.gpu_check.parts"

#: Runs before the selected parts. In a fresh image, importing torch takes a minute.
DEVICE = Part("device", "The device", 20, "benchmarks.gpu_check.device:run", least_s=120)

#: The times from ``steps`` on are estimated from compile times on a CPU and from the number of captures.
PARTS: Sequence[Part] = (
    Part("ceilings", "Ceilings of the device: bandwidth and peak", 15, f"{_PARTS}.ceilings:run", True),
    Part("steps", "AR, and step time by rows, 1 to 512", 140, f"{_PARTS}.steps:run", True, 60),
    Part("jetspec", "A round of JetSpec at simulated acceptance", 85, f"{_PARTS}.jetspec:run", True, 10),
    Part("lossless", "Losslessness: AR's own text hidden in random trees", 45, f"{_PARTS}.lossless:run"),
    Part("eager", "AR with graphs off, and transformers' own loop", 35, f"{_PARTS}.eager:run"),
    Part("kernels", "Kernels of a step, by the profiler", 30, f"{_PARTS}.kernels:run", True),
    Part("concurrency", "Several sequences stepped together", 80, f"{_PARTS}.concurrency:run", True, 10),
    Part("tests", "Selected tests of the suite", 60, f"{_PARTS}.tests:run", False, 30),
    Part(
        "compiled",
        "The step with torch.compile, and with transformers' own layers",
        100,
        f"{_PARTS}.compiled:run",
        True,
    ),
    Part("attention", "Tree attention compared with SDPA and flash-attn", 60, f"{_PARTS}.attention:run", True, 10),
    Part("masked", "Passes over masked blocks", 30, f"{_PARTS}.masked:run"),
    Part("model", "A real model on real prompts", 45, f"{_PARTS}.model:run", False, 10),
)
