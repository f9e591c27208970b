"""Moved names: what a plug-in written for specbench 0.1 imports, and where it is now. No torch."""

from __future__ import annotations

#: Module of 0.1 that plug-ins were told of -> where its names are now. The first that fits counts.
_NOW = {
    "specbench.engine.tree": "specbench.decoding",
    "specbench.options": "specbench.common (for a method, specbench.decoding)",
    "specbench.errors": "specbench.common",
    "specbench.drafting.heap_trees": "specbench.decoding.trees",
    "specbench.drafting.convergence": "specbench.decoding.convergence",
    "specbench.drafting": "specbench.decoding.drafts",
    "specbench.names": "specbench.models",
    "specbench.simulate": "specbench.decoding.tree",
    "specbench.task": "specbench.evals (Prompt and Turn: specbench.common)",
    "specbench.data": "specbench.evals.data",
    "specbench.dialogue": "specbench.evals.dialogue",
    "specbench.lmeval": "specbench.evals.lm_eval_tasks",
    "specbench.scoring.workers": "specbench.evals.workers",
    "specbench.scoring": "specbench.evals",
    "specbench.records": "specbench.results",
}


def hint(error: ImportError) -> str:
    """What to change, where an import failed because what it names has moved; else nothing.

    Args:
        error: with the module that was looked for as its ``name``.
    """
    wanted = error.name or ""
    for old, now in _NOW.items():
        if wanted == old or wanted.startswith(f"{old}."):
            return f"; it was written for specbench 0.1, whose {old} is {now} now: change that import"
    return ""
