"""Export the run's weights for another engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from specbench.backends.protocol import Served
from specbench.common import EngineFault, SpecbenchError
from specbench.results import ServedWeights

if TYPE_CHECKING:
    from specbench.models import LoadedModel


def weights_of(served: Served, kind: Literal["gguf", "hf"]) -> tuple[Path, ServedWeights]:
    """Return the exported weights in a row's precision; they were compared bit for bit when they were written."""
    from specbench.models import exported

    try:
        found = exported(served.model, kind, served.dtype)
    except SpecbenchError as error:
        raise EngineFault(f"its weights cannot be exported: {error}") from error
    return found.path, ServedWeights(format=kind, sha256=found.sha256, fingerprint=found.fingerprint, verified=True)


def drafter(name: str, served: Served) -> LoadedModel:
    """Load a draft model, a value of ``--model``, in a row's precision."""
    from specbench.models import load

    try:
        return load(name, dtype=served.dtype, device="cpu")
    except SpecbenchError as error:
        raise EngineFault(f"its draft model cannot be loaded: {error}") from error
