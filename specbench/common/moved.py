"""Moved names: what a plug-in written for specbench 0.1 imports, and where it is now."""

from __future__ import annotations

import re

#: Module of 0.1, below ``specbench`` -> what is to be imported now. The first that fits counts; CHANGELOG has them all.
_NOW = {
    "engine.tree": "specbench.decoding (ORIGINS: specbench.decoding.tree)",
    "engine.layers": "specbench.engine.step",
    "engine.linears": "specbench.engine.products",
    "options": "specbench.common, for a method specbench.decoding",
    "errors": "specbench.common",
    "registry": "specbench.common",
    "drafting": "specbench.decoding.drafts, .convergence and .trees",
    "simulate": "specbench.runner.simulate (COMPUTED: specbench.decoding.tree)",
    "names": "specbench.models",
    "task": "specbench.evals (Prompt and Turn: specbench.common)",
    "data": "specbench.evals.data",
    "dialogue": "specbench.evals.dialogue",
    "lmeval": "specbench.evals.lm_eval_tasks",
    "scoring": "specbench.evals, with .extract, .plus_checks, .workers and .sandbox",
    "records": "specbench.results",
    "plan": "specbench.runner.plan, .methods and .tasks",
    "training.collator": "specbench.training",
    "training.finetune": "specbench.training",
    "training.lesson": "specbench.training",
    "training.objectives": "specbench.training.losses",
    "training.repetition": "specbench.training.answers",
    "training.settings": "specbench.training.recipe",
}


def hint(error: ImportError) -> str:
    """What to change, where an import failed because what it names has moved; else nothing."""
    wanted = error.name or ""
    if of_package := re.match(r"cannot import name '(\w+)' from '([\w.]+)'", str(error)):
        wanted = f"{of_package[2]}.{of_package[1]}"
    own = wanted.removeprefix("specbench.")
    for old, now in _NOW.items():
        if own != wanted and (own == old or own.startswith(f"{old}.")):
            return f"; it was written for specbench 0.1, whose specbench.{old} is {now} now: change that import"
    return ""
