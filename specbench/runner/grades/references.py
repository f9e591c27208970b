"""Score the texts that really follow a task's prompts, under each model of a run. Not timed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specbench.results import REFERENCES, Reference, References, RunFolder
from specbench.runner.grades.likelihood import token_log_likelihoods

if TYPE_CHECKING:
    from specbench.runner.prompts import Prepared
    from specbench.runner.session import Session


def rate_references(sessions: Sequence[Session], prepared: Prepared, folder: RunFolder) -> None:
    """Write ``references.json`` for a task whose prompts have a reference text."""
    asked = [prepared.reference(name) for name, prompt in prepared.prompts.items() if prompt.reference]
    pairs = [(before, text) for before, text in asked if before and text]
    if not pairs or folder.read(REFERENCES) is not None:
        return
    rows: dict[str, Reference] = {}
    for session in sessions:
        found = [token_log_likelihoods(session.engine, *pair) for pair in pairs]
        score = Reference(tokens=sum(map(len, found)), log_likelihood=math.fsum(map(math.fsum, found)))
        rows |= {method.label: score for method in session.methods}
    folder.write(REFERENCES, References(rows=rows))
