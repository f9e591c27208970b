"""Describe in words what a run's engine chose and what its graph captures cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MIB = 1 << 20


def engine_line(report: Mapping[str, Any]) -> str:
    """``Engine.report()`` in a line, as "attention: triton (auto: 1.3 times flash); 14 graphs captured in 2.1 s"."""
    parts = []
    if attention := report.get("attention"):
        parts.append(f"attention: {attention}" + (f" ({report['why']})" if report.get("why") else ""))
    if graphs := report.get("graphs"):
        captured = f"{graphs} {'graph' if graphs == 1 else 'graphs'} captured"
        if (seconds := _number(report, "capture_s")) is not None:
            captured += f" in {seconds:.1f} s"
        if (size := _number(report, "capture_bytes")) is not None:
            captured += f", {size / _MIB:.0f} MiB"
        parts.append(captured)
    if seconds := _number(report, "compile_s"):
        parts.append(f"compiled in {seconds:.1f} s")
    if layers := layers_line(report):
        parts.append(layers)
    if products := report.get("products"):
        own = sum(each.get("kernel") == "own" for each in products)
        parts.append(f"products of up to 16 rows: our kernel for {own} of {len(products)} shapes")
    for head in report.get("heads") or ():
        parts.append("head: " + (_own(head) or _fused(head) or f"torch's{_missing(head)}"))
    parts += [str(note) for note in report.get("notes") or ()]
    return "; ".join(parts)


def layers_line(report: Mapping[str, Any]) -> str:
    """The implementation of the layers, as "layers: our own C++"; empty if the report does not have it."""
    if report.get("linears") == "own":
        return "layers: our own C++"
    if fused := _fused(report):
        return f"layers: {fused}"
    why = report.get("why_not_own") or report.get("why_not_fused")
    return f"layers: transformers' ({why})" if why else ""


def _own(report: Mapping[str, Any]) -> str:
    """The parts of a head that run in our C++; empty if there are none."""
    if report.get("linears") != "own":
        return ""
    halved = f"; {report['bf16_products']} with weights in bf16, exactly" if report.get("bf16_products") else ""
    parts = ["products", *(report.get("fusions") or ())]
    return f"our own C++ ({', '.join(parts)}{_missing(report)}{halved})"


def _fused(report: Mapping[str, Any]) -> str:
    """The parts that run as fused kernels; empty if there are none."""
    fusions = report.get("fusions")
    return f"fused ({', '.join(fusions)}{_missing(report)})" if fusions else ""


def _missing(report: Mapping[str, Any]) -> str:
    return "".join(f"; not {name}: {why}" for name, why in (report.get("not_fused") or {}).items())


def _number(report: Mapping[str, Any], name: str) -> float | None:
    """A number from a report, which is not validated and may hold any value."""
    found = report.get(name)
    return found if isinstance(found, (int, float)) else None
