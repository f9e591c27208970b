"""Loading: the model of a plan, and the one that it was made from."""

from __future__ import annotations

from collections.abc import Callable

import torch

from specbench.common import UsageError
from specbench.models import LoadedModel, load
from specbench.runner.plan import Loading
from specbench.runner.resolving import Resolved

# Told apart by: code, digits, letters beyond ASCII, blanks.
_SAMPLE = "def f(x):  # 3 quick brown foxes, naïve\n\treturn x ** 2\n"


def load_model(plan: Loading, say: Callable[[str], None]) -> LoadedModel:
    """Loads the model that a plan names, in the precision and on the device that it names, and says so before."""
    say(f"loading {plan.model} …")
    return load(
        plan.model,
        dtype=plan.dtype,
        device=plan.device,
        revision=plan.revision,
        trust_remote_code=plan.trust_remote_code,
    )


_threads: tuple[int, int] | None = None  # torch's number before a plan of this process asked for one, and what it asked


def _set_threads(wanted: int | None) -> None:
    """Gives torch the threads of a plan; one that asks for none gets those from before another plan asked."""
    global _threads
    if _threads is not None and torch.get_num_threads() != _threads[1]:
        _threads = None  # the process has chosen anew since
    if wanted is not None:
        _threads = (_threads[0] if _threads else torch.get_num_threads(), wanted)
        torch.set_num_threads(wanted)
    elif _threads is not None:
        torch.set_num_threads(_threads[0])
        _threads = None


def load_models(
    resolved: Resolved, say: Callable[[str], None] = lambda line: None
) -> tuple[LoadedModel, LoadedModel | None]:
    """Loads what a run decodes with.

    Args:
        resolved: the run.
        say: takes a line before each.

    Returns:
        The model, and what it was made from, in its precision; None where the run has no row of that.

    Raises:
        UsageError: the base writes text in other tokens, so that its answers are to other prompts; as of ``load``.
        EnvironmentRefused: as of ``load``.
    """
    plan = resolved.plan
    _set_threads(plan.threads)
    model = load_model(plan, say)
    if resolved.base is None:
        return model, None
    say(f"loading {resolved.base}, which {plan.model} was made from …")
    base = load(resolved.base, dtype=model.spec.dtype, device=plan.device, trust_remote_code=plan.trust_remote_code)
    alike = base.tokenizer(_SAMPLE)["input_ids"] == model.tokenizer(_SAMPLE)["input_ids"]
    if base.vocab_size != model.vocab_size or not alike:
        raise UsageError(
            f"{resolved.base} has other tokens than {plan.model}, so it was not made from it; use --base none"
        )
    return model, base
