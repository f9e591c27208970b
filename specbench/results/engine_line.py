"""Engine line: what a run's engine chose and what its captures cost, in words. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MIB = 1 << 20


def engine_line(report: Mapping[str, Any]) -> str:
    """The line, as "attention: triton (auto: 1.3 times flash); 14 graphs captured in 2.1 s, 310 MiB".

    Args:
        report: what ``Engine.report()`` says: ``attention`` and ``why`` it was chosen, ``graphs`` captured with
            ``capture_s`` and ``capture_bytes``, ``compile_s``. What is missing or None is left out of the line.
    """
    parts = []
    if attention := report.get("attention"):
        parts.append(f"attention: {attention}" + (f" ({report['why']})" if report.get("why") else ""))
    if graphs := report.get("graphs"):
        captured = f"{graphs} {'graph' if graphs == 1 else 'graphs'} captured"
        if report.get("capture_s") is not None:
            captured += f" in {report['capture_s']:.1f} s"
        if report.get("capture_bytes") is not None:
            captured += f", {report['capture_bytes'] / _MIB:.0f} MiB"
        parts.append(captured)
    if report.get("compile_s"):
        parts.append(f"compiled in {report['compile_s']:.1f} s")
    return "; ".join(parts)
