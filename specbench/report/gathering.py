"""Gather the runs, sweeps and profiles for a report; damaged folders are listed as skipped.

Records are read one at a time and kept as counts, so that long runs need little memory.
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
    PAPERS,
    Cost,
    Counted,
    Ratio,
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
    ImportedRun,
    MethodSummary,
    RequestRecord,
    RunConfig,
    RunFolder,
    RunSummary,
    is_campaign,
    is_import,
    is_sweep,
    judge_scores,
    read_import,
    read_judgments,
)
from specbench.sweeps import ReadSweep, is_trainings, read_sweep

#: A folder with one of these files is a run, complete or not.
_OF_A_RUN = ("run.json", "requests.jsonl", "summary.json", "DONE")

#: Start time at the beginning of a folder's name.
_TIME = re.compile(r"\d{8}T\d{6}Z(?=-)")

_LONGEST_ID = 80  # characters; charts and races have it in their file names

_LOOKED_AT = 4  # prompts, one of which is shown token by token
_LONG = 24  # tokens; shorter answers show little of a method


@dataclass
class MethodCounts:
    """One method's records as counts; ``accepted_lengths`` maps kept tokens to the number of target forwards."""

    requests: int = 0
    tokens: int = 0
    forwards: int = 0
    accepted_lengths: Counter[int] = field(default_factory=Counter)
    costs: dict[str, Cost] = field(default_factory=dict)
    counted: list[Counted] = field(default_factory=list)

    def add(self, record: RequestRecord) -> None:
        """Count a finished request."""
        self.requests += 1
        self.tokens += record.output_tokens
        self.forwards += record.target_forwards
        if record.forwards_distinct:
            self.accepted_lengths.update(record.accepted_lengths)
        self.costs[record.prompt_id] = self.costs.get(record.prompt_id, Cost()).with_(record)
        self.counted.append(Counted.of(record))

    def tokens_per_forward(self, tpf_is: str, group: str = "") -> Ratio | None:
        """Tokens per forward by a definition of :data:`PAPERS`; of one group of categories, or of all requests."""
        return PAPERS[tpf_is].of(one for one in self.counted if not group or one.group == group)


@dataclass(frozen=True)
class Run:
    """A run whose files agree with each other.

    Attributes:
        id: start time and the beginning of the configuration's hash.
        projections: content of each ``projection-GPU.json``.
        pictured: method label (without AR) -> steps of the answer to ``pictured_prompt``.
        answers: method label -> record of that answer.
    """

    id: str
    path: Path
    run: Mapping[str, Any]
    config: RunConfig
    summary: RunSummary
    tallies: Mapping[str, MethodCounts]
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
        """The figures of the run's methods, AR first."""
        return self.summary.rows

    @property
    def complete(self) -> bool:
        """Whether all requests of the configuration are finished."""
        return self.summary.complete


@dataclass(frozen=True)
class Skipped:
    """A folder that is not in the report, and why; file names in ``why`` are relative to it."""

    folder: str
    why: str


def cannot(what: str, error: Exception) -> str:
    """The reason for skipping a folder whose files are well formed but have unexpected content."""
    return f"it cannot be {what} ({type(error).__name__}: {one_line(str(error), 120) or 'no message'})"


@dataclass(frozen=True)
class Gathered:
    """The content of a report, sorted by folder name."""

    runs: Sequence[Run] = ()
    sweeps: Sequence[ReadSweep] = ()
    profiles: Sequence[tuple[str, Profile]] = ()
    skipped: Sequence[Skipped] = ()
    imports: Sequence[ImportedRun] = ()


def gather(paths: Iterable[Path]) -> Gathered:
    """Read every run, sweep and profile in these folders and their subfolders.

    Folders that are damaged, truncated, newer than this version or mixed from several runs are skipped and listed. A
    run that is found twice counts once.
    """
    found = {place.resolve(): place for path in paths for place in _places(path)}
    runs: dict[str, Run] = {}
    sweeps: list[ReadSweep] = []
    profiles: list[tuple[str, Profile]] = []
    skipped: list[Skipped] = []
    imports: list[ImportedRun] = []
    for place in sorted(found, key=lambda path: (path.name, str(path))):
        try:
            if is_sweep(place):  # checked first, because a sweep may hold the profile used for its predictions
                sweeps.append(read_sweep(place))
            elif is_profile(place):
                profiles.append((place.name, read_profile(place)))
            elif is_import(place):
                imports.append(read_import(place))
            else:
                run = read_whole_run(place)
                if run.id in runs:
                    raise UsageError(f"the same run as {runs[run.id].folder}")
                runs[run.id] = run
        except (UsageError, OSError) as error:
            # The report may be published, so it does not name the folder's location.
            skipped.append(Skipped(place.name, str(error).replace(f"{place}/", "").replace(str(place), "it")))
        except Exception as error:  # well-formed files with unexpected content
            skipped.append(Skipped(place.name, cannot("read", error)))
    if not (runs or sweeps or profiles or imports):
        raise UsageError(f"nothing to report: {'; '.join(f'{each.folder}: {each.why}' for each in skipped)}")
    return Gathered(tuple(runs.values()), tuple(sweeps), tuple(profiles), tuple(skipped), tuple(imports))


