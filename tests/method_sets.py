"""The registered methods with the options that the contract tests run them with: their defaults, and these.

A new method is tested with its defaults as soon as its folder is there. Give it option sets here that reach every
branch of its drafting; small sizes make a stop or a budget fall inside a block more often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specbench import registry
from specbench.decoding import Method
from specbench.plan import plan_methods
from specbench.records import BASELINE

OPTION_SETS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "jacobi": [
        {"block_size": 1},
        {"block_size": 4, "init": "pad"},
        {"block_size": 5, "window": "sliding", "init": "uniform"},
        {"block_size": 6, "prefill_draft": True, "init": "uniform"},
        {"block_size": 4, "window": "sliding", "prefill_draft": True},
    ],
}


def with_options(name: str, options: Mapping[str, Any]) -> Method:
    """A registered method, made as the command line makes it."""
    return plan_methods([name], [f"{name}.{option}={value}" for option, value in options.items()])[-1]


def label(name: str, options: Mapping[str, Any]) -> str:
    """The test's id."""
    return " ".join([name, *(f"{option}={value}" for option, value in options.items())])


ALL: dict[str, Method] = {
    label(name, options): with_options(name, options)
    for name in registry.methods()
    for options in [{}, *OPTION_SETS.get(name, [])]
}

#: The baseline is left out: it is what the others are compared with.
LOSSLESS = {name: method for name, method in ALL.items() if method.lossless and method.name != BASELINE}
