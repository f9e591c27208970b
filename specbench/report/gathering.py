"""What a report is made of: the runs, sweeps and profiles under some folders, each read whole or left out by name.

Records are read one after the other and kept as counts, so that a run of any length takes little memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timezone
from pathlib import Path
from typing import Any

from specbench.analysis import (
    Cost,
    Ratio,
    paired_ratio,
    read_config,
    read_projections,
    read_summary,
    summary_so_far,
    whole_records,
)
from specbench.common import UsageError, one_line, safe_name
from specbench.hardware import Profile, is_profile, read_profile
from specbench.report.answers.generation import Step, steps
from specbench.results import (
    BASELINE,
    MethodSummary,
    RequestRecord,
    RunConfig,
    RunFolder,
    RunSummary,
    is_sweep,
    judge_scores,
    read_judgments,
)
from specbench.sweeps import ReadSweep, is_trainings, read_sweep

#: Files that say a folder is, or was, a run.
_OF_A_RUN = ("run.json", "requests.jsonl", "summary.json", "DONE")

#: How names begin that say when.
_TIME = re.compile(r"\d{8}T\d{6}Z(?=-)")

_LONGEST_ID = 80  # characters; pictures and races are named by it

_LOOKED_AT = 4  # prompts, of which one is pictured
_LONG = 24  # tokens: a shorter answer shows little of a method

_DRAWS = 2_000  # of the bootstrap of tokens per forward: a hundred thousand prompts in a second


@dataclass
class Tally:
    """One method's records as counts; ``accepted_lengths`` counts the target forwards that kept so many tokens."""

    requests: int = 0
    tokens: int = 0
    forwards: int = 0
    accepted_lengths: Counter[int] = field(default_factory=Counter)
    costs: dict[str, Cost] = field(default_factory=dict)

    def add(self, record: RequestRecord) -> None:
        """Takes a finished request."""
        self.requests += 1
        self.tokens += record.output_tokens
        self.forwards += record.target_forwards
        if record.forwards_told_apart:
            self.accepted_lengths.update(record.accepted_lengths)
        self.costs[record.prompt_id] = self.costs.get(record.prompt_id, Cost()).with_(record)

    def tokens_per_forward(self) -> Ratio:
        """Tokens per forward with a 95% bootstrap over prompts."""
        decoded = [float(cost.decoded) for cost in self.costs.values()]
        forwards = [float(cost.forwards) for cost in self.costs.values()]
        ones = [1.0] * len(decoded)
        return paired_ratio((ones, ones), (forwards, decoded), seed=0, draws=_DRAWS)


@dataclass(frozen=True)
class Run:
    """A run of which every file agrees with the others.

    Attributes:
        id: its start and the beginning of its configuration's hash.
        projections: content of each ``projection-GPU.json``.
        pictured: by method label but AR's, step by step, the answer to ``pictured_prompt``.
        answers: the records of these answers.
    """

    id: str
    path: Path
    run: Mapping[str, Any]
    config: RunConfig
    summary: RunSummary
    tallies: Mapping[str, Tally]
    judged: Sequence[Mapping[str, Any]]
    projections: Sequence[Mapping[str, Any]]
    pictured: Mapping[str, Sequence[Step]] = field(default_factory=dict)
    pictured_prompt: str = ""
    answers: Mapping[str, RequestRecord] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def rows(self) -> Sequence[MethodSummary]:
        """The figures of its methods, AR first."""
        return self.summary.rows

    @property
    def complete(self) -> bool:
        """Whether every request is there."""
        return self.summary.complete


@dataclass(frozen=True)
class Skipped:
    """A folder that is not in the report, and why; ``why`` names files by their place in it."""

    folder: str
    why: str


def cannot(what: str, error: Exception) -> str:
    """Why a folder is left out whose files are well formed and yet not what they should be."""
    return f"it cannot be {what} ({type(error).__name__}: {one_line(str(error), 120) or 'no message'})"