def _places(path: Path) -> list[Path]:
    """The folders of runs, sweeps and profiles at or below a path."""
    if not os.path.isdir(path):  # unlike Path.is_dir, it never raises
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
        # Hidden folders are unfinished drafts, and links may form cycles.
        if inner.is_dir() and not inner.is_symlink() and not inner.name.startswith("."):
            yield from _below(inner)


def newest(folders: Iterable[Path]) -> Path | None:
    """The run, sweep, campaign or profile below these folders that started last, finished or not, or None."""
    found = [place for folder in folders if folder.is_dir() for place in _all_below(folder)]
    last = max(found, key=lambda place: (_begun(place), place.name), default=None)
    # A sweep of a campaign is two folders below it.
    return last.parents[1] if last is not None and is_campaign(last.absolute().parents[1]) else last


def newest_in(folder: Path) -> Path | None:
    """The folder itself if a command wrote it, or the newest such folder directly in it; None if there is none."""
    if _is_result(folder) or is_trainings(folder) or is_campaign(folder):
        return folder
    with contextlib.suppress(OSError):
        inner = [each for each in folder.iterdir() if not each.name.startswith(".")]
        inner = [each for each in inner if _is_result(each) or is_campaign(each)]
        return max(inner, key=lambda place: (_begun(place), place.name), default=None)
    return None


def _is_result(path: Path) -> bool:
    return is_sweep(path) or is_profile(path) or is_import(path) or any((path / name).exists() for name in _OF_A_RUN)


def _begun(place: Path) -> str:
    """Start time from a folder's name, or from a sweep's newest run; "" if unknown."""
    if named := _TIME.match(place.name):
        return named[0]
    times = []
    inner = place.glob("*/*/c*/run.json") if is_campaign(place) else ()
    for file in (*place.glob("run.json"), *place.glob("c*/run.json"), *inner):
        with contextlib.suppress(UsageError):
            begun = RunFolder.load(file.parent).begun
            times.append(f"{begun.astimezone(timezone.utc):%Y%m%dT%H%M%SZ}")
    return max(times, default="")


def read_whole_run(path: Path) -> Run:
    """Read a run, with its records as counts, and check that its files belong together."""
    folder = RunFolder.load(path)
    config = read_config(folder)
    tallies = {spec.label: MethodCounts() for spec in config.methods}
    summary = read_summary(folder, config) if folder.finished else None
    kept: list[RequestRecord] = []
    traced = _Traced()
    for record in whole_records(folder, config):
        tallies[record.method].add(record)
        traced.add(record)
        if summary is None:  # figures need neither traces nor texts
            kept.append(record.untraced().model_copy(update={"text": ""}))
    if len({prompt for tally in tallies.values() for prompt in tally.costs}) > config.task.prompts:
        raise UsageError(f"requests.jsonl holds more prompts than the {config.task.prompts} of run.json")
    if summary is None:
        summary = summary_so_far(folder, config, kept)
    if [row.method for row in summary.rows] != list(tallies):
        raise UsageError("summary.json has other methods than run.json, or in another order")
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
    """Collect the answers that may be shown token by token: the first answers to the first prompts."""

    def __init__(self) -> None:
        self._answers: dict[str, dict[str, RequestRecord]] = {}  # prompt -> method -> record

    def add(self, record: RequestRecord) -> None:
        """Keep a request if it is one of these answers."""
        if record.tokens is None or (record.repeat, record.turn) != (0, 1):
            return
        if record.prompt_id in self._answers or len(self._answers) < _LOOKED_AT:
            self._answers.setdefault(record.prompt_id, {})[record.method] = record

    def pictured(self, labels: Sequence[str]) -> tuple[str, dict[str, RequestRecord]]:
        """The prompt that most methods answered (with long answers if possible), and each method's answer."""

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
        raise UsageError("a projection belongs to another run; run with --project again")
    return found


def _id(folder: RunFolder) -> str:
    """A short unique id that is safe as a file name; folder names may be long and are chosen by users."""
    started = "".join(character for character in str(folder.run.get("created_utc", ""))[:19] if character.isalnum())
    digest = str(folder.run.get("digest", ""))[:8]
    named = f"{started}Z-{digest}" if started and digest else folder.path.name
    safe = safe_name(named)[:_LONGEST_ID]
    return safe if safe == named else f"{safe}-{hashlib.sha256(os.fsencode(named)).hexdigest()[:8]}"
