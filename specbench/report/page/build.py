"""The report document, from the gathered runs, sweeps and profiles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.analysis import engine_line, watched_line
from specbench.common import UsageError, parse_count, toml
from specbench.report.document import (
    DASH,
    NOTHING,
    Block,
    Cell,
    Column,
    Document,
    Figure,
    Row,
    Section,
    Source,
    Table,
    Terms,
    Words,
)
from specbench.report.gathering import Gathered, Skipped, cannot
from specbench.report.imports.tables import import_section
from specbench.report.page.best import best, tied_with_best
from specbench.report.page.findings import in_short, pictured, races_of
from specbench.report.page.pooled import pooled_blocks
from specbench.report.page.run_section import run_section
from specbench.report.tables import cell
from specbench.report.tables.columns import PROMPTS, SPEEDUP, TPF, VERDICT
from specbench.report.tables.run_table import FORMULA, candidates, headline, settings
from specbench.report.tables.text_quality import repetition_note
from specbench.results import TaskSpec, bandwidth_line, device_name, known_text

if TYPE_CHECKING:
    from specbench.report.gathering import Run
    from specbench.results import MethodSummary


def build_what_can_be(found: Gathered, *, claims: bool = False) -> tuple[Document, Gathered]:
    """Build the report of everything that can be shown; return it with the folders that it covers.

    If building fails, each folder is tried separately, and the report lists the folders that fail.
    """
    try:
        return build(found, claims=claims), found
    except Exception:
        kept = _each_alone(found)
        if kept.skipped == found.skipped:  # no single folder causes the failure
            raise
        return build(kept, claims=claims), kept


def _each_alone(found: Gathered) -> Gathered:
    """Drop the folders for which no report can be built."""
    skipped = list(found.skipped)

    def shown(name: str, alone: Gathered) -> bool:
        try:
            build(alone)
        except Exception as error:
            skipped.append(Skipped(name, cannot("shown", error)))
            return False
        return True

    kept = Gathered(
        tuple(run for run in found.runs if shown(run.folder, Gathered(runs=(run,)))),
        tuple(sweep for sweep in found.sweeps if shown(sweep.path.name, Gathered(sweeps=(sweep,)))),
        tuple(each for each in found.profiles if shown(each[0], Gathered(profiles=(each,)))),
        tuple(skipped),
        tuple(each for each in found.imports if shown(each.path.name, Gathered(imports=(each,)))),
    )
    if not (kept.runs or kept.sweeps or kept.profiles or kept.imports):
        raise UsageError(f"cannot write a report: {'; '.join(f'{each.folder}: {each.why}' for each in skipped)}")
    return kept


def build(found: Gathered, *, claims: bool = False) -> Document:
    """Build the whole report: overview, tasks with their runs, sweeps, profiles, environments, definitions."""
    races = races_of(found)
    short = [in_short(found, races)] if pictured(found) else []
    sections = [*short, overview(found), *_tasks(found)]
    if found.sweeps or found.profiles:
        from specbench.report.page.sweeps import profile_section, sweep_section

        sweeps = [sweep_section(sweep.path.name, sweep) for sweep in found.sweeps]
        profiles = [profile_section(name, profile) for name, profile in found.profiles]
        sections += [Section("sweeps", "Sweeps", sections=sweeps)] if sweeps else []
        sections += [Section("profiles", "Profiles", sections=profiles)] if profiles else []
    if found.imports:
        imports = [import_section(each) for each in found.imports]
        sections.append(Section("imports", "Measured by other tools", sections=imports))
    if claims:
        from specbench.report.claims.catalog import published_claims as catalog
        from specbench.report.claims.section import claims_section

        sections.append(claims_section(found, catalog()))
    sections += [environment_section(found), words_section()]
    counts = {"run": len(found.runs), "sweep": len(found.sweeps), "profile": len(found.profiles)}
    counts["import"] = len(found.imports)
    under = ", ".join(f"{count} {name}{'s' if count != 1 else ''}" for name, count in counts.items() if count)
    return Document("specbench report", under, sections, list(races.values()))


def _tasks(found: Gathered) -> list[Section]:
    by_task: dict[str, list[Run]] = defaultdict(list)
    for run in found.runs:
        by_task[f"{run.config.task.name} v{run.config.task.version}"].append(run)
    return [
        Section(
            f"task-{at}",
            task,
            [headline(task, runs), *_sizes(at, task, runs), *_texts(at, task, runs)],
            [run_section(run) for run in runs],
        )
        for at, (task, runs) in enumerate(by_task.items(), 1)
    ]


def _sizes(number: int, task: str, runs: Sequence[Run]) -> list[Block]:
    """A chart over the models' sizes, if a method was measured on several."""
    sizes: dict[str, set[int]] = defaultdict(set)
    for run in runs:
        for row in candidates(run):
            sizes[row.method].add(run.config.model.parameters)
    if all(len(found) < 2 for found in sizes.values()):
        return []
    from specbench.report.charts import style
    from specbench.report.charts.over_axis import over_size

    says = "Speedup and tokens per forward over the models' parameters; the table has the figures."
    drawn = style.png(over_size(runs, caption=task))
    source = Source([run.id for run in runs], FORMULA)
    return [Figure(f"sizes-{number}", "Over the size of the model", drawn, says, source, wide=True)]


