"""A report from what was gathered."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from specbench.reporting.report.document import Document, Section
from specbench.reporting.report.environment import environment_section
from specbench.reporting.report.headline import headline
from specbench.reporting.report.overview import overview
from specbench.reporting.report.run import run_section
from specbench.reporting.report.words import words_section

if TYPE_CHECKING:
    from specbench.gathering import Gathered, Run


def build(found: Gathered, *, claims: bool = False) -> Document:
    """The whole report: an overview, each task with its runs, sweeps, profiles, environments, definitions.

    Args:
        found: what it is of.
        claims: with the published rows of the methods that were measured.
    """
    sections = [overview(found), *_tasks(found)]
    if found.sweeps or found.profiles:
        from specbench.reporting.report.sweeps import profile_section, sweep_section

        sweeps = [sweep_section(sweep.path.name, sweep) for sweep in found.sweeps]
        profiles = [profile_section(name, profile) for name, profile in found.profiles]
        sections += [Section("sweeps", "Sweeps", sections=sweeps)] if sweeps else []
        sections += [Section("profiles", "Profiles", sections=profiles)] if profiles else []
    if claims:
        from specbench.claims import claims as catalog
        from specbench.reporting.report.claims import claims_section

        sections.append(claims_section(found, catalog()))
    sections += [environment_section(found), words_section()]
    counts = {"run": len(found.runs), "sweep": len(found.sweeps), "profile": len(found.profiles)}
    under = ", ".join(f"{count} {name}{'s' if count != 1 else ''}" for name, count in counts.items() if count)
    return Document("specbench report", under, sections)


def _tasks(found: Gathered) -> list[Section]:
    by_task: dict[str, list[Run]] = defaultdict(list)
    for run in found.runs:
        by_task[f"{run.config.task.name} v{run.config.task.version}"].append(run)
    return [
        Section(f"task-{at}", task, [headline(task, runs)], [run_section(run) for run in runs])
        for at, (task, runs) in enumerate(by_task.items(), 1)
    ]
