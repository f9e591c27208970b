"""The recorded configuration of a run (everything that decides what it measures), and its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from pydantic import ValidationError

from specbench.analysis import read_run
from specbench.backends import Row
from specbench.common import EngineFault, registry
from specbench.hardware import environment
from specbench.models import LoadedModel
from specbench.planning import Resolved
from specbench.results import ENGINES, EngineFacts, Engines, RunConfig, RunFolder
from specbench.runner.prompts import Prepared
from specbench.runner.setup.threads import fewer_than_usual


def config_of(
    resolved: Resolved,
    model: LoadedModel,
    prepared: Prepared,
    captured: environment.Environment,
    linears: str,
    base: LoadedModel | None = None,
) -> RunConfig:
    """The record of a plan after its methods are prepared; ``linears`` names the code that computes products."""
    plan = resolved.plan
    identity = environment.fingerprint(captured)
    if plan.threads is not None:  # otherwise a run could continue with another number of threads
        identity["threads"] = plan.threads
    return RunConfig(
        model=model.spec,
        base=base.spec if base else None,
        task=prepared.spec,
        methods=resolved.specs(),
        sampling=plan.sampling,
        max_new_tokens=prepared.budget,
        repeats=resolved.passes,
        concurrency=plan.concurrency,
        attention=plan.attention,
        graphs=plan.graphs,
        compile=plan.compile,
        deterministic=plan.deterministic,
        linears=linears,
        simulated=dict(resolved.simulated),
        order_seed=plan.sampling.seed,
        trace=plan.trace,
        keep_prefix=plan.keep_prefix,
        load=resolved.arrivals.load if resolved.arrivals else None,
        identity=identity,
    )


def open_folder(
    resolved: Resolved, config: RunConfig, captured: environment.Environment, about: Mapping[str, Any] | None = None
) -> tuple[RunFolder, bool]:
    """The unfinished folder of this configuration, or a finished one that can be shown again, or a new one.

    Also returns whether it existed before. ``about``: further fields for ``run.json`` of a new folder, such as
    ``notes``.
    """
    plan, digest = resolved.plan, config.digest()
    folder = RunFolder.find_unfinished(plan.out, digest)  # first: it may be an interrupted repetition
    if folder is None and not plan.again and _code_is_known(config, captured):
        folder = RunFolder.find_finished(plan.out, digest, lambda found: _stands(found, captured, resolved.rows))
    if folder is not None:
        return folder, True
    stem = f"{'+'.join(m.label for m in resolved.everyone)}-{config.task.name}"
    run = {
        "created_utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **config.model_dump(mode="json"),
        "plan": plan.recorded(),
        "environment": captured.model_dump(mode="json"),
        **(about or {}),
    }
    return RunFolder.create(plan.out, stem, digest, run), False


def _code_is_known(config: RunConfig, captured: environment.Environment) -> bool:
    """Whether the digest identifies the code: not with uncommitted changes or methods of other packages."""
    own = [spec.name for spec in config.methods if not spec.engine]
    cards = [registry.task(config.task.name), *map(registry.method, own)]
    return not captured.git_dirty and all(card.origin == registry.OWN for card in cards)


def _stands(found: RunFolder, captured: environment.Environment, rows: Sequence[Row]) -> bool:
    """Whether a run had today's threads, libraries and variables (the digest has only some of them) and the same other
    engines, none of which failed. A failed row could not be measured later together with the others.
    """
    engines = found.read(ENGINES) or Engines()
    if engines.failed or any(_is_another(row, engines.rows.get(row.label)) for row in rows):
        return False
    try:
        then = environment.Environment.model_validate(found.run.get("environment"))
    except ValidationError:  # written by another version
        return False
    if fewer_than_usual():  # only now, because other processes are busy
        cpu = captured.cpu.model_copy(update={"torch_threads": then.cpu.torch_threads})
        captured = captured.model_copy(update={"cpu": cpu})
    return environment.alike(then, captured) and bool(read_run(found.path, traces=False))


def _is_another(row: Row, before: EngineFacts | None) -> bool:
    """Whether an engine has another version than in the run; unknown for a server before it is asked."""
    try:
        now = None if row.url else row.backend.version(row.options)
    except EngineFault:
        return False  # it is not installed any more; its figures stay
    return now is not None and (before is None or before.version != now)
