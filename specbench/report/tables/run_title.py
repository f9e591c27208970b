"""Title of a run (task, model, device, conditions), the same over every table, page and chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from specbench.analysis import disturbance_line, layers_line
from specbench.report.document import Title
from specbench.report.tables.latency import load_words
from specbench.results import SimulatedAcceptance, TaskSpec, bandwidth_line, device_name

if TYPE_CHECKING:
    from specbench.results import RunConfig, RunSummary


class Measured(Protocol):
    """The parts of a run that tables need; the run is read from its folder or just finished."""

    @property
    def run(self) -> Mapping[str, Any]: ...
    @property
    def config(self) -> RunConfig: ...
    @property
    def summary(self) -> RunSummary: ...
    @property
    def complete(self) -> bool: ...


@dataclass(frozen=True)
class RunTitle:
    """Task, model, device and conditions; ``about_machine`` and ``warnings`` are lines of their own in a terminal."""

    task: str
    model: str
    device: str
    sampling: str = ""
    prompts: str = ""
    sampled: bool = False
    asked: Sequence[str] = ()
    machine: Sequence[str] = ()
    warnings: Sequence[str] = ()

    @property
    def line(self) -> str:
        """Everything except the task, in one line."""
        parts = [self.model, self.device, self.sampling, self.prompts, *self.asked, *self.machine, *self.warnings]
        return " · ".join(part for part in parts if part)

    @property
    def caption(self) -> str:
        """Model, task and device, for a chart."""
        return f"{self.model} · {self.task.partition(' v')[0]} · {self.device}"

    def over_tables(self, *warnings: str) -> Title:
        """The title above a terminal's tables."""
        asked = [self.sampling, "" if self.sampled else self.prompts, *self.asked]
        lines = [" · ".join(part for part in asked if part), self.prompts if self.sampled else "", *self.machine]
        warned = [f"!{line}" for line in (*self.warnings, *warnings)]
        return Title(self.task, f"{self.model} · {self.device}", [line for line in (*lines, *warned) if line])


def run_title(found: Measured) -> RunTitle:
    config, summary = found.config, found.summary
    task, heat = config.task, config.sampling.temperature
    asked = [config.sampling.words] if config.sampling.words else []
    asked += [f"at most {config.max_new_tokens} new tokens", f"concurrency {config.concurrency}"]
    asked += [load_words(config.load)] if config.load else []
    asked += ["traced, which slows its steps"] if config.trace else []
    asked += [] if found.complete else ["NOT COMPLETE"]
    machine = [line for line in (layers_line(summary.engine), bandwidth_line(summary)) if line]
    return RunTitle(
        task=f"{task.name} v{task.version}",
        model=model_name(config.model.model_dump()),
        device=device_name(found.run),
        sampling="greedy" if heat == 0 else f"T={heat:g} seed {config.sampling.seed}",
        prompts=task.description,
        sampled=task.taken is not None,
        asked=asked,
        machine=machine,
        warnings=[line] if (line := disturbance_line(summary)) else [],
    )


def sweep_title(run: Mapping[str, Any]) -> RunTitle:
    """The title of a sweep, from one of its runs: the settings that all configurations share."""
    task = run["task"]
    known = TaskSpec.model_validate(task) if task.get("taken") or task.get("data") else None
    return RunTitle(
        task=f"{task['name']} v{task['version']}",
        model=model_name(run["model"]),
        device=device_name(run),
        prompts=known.description if known and known.taken else "",
        sampled=True,
        machine=[known.unverified] if known and known.unverified else [],
    )


def model_name(model: Mapping[str, Any]) -> str:
    """Name of a model with its precision, and whether its weights are dummies."""
    quantised = f", {model['quantised']}" if model.get("quantised") else ""
    return f"{model['name']} {model['dtype']}{quantised}{' (dummy weights)' if model.get('dummy') else ''}"


def simulated_title(simulated: Mapping[str, Mapping[str, float]]) -> str:
    """The warning above the figures of a run with simulated acceptance."""
    asked = {label: str(SimulatedAcceptance.model_validate(figures)) for label, figures in simulated.items()}
    of = set(asked.values())
    figures = of.pop() if len(of) == 1 else ", ".join(f"{label} {figures}" for label, figures in asked.items())
    return f"simulated acceptance {figures}: drafts are accepted at random, so the text is meaningless"