@dataclass(frozen=True)
class Gathered:
    """Everything that a report is made of, in the order of the folders' names."""

    runs: Sequence[Run] = ()
    sweeps: Sequence[ReadSweep] = ()
    profiles: Sequence[tuple[str, Profile]] = ()
    skipped: Sequence[Skipped] = ()


def gather(paths: Iterable[Path]) -> Gathered:
    """Reads every run, sweep and profile in these folders, or in folders inside of them.

    What is damaged, cut off, newer than this version or put together from several runs is not used at all, but named.
    A run that is found twice counts once.
    """
    found = {place.resolve(): place for path in paths for place in _places(path)}
    runs: dict[str, Run] = {}
    sweeps: list[ReadSweep] = []
    profiles: list[tuple[str, Profile]] = []
    skipped: list[Skipped] = []
    for place in sorted(found, key=lambda path: (path.name, str(path))):
        try:
            if is_sweep(place):  # first: a sweep may hold the profile that it was predicted with
                sweeps.append(read_sweep(place))
            elif is_profile(place):
                profiles.append((place.name, read_profile(place)))
            else:
                run = read_whole_run(place)
                if run.id in runs:
                    raise UsageError(f"the same run as {runs[run.id].folder}")
                runs[run.id] = run
        except (UsageError, OSError) as error:
            # The report may be shown to anybody, and does not say where the folder lay.
            skipped.append(Skipped(place.name, str(error).replace(f"{place}/", "").replace(str(place), "it")))
        except Exception as error:  # a file that is well formed and still no run: the others are shown without it
            skipped.append(Skipped(place.name, cannot("read", error)))
    if not (runs or sweeps or profiles):
        raise UsageError(f"nothing to report: {'; '.join(f'{each.folder}: {each.why}' for each in skipped)}")
    return Gathered(tuple(runs.values()), tuple(sweeps), tuple(profiles), tuple(skipped))


def _places(path: Path) -> list[Path]:
    """The folders of runs, sweeps and profiles at a path or below it."""
    if not os.path.isdir(path):  # unlike Path's, of any path it says only yes or no
        raise UsageError(f"{path} is not a folder; name folders that specbench run, sweep or profile wrote")
    found = _all_below(path)
    if not found:
        raise UsageError(f"{path} holds no run, sweep or profile; name folders that specbench run or sweep wrote")
    return found


def _all_below(path: Path) -> list[Path]:
    try:
        return list(_below(path))
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read ({error.strerror}); change that, or name others") from error


def _below(path: Path) -> Iterator[Path]:
    if _is_result(path):
        yield path
        return
    for inner in sorted(path.iterdir()):
        # Hidden folders are drafts of folders to be; links may lead in circles.
        if inner.is_dir() and not inner.is_symlink() and not inner.name.startswith("."):
            yield from _below(inner)


def newest(folders: Iterable[Path]) -> Path | None:
    """The run, sweep or profile below these folders that was begun last, finished or not; None where there is none."""
    found = [place for folder in folders if folder.is_dir() for place in _all_below(folder)]
    return max(found, key=lambda place: (_begun(place), place.name), default=None)


def newest_in(folder: Path) -> Path | None:
    """The folder itself if it is a run, sweep or profile; else the newest directly in it; None where there is none."""
    if _is_result(folder) or is_trainings(folder):
        return folder
    with contextlib.suppress(OSError):
        inner = [each for each in folder.iterdir() if not each.name.startswith(".") and _is_result(each)]
        return max(inner, key=lambda place: (_begun(place), place.name), default=None)
    return None


def _is_result(path: Path) -> bool:
    return is_sweep(path) or is_profile(path) or any((path / name).exists() for name in _OF_A_RUN)


