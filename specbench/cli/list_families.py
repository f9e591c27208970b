"""``specbench list families``: what the engine does with each causal language model class of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import specbench
from specbench.cli import output
from specbench.common import read_json_object

_RESULTS = Path(specbench.__file__).parent / "models" / "families.json"
_LEGEND = (
    "exact: the engine decodes the tokens of the model's own generate, one row at a time and with trees. refused: the "
    "engine refuses the model. not tried: our command does not make a tiny model of this class that runs in "
    "transformers. Tiny models with random weights in float32, transformers {transformers}."
)


def families() -> dict[str, Any]:
    """The version of transformers, and the results by class."""
    return read_json_object(_RESULTS, "install specbench-llm again")


def list_families(as_json: bool) -> None:
    """Print the families as a table, exact ones first, or as JSON."""
    found = families()
    if as_json:
        output.emit_json(found["families"])
        return
    order = ("exact", "refused", "not tried")
    rows = sorted(found["families"], key=lambda one: (order.index(one["result"]), one["model_type"]))
    console = output.stdout()
    cells = [[one["model_type"], one["result"], one["why"]] for one in rows]
    console.print(output.table(["model type", "result", "why"], cells))
    console.print(f"\n{_LEGEND.format(**found)}")
