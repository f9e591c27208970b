"""What a sweep and its workers exchange: tasks, results, and facts about workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specbench.results import Bandwidth, RequestRecord, RunConfig, StoredTimes, TaskSpec, Watch


@dataclass(frozen=True)
class Conditions:
    """Readings of the machine between the segments of one part of a sweep: memory and cores."""

    bandwidth: Bandwidth = field(default_factory=Bandwidth)
    watch: Watch = field(default_factory=Watch)


@dataclass(frozen=True)
class Task:
    """Some configurations on some prompts, decoded one right after the other by one worker.

    Attributes:
        repeat: the pass, shared by configurations and their AR.
        done: texts of existing answers by request key.
        asked: the prompts' record in the sweep's folder, which has the time that a chat template wrote into them.
        conditions: readings of the machine so far, to which the worker adds; None if other workers share the machine.
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
    """A configuration that a worker gave up because its method failed; ``why`` names method and call."""

    label: str
    why: str


#: Results of a task: requests as they end, failed configurations, and readings of the machine.
WorkerMessage = RequestRecord | Failed | Conditions


@dataclass(frozen=True)
class WorkerInfo:
    """What every worker of a sweep must agree on: the configuration, the machine, and the prompts in order of use.

    ``turns``: number of answers of each prompt; ``times``: times that one worker's automatic settings were chosen by.
    """

    config: RunConfig
    environment: Mapping[str, Any]
    tuning: tuple[str, ...]
    held_out: tuple[str, ...]
    turns: Mapping[str, int]
    times: Mapping[str, StoredTimes] = field(default_factory=dict, compare=False)
