"""The unit of a sweep's work, and what a worker says of it and of itself. No torch: these travel between processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specbench.results import Bandwidth, RequestRecord, RunConfig, StoredTimes, TaskSpec, Watch


@dataclass(frozen=True)
class Conditions:
    """What was found of the machine next to one part of a sweep, between its segments: memory and cores."""

    bandwidth: Bandwidth = field(default_factory=Bandwidth)
    watch: Watch = field(default_factory=Watch)


@dataclass(frozen=True)
class Task:
    """Some cells on some prompts, decoded one right after the other by one worker.

    Attributes:
        repeat: the pass: cells and the plain decoding beside them share it.
        done: texts of those answers that are there already, by request key.
        asked: the prompts' record in the sweep's folder, which has the time that a chat template wrote into them.
        conditions: what was found of the machine so far, which the worker adds to; None where other workers share it.
    """

    concurrency: int
    labels: tuple[str, ...]
    prompts: tuple[str, ...]
    repeat: int = 0
    segment: int = 0
    done: Mapping[str, str] = field(default_factory=dict)
    times: Mapping[str, StoredTimes] = field(default_factory=dict)
    asked: TaskSpec | None = None
    conditions: Conditions | None = None


@dataclass(frozen=True)
class Failed:
    """A cell that a worker decodes no further, because its method's code failed; ``why`` names method and call."""

    label: str
    why: str


#: What comes of a task: requests as they end, cells that fail, and what is found of the machine.
WorkerMessage = RequestRecord | Failed | Conditions


@dataclass(frozen=True)
class WorkerInfo:
    """What every worker of a sweep has to agree on: the configuration, the machine, and the prompts in order of use.

    ``turns`` are the answers that each prompt has; ``times`` are those that automatic settings of one worker were
    chosen by.
    """

    config: RunConfig
    environment: Mapping[str, Any]
    tuning: tuple[str, ...]
    held_out: tuple[str, ...]
    turns: Mapping[str, int]
    times: Mapping[str, StoredTimes] = field(default_factory=dict, compare=False)
