"""Untrained: what a method that lives on training is expected to give on a model that has none of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specbench.common import registry
from specbench.models import names


def notes(model: str, methods: Sequence[str]) -> Iterator[str]:
    """A line on each method that the model was not trained for, as far as its ``method.toml`` says what to expect."""
    known = names.aliases()
    mine = known.get(model, {}).get("method")
    for name in dict.fromkeys(methods):
        expected = registry.method(name).info.get("untrained")
        if expected is None or name == mine:
            continue
        line = (
            f"{name}: {model} is not known to be trained for it; without training it gave {expected['gave']} "
            f"({expected['run']})"
        )
        trained = {alias: entry for alias, entry in known.items() if entry.get("method") == name}
        of_model = [alias for alias, entry in trained.items() if entry.get("base") == model]
        shipped = [alias for alias, entry in trained.items() if "adapter" in entry]
        if found := of_model or shipped or list(trained):
            line += f"; trained for it: --model {' or '.join(found)}"
        yield line