def _begun(place: Path) -> str:
    """When, as a folder's name says it; of a sweep, whose name has no time, as its newest run does. "" is unknown."""
    if named := _TIME.match(place.name):
        return named[0]
    times = []
    for file in (*place.glob("run.json"), *place.glob("c*/run.json")):
        with contextlib.suppress(UsageError):
            begun = RunFolder.load(file.parent).begun
            times.append(f"{begun.astimezone(timezone.utc):%Y%m%dT%H%M%SZ}")
    return max(times, default="")


def read_whole_run(path: Path) -> Run:
    """A run, its records as counts, after checking that its files belong together."""
    folder = RunFolder.load(path)
    config = read_config(folder)
    tallies = {spec.label: Tally() for spec in config.methods}
    summary = read_summary(folder, config) if folder.finished else None
    kept: list[RequestRecord] = []
    traced = _Traced()
    for record in whole_records(folder, config):
        tallies[record.method].add(record)
        traced.add(record)
        if summary is None:  # for its figures, which say nothing of how its tokens came
            kept.append(record.untraced().model_copy(update={"text": ""}))
    if len({prompt for tally in tallies.values() for prompt in tally.costs}) > config.task.prompts:
        raise UsageError(f"requests.jsonl holds more prompts than the {config.task.prompts} of run.json")
    if summary is None:
        summary = summary_so_far(folder, config, kept)
    if [row.method for row in summary.rows] != list(tallies):
        raise UsageError("summary.json has its methods in another order than run.json")
    judged = judge_scores(read_judgments(path), list(tallies))
    prompt, answers = traced.pictured([label for label in tallies if label != BASELINE])
    return Run(
        id=_id(folder),
        path=path,
        run=folder.run,
        config=config,
        summary=summary.model_copy(update={"complete": folder.finished and summary.complete}),
        tallies=tallies,
        judged=judged,
        projections=_whole_projections(folder, list(tallies)),
        pictured={label: steps(record) for label, record in answers.items()},
        pictured_prompt=prompt,
        answers=answers,
    )


class _Traced:
    """Of a run's answers those that a picture may be made of: the first ones to its first prompts."""

    def __init__(self) -> None:
        self._answers: dict[str, dict[str, RequestRecord]] = {}  # prompt -> method -> record

    def add(self, record: RequestRecord) -> None:
        """Takes a request, and keeps it if it is one of them."""
        if record.tokens is None or (record.repeat, record.turn) != (0, 1):
            return
        if record.prompt_id in self._answers or len(self._answers) < _LOOKED_AT:
            self._answers.setdefault(record.prompt_id, {})[record.method] = record

    def pictured(self, labels: Sequence[str]) -> tuple[str, dict[str, RequestRecord]]:
        """The prompt that most methods have answered, at length if there is one, and each answer."""

        def worth(prompt: str) -> tuple[int, bool]:
            answers = self._answers[prompt]
            return sum(label in answers for label in labels), all(r.output_tokens >= _LONG for r in answers.values())

        if not self._answers:
            return "", {}
        prompt = max(self._answers, key=worth)
        answers = self._answers[prompt]
        return prompt, {label: answers[label] for label in labels if label in answers}


def _whole_projections(folder: RunFolder, labels: Sequence[str]) -> list[dict[str, Any]]:
    found = read_projections(folder)
    if any({*content["rows"]} - {*labels} for content in found):
        raise UsageError("a projection is of another run; run with --project again")
    return found


def _id(folder: RunFolder) -> str:
    """Short, different for each run, and fit for a file's name; names of folders may be long and are people's own."""
    started = "".join(character for character in str(folder.run.get("created_utc", ""))[:19] if character.isalnum())
    digest = str(folder.run.get("digest", ""))[:8]
    named = f"{started}Z-{digest}" if started and digest else folder.path.name
    safe = safe_name(named)[:_LONGEST_ID]
    return safe if safe == named else f"{safe}-{hashlib.sha256(os.fsencode(named)).hexdigest()[:8]}"
