"""Load the model of a plan, and the model that it was made from."""

from __future__ import annotations

from collections.abc import Callable

from specbench.common import UsageError
from specbench.hardware import sample_machine
from specbench.models import LoadedModel, load
from specbench.planning import Loading, Resolved
from specbench.runner.setup.layer_backend import build_layers
from specbench.runner.setup.threads import leave_cores, set_threads, taken_since

# A text that distinguishes tokenizers: code, digits, letters beyond ASCII, blanks.
_SAMPLE = "def f(x):  # 3 quick brown foxes, naïve\n\treturn x ** 2\n"


def load_model(plan: Loading, say: Callable[[str], None]) -> LoadedModel:
    """Load the model of a plan in the plan's precision on its device, after announcing it."""
    say(f"loading {plan.model} …")
    return load(
        plan.model,
        dtype=plan.dtype,
        device=plan.device,
        revision=plan.revision,
        trust_remote_code=plan.trust_remote_code,
        quantize=plan.quantize,
        template_args=plan.template_args,
    )


def load_models(
    resolved: Resolved, say: Callable[[str], None] = lambda line: None
) -> tuple[LoadedModel, LoadedModel | None]:
    """The model that a run decodes with, and its base, or None if the run has no row of the base.

    Raises UsageError if the base has other tokens.
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
    base = load(
        resolved.base,
        dtype=model.spec.dtype,
        device=plan.device,
        trust_remote_code=plan.trust_remote_code,
        quantize=plan.quantize,
        template_args=plan.template_args,
    )
    alike = base.tokenizer(_SAMPLE)["input_ids"] == model.tokenizer(_SAMPLE)["input_ids"]
    if base.vocab_size != model.vocab_size or not alike:
        raise UsageError(
            f"{resolved.base} has other tokens than {plan.model}, so it was not made from it; use --base none"
        )
    return model, base
