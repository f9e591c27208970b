"""Loading: the model of a plan, and the one that it was made from."""

from __future__ import annotations

from collections.abc import Callable

from specbench.common import UsageError
from specbench.hardware import sample_machine
from specbench.models import LoadedModel, load
from specbench.planning import Loading, Resolved
from specbench.runner.setup.layer_backend import build_layers
from specbench.runner.setup.threads import leave_cores, set_threads, taken_since

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


def load_models(
    resolved: Resolved, say: Callable[[str], None] = lambda line: None
) -> tuple[LoadedModel, LoadedModel | None]:
    """The model that a run decodes with, and what it was made from, or None where the run has no row of that.

    Raises UsageError where the base writes text in other tokens.
    """
    plan = resolved.plan
    set_threads(plan.threads)
    before = sample_machine()
    model = load_model(plan, say)
    if model.model.device.type == "cpu":
        if plan.threads is None:
            leave_cores(taken_since(before), say)
        build_layers(plan, say)
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
