"""Configuration: everything that decides what a run measures, as it is recorded, and the folder that it goes to."""

from __future__ import annotations

from datetime import datetime, timezone

from specbench.engine import products
from specbench.hardware import environment
from specbench.models import LoadedModel
from specbench.results import RunConfig, RunFolder
from specbench.runner.plan import Plan
from specbench.runner.prompts import Prepared


def config_of(
    plan: Plan,
    model: LoadedModel,
    prepared: Prepared,
    captured: environment.Environment,
    base: LoadedModel | None = None,
) -> RunConfig:
    """The record of a plan whose methods have what they bring."""
    return RunConfig(
        model=model.spec,
        base=base.spec if base else None,
        task=prepared.spec,
        methods=plan.specs(),
        sampling=plan.sampling,
        max_new_tokens=prepared.budget,
        repeats=plan.repeats,
        concurrency=plan.concurrency,
        attention=plan.attention,
        graphs=plan.graphs,
        compile=plan.compile,
        linears=products.kind_for(model.model),
        simulated=dict(plan.simulated),
        order_seed=plan.sampling.seed,
        trace=plan.trace,
        identity=environment.fingerprint(captured),
    )


def open_folder(plan: Plan, config: RunConfig, captured: environment.Environment) -> tuple[RunFolder, bool]:
    """The unfinished folder of this configuration, or a new one; and whether it is the former."""
    digest = config.digest()
    folder = RunFolder.find_unfinished(plan.out, digest)
    if folder is not None:
        return folder, True
    stem = f"{'+'.join(m.label for m in plan.methods)}-{config.task.name}"
    run = {
        "created_utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **config.model_dump(mode="json"),
        "environment": captured.model_dump(mode="json"),
    }
    return RunFolder.create(plan.out, stem, digest, run), False