def _texts(number: int, task: str, runs: Sequence[Run]) -> list[Block]:
    """A chart of speed and text quality, if methods ran on several fine-tuned models."""
    from specbench.report.charts import style
    from specbench.report.charts.pareto import has_texts, speed_over_text

    if not has_texts(runs):
        return []
    says = "Speedup over the base's AR against agreement and log-likelihood; the table has the figures."
    drawn = style.png(speed_over_text(runs, caption=task))
    return [
        Figure(f"texts-{number}", "Speed and text", drawn, says, Source([run.id for run in runs], FORMULA), wide=True)
    ]


_SOURCE = "From run.json and summary.json in the run's folder."


def environment_section(found: Gathered) -> Section:
    """Machine, software, git commit and settings, a column per run."""
    blocks = [_facts(found), _versions(found)]
    return Section("environment", "Environment", [table for table in blocks if table.rows])


def _facts(found: Gathered) -> Table:
    facts = {run.id: _run_facts(run) for run in found.runs}
    for sweep in found.sweeps:
        first = next(iter(sweep.runs.values()))
        facts[sweep.path.name] = _machine(first.run) | {"data": _data(first.config.task)}
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
        "engine": engine_line(run.summary.engine) or f"attention: {config.attention}",
        "memory bandwidth": bandwidth_line(run.summary) or DASH,
        "disturbed": watched_line(run.summary) or DASH,
        "graphs, compile, linears": f"{config.graphs}, {'on' if config.compile else 'off'}, {config.linears}",
        "weights": f"{model.source}{f' @ {model.revision}' if model.revision else ''}, {model.fingerprint[:12]}",
        "task": f"{config.task.name} v{config.task.version}, prompts {config.task.prompts_sha256[:12]}",
        "data": _data(config.task),
        "sampling": f"T={how.temperature:g}, top-k {how.top_k}, top-p {how.top_p:g}, seed {how.seed}"
        f"{', ' if how.words else ''}{how.words}",
        "repeats, order seed": f"{config.repeats}, {config.order_seed}",
        "options": options or DASH,
        "digest": known_text(run.run, "digest") or DASH,
    }


def _data(task: TaskSpec) -> str:
    """The task's data files: shortened hashes of verified files, a warning for unverified data, hub commits."""
    lines = [f"{file.shown}, sha256 {file.sha256[:12]}" for file in task.data if file.verified]
    lines += [task.unverified] if task.unverified else []
    lines += [f"{file.shown} of the hub's commit {file.revision}" for file in task.data if file.revision]
    return "; ".join(lines) or DASH


def _machine(run: Mapping[str, Any]) -> dict[str, str]:
    def of(*names: str) -> str | None:
        return known_text(run, "environment", *names)

    kind, memory = of("device", "kind"), of("device", "memory_bytes")
    device = of("device", "name") or DASH
    device += f", {_gib(memory)}" if memory else ""
    cpu, cores, threads = of("cpu", "model"), of("cpu", "usable_cores"), of("cpu", "torch_threads")
    generation = of("cpu", "cpuid")
    dirty = of("git_dirty") == "True"
    return {
        "device": device,
        "driver, CUDA": ", ".join(part for part in (of("device", "driver"), of("device", "cuda")) if part)
        or ("no GPU" if kind == "cpu" else DASH),
        "CPU": f"{cpu or DASH}"
        + (f" ({generation})" if generation else "")
        + (f", {cores} cores" if cores else "")
        + (f", {threads} threads" if threads else ""),
        "memory": _gib(of("ram_bytes")),
        "load before": ", ".join(f"{float(load):.1f}" for load in _loads(run)) or DASH,
        "system": of("platform") or DASH,
        "started": known_text(run, "created_utc") or DASH,
        "specbench": f"{of('specbench') or DASH}" + (" with changes" if dirty else ""),
        "git commit": of("git_commit") or DASH,
        "Python": of("python") or DASH,
    }


