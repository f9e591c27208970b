"""The definitions, word for word those of ``catalog/words.toml``, which the README has too."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from specbench import toml
from specbench.reporting.report.document import Section, Terms, Words


@cache
def vocabulary() -> dict[str, Any]:
    """``clock`` and the ``term`` list of the catalog."""
    return toml.loads(resources.files("specbench.catalog").joinpath("words.toml").read_text(encoding="utf-8"))


def words_section() -> Section:
    """What every word of the report means."""
    found = vocabulary()
    terms = Terms({term["word"]: term["means"] for term in found["term"]})
    return Section("words", "What the words mean", [Words([found["clock"]]), terms])
