"""What each run of the report ran on and with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specbench.reporting.engine import engine_line
from specbench.reporting.report.document import DASH, Cell, Column, Row, Section, Source, Table
from specbench.reporting.report.headline import known

if TYPE_CHECKING:
    from specbench.gathering import Gathered, Run

_SOURCE = "run.json and summary.json of the run's folder."


def environment_section(found: Gathered) -> Section:
    """Machine, software, git and settings of each run, a column for each."""
    blocks = [_facts(found), _versions(found)]
    return Section("environment", "Environment", [table for table in blocks if table.rows])


def _facts(found: Gathered) -> Table:
    facts = {run.id: _run_facts(run) for run in found.runs}
    for sweep in found.sweeps:
        first = next(iter(sweep.runs.values()))
        facts[sweep.path.name] = _machine(first.run)
    for name, profile in found.profiles:
        facts[name] = _machine({"environment": profile.environment}) | {"engine": engine_line(profile.engine) or DASH}
    return _sideways("environment", "Machines and settings", facts)


def _run_facts(run: Run) -> dict[str, str]:
    config, model = run.config, run.config.model
    asked = {spec.label: ", ".join(f"{k} {v}" for k, v in spec.options.items()) for spec in config.methods}
    options = "; ".join(f"{label}: {chosen}" for label, chosen in asked.items() if chosen)
    how = config.sampling
    return {
        "folder": run.folder,
        **_machine(run.run),
        "engine": engine_line(run.engine) or f"attention: {config.attention}",
        "graphs, compile, linears": f"{config.graphs}, {'on' if config.compile else 'off'}, {config.linears}",
        "weights": f"{model.source}{f' @ {model.revision}' if model.revision else ''}, {model.fingerprint[:12]}",
        "task": f"{config.task.name} v{config.task.version}, prompts {config.task.prompts_sha256[:12]}",
        "sampling": f"T={how.temperature:g}, top-k {how.top_k}, top-p {how.top_p:g}, seed {how.seed}",
        "repeats, order seed": f"{config.repeats}, {config.order_seed}",
        "options": options or DASH,
        "digest": known(run.run, "digest") or DASH,
    }


def _machine(run: Mapping[str, Any]) -> dict[str, str]:
    def of(*names: str) -> str | None:
        return known(run, "environment", *names)

    kind, memory = of("device", "kind"), of("device", "memory_bytes")
    device = of("device", "name") or DASH
    device += f", {_gib(memory)}" if memory else ""
    cpu, cores, threads = of("cpu", "model"), of("cpu", "usable_cores"), of("cpu", "torch_threads")
    dirty = of("git_dirty") == "True"
    return {
        "device": device,
        "driver, CUDA": ", ".join(part for part in (of("device", "driver"), of("device", "cuda")) if part)
        or ("no GPU" if kind == "cpu" else DASH),
        "CPU": f"{cpu or DASH}" + (f", {cores} cores" if cores else "") + (f", {threads} threads" if threads else ""),
        "memory": _gib(of("ram_bytes")),
        "load before": ", ".join(f"{float(load):.1f}" for load in _loads(run)) or DASH,
        "system": of("platform") or DASH,
        "started": known(run, "created_utc") or DASH,
        "specbench": f"{of('specbench') or DASH}" + (" with changes" if dirty else ""),
        "git commit": of("git_commit") or DASH,
        "Python": of("python") or DASH,
    }


def _loads(run: Mapping[str, Any]) -> list[float]:
    environment = run.get("environment")
    loads = environment.get("load_average") if isinstance(environment, dict) else None
    return [load for load in loads if isinstance(load, int | float)] if isinstance(loads, list) else []


def _gib(size: str | None) -> str:
    return f"{int(size) / 2**30:.0f} GiB" if size and size.isdecimal() else DASH


def _versions(found: Gathered) -> Table:
    environments = {run.id: run.run.get("environment") for run in found.runs}
    environments |= {sweep.path.name: next(iter(sweep.runs.values())).run.get("environment") for sweep in found.sweeps}
    environments |= {name: profile.environment for name, profile in found.profiles}
    facts = {}
    for name, environment in environments.items():
        versions = environment.get("versions") if isinstance(environment, dict) else None
        facts[name] = {str(package): str(version or DASH) for package, version in (versions or {}).items()}
    return _sideways("versions", "Packages", facts)


def _sideways(name: str, title: str, facts: Mapping[str, Mapping[str, str]]) -> Table:
    """A row for each fact and a column for each run; a fact that none of them has is left out."""
    columns = [Column("fact", "", words=True), *(Column(run, run, words=True) for run in facts)]
    names = dict.fromkeys(fact for known_facts in facts.values() for fact in known_facts)
    body = [
        Row([Cell(fact), *(Cell(mine.get(fact, DASH)) for mine in facts.values())])
        for fact in names
        if any(mine.get(fact, DASH) != DASH for mine in facts.values())
    ]
    return Table(name, title, columns, body, Source(list(facts), _SOURCE))