def _loads(run: Mapping[str, Any]) -> list[float]:
    environment = run.get("environment")
    loads = environment.get("load_average") if isinstance(environment, dict) else None
    return [load for load in loads if isinstance(load, int | float)] if isinstance(loads, list) else []


def _gib(size: str | None) -> str:
    return f"{number / 2**30:.0f} GiB" if size and (number := parse_count(size)) is not None else DASH


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
    """A table with a row per fact and a column per run; facts that no run has are left out."""
    columns = [Column("fact", "", words=True), *(Column(run, run, words=True) for run in facts)]
    names = dict.fromkeys(fact for known_facts in facts.values() for fact in known_facts)
    body = [
        Row([Cell(fact), *(Cell(mine.get(fact, DASH)) for mine in facts.values())])
        for fact in names
        if any(mine.get(fact, DASH) != DASH for mine in facts.values())
    ]
    return Table(name, title, columns, body, Source(list(facts), _SOURCE))


_FORMULA = (
    "The row with the highest speedup over AR, by decode seconds per token. Simulated rows and lossy rows without "
    "accuracy are left out, and a disturbed run has no best row. The interval is the row's own, as in all tables; the "
    "verdict also allows for the choice among the rows. Below: the rows that multiple comparisons with the best do not "
    "rule out."
)


def overview(found: Gathered) -> Section:
    """Section with a row per run, and warnings about folders that could not be used."""
    blocks: list[Block] = []
    if found.skipped:
        blocks.append(Words([f"Not in this report: {each.folder}: {each.why}" for each in found.skipped], "warning"))
    first = {run.id: best(run) for run in found.runs}
    if found.runs:
        blocks.append(_table(found, first))
    blocks += pooled_blocks(found.runs)
    if lines := [f"{run.id}: {line}" for run in found.runs if (line := tied_with_best(run, first[run.id]))]:
        blocks.append(Words(lines, "notes"))
    return Section("overview", "At a glance", blocks)


def _table(found: Gathered, first: dict[str, MethodSummary | None]) -> Table:
    columns = [
        Column("run", "run", words=True), Column("task", "task", words=True), Column("model", "model", words=True),
        Column("device", "device", words=True), PROMPTS,
        Column("best", "highest speedup", words=True), TPF,
        SPEEDUP, VERDICT,
    ]  # fmt: skip
    body = []
    for run in found.runs:
        config, row = run.config, first[run.id]
        device = device_name(run.run)
        head = [
            Cell(run.id, under="" if run.complete else "not complete"),
            Cell(f"{config.task.name} v{config.task.version}"),
            Cell(config.model.name, under=config.model.dtype),
            Cell(device, under=f"concurrency {config.concurrency}"),
            cell.count(config.task.prompts),
        ]
        if run.summary.unsure:
            figures = [*[NOTHING] * 3, Cell("unsure", under="disturbed run", tone="faint")]
        elif row is None or config.load:
            figures = [NOTHING] * 4
        else:
            which = Cell(row.method, under=settings(config.methods)[row.method])
            figures = [which, cell.figure(row.tokens_per_forward, 2), cell.ratio(row.speedup), _verdict(row)]
        body.append(Row([*head, *figures], run.id, row.method if row else ""))
    return Table("overview", "", columns, body, Source([run.id for run in found.runs], _FORMULA))


def _verdict(row: MethodSummary) -> Cell:
    """The verdict on a row; without the colour for good news if repetitive answers cause the speedup."""
    found, made_by_loops = cell.verdict(row.speedup), repetition_note(row).strip(" ()")
    return replace(found, under=made_by_loops, tone="") if made_by_loops else found


@cache
def vocabulary() -> dict[str, Any]:
    """``clock`` and the ``term`` list of ``words.toml``."""
    return toml.read(Path(__file__).with_name("words.toml"), "install specbench-llm again")


def words_section() -> Section:
    """Section with the definitions of the report's words."""
    found = vocabulary()
    terms = Terms({term["word"]: term["means"] for term in found["term"]})
    return Section("words", "What the words mean", [Words([found["clock"]]), terms])
