"""The run's own, as a file or folder that another engine reads. No torch until they are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from specbench.backends.protocol import Served
from specbench.common import EngineFault, SpecbenchError
from specbench.results import ServedWeights


def weights_of(served: Served, kind: Literal["gguf", "hf"]) -> tuple[Path, ServedWeights]:
    """The copy of a run's weights at a row's precision, compared with them bit for bit when it was written."""
    from specbench.models import exported

    try:
        found = exported(served.model, kind, served.dtype)
    except SpecbenchError as error:
        raise EngineFault(f"it cannot be given the run's weights: {error}") from error
    return found.path, ServedWeights(format=kind, sha256=found.sha256, fingerprint=found.fingerprint, verified=True)
