"""Grade the answers of a run folder: read ``run.json`` and ``requests.jsonl``, write ``verdicts.jsonl``."""

from __future__ import annotations

import json
import os
import queue
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specbench.common import (
    EnvironmentRefused,
    UsageError,
    damaged,
    json_object,
    parse_options,
    plugins,
    read_json_object,
    registry,
    validate,
)
from specbench.evals import sessions
from specbench.evals.data import recording_files
from specbench.evals.grading.interrupts import Interrupts
from specbench.evals.sandbox.sandbox import stop_all
from specbench.evals.task import Task, Verdict
from specbench.results import VERDICTS, RunFolder, TaskData, answer_hash

_LOOK_S = 0.1  # between checks for Ctrl-C

Answer = tuple[str, str]  # prompt id, text


def score_run(
    folder: Path,
    data_dir: Path | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Score every finished request of a run and write ``verdicts.jsonl`` in place of an older one.

    One line per request, in the order of ``requests.jsonl``: {"request": its key, "answer": hash of its text, "passed",
    "reason", "detail", "also": further metrics, "extracted": the rule that found the answer, "scorer": {"task",
    "task_version", "versions", "isolation"}}. Requests with the same prompt and text share one verdict.

    Args:
        progress: called with (distinct answers scored, distinct answers), starting at 0.
    """
    name, raw, asked_of = _task_of(folder)
    card = registry.task(name)
    if not card.info["metric"]:
        raise UsageError(
            f"cannot score {folder}: task '{name}' has no right answers; use --judge for tasks with a judge"
        )
    module = card.load()
    with plugins.plugin_call(card.who):
        asked = parse_options(module.Options, raw, name)
        with recording_files() as files:
            task: Task = module.Task(asked, data_dir)
        versions, isolation = dict(task.versions), list(task.isolation)
        if not all(isinstance(each, str) for each in (*versions, *versions.values(), *isolation)):
            raise plugins.Refused("its versions and isolation must be texts")
    _check_same(asked_of, files)
    requests = [_fields(row, folder, number) for number, row in enumerate(RunFolder.load(folder).lines(), 1)]
    if isinstance(asked, sessions.Options) and asked.chain > 1:
        requests = [(key, sessions.problem(prompt_id, turn), text, turn) for key, prompt_id, text, turn in requests]
    scorer = {"task": name, "task_version": card.info["version"], "versions": versions, "isolation": isolation}

    answers = list(dict.fromkeys((prompt_id, text) for _, prompt_id, text, _ in requests))
    with plugins.plugin_call(card.who):
        verdicts = _verdicts(task, answers, workers, progress)
    lines = [
        json.dumps({"request": key, "answer": answer_hash(text), **asdict(verdicts[prompt_id, text]), "scorer": scorer})
        for key, prompt_id, text, _ in requests
    ]
    return _write(folder / VERDICTS, "".join(f"{line}\n" for line in lines))


def _verdicts(
    task: Task, answers: Sequence[Answer], workers: int | None, progress: Callable[[int, int], None]
) -> dict[Answer, Verdict]:
    """The verdict on each answer. After an error or Ctrl-C, running programs are killed, not awaited."""
    verdicts: dict[Answer, Verdict] = {}
    finished: queue.SimpleQueue[Future[Verdict]] = queue.SimpleQueue()
    with Interrupts() as interrupts:
        progress(0, len(answers))
        pool = ThreadPoolExecutor(workers or os.cpu_count())  # each thread only waits for its sandbox process
        futures: dict[Future[Verdict], Answer] = {}
        try:
            for answer in answers:
                interrupts.look()
                future = pool.submit(task.score, *answer)
                futures[future] = answer
                future.add_done_callback(finished.put)
            while len(verdicts) < len(answers):
                interrupts.look()
                try:  # with a limit: a signal just before an unlimited wait would be seen only after it
                    future = finished.get(timeout=_LOOK_S)
                except queue.Empty:
                    continue
                verdicts[futures[future]] = _verdict(future.result())
                progress(len(verdicts), len(answers))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            # Until they are done, not only while they are running: a thread may have taken a job and not started it.
            while not all(future.done() for future in futures):
                stop_all()  # repeatedly: a thread may be about to start a program
                time.sleep(0.02)
            raise
        finally:
            pool.shutdown()
    return verdicts


def _verdict(found: Any) -> Verdict:
    """Check that what a task returned for an answer is a verdict."""
    if not isinstance(found, Verdict):
        raise plugins.Refused(f"score returned {type(found).__name__:.40}, not a Verdict")
    marks = [found.passed, *found.also.values()]
    words = [found.reason, found.detail, found.extracted, *found.also]
    if not all(type(mark) is bool for mark in marks) or not all(isinstance(word, str) for word in words):
        raise plugins.Refused("its verdict must consist of True, False and texts")
    return found


def _check_same(asked_of: Sequence[TaskData], files: Mapping[str, TaskData]) -> None:
    """Refuse other data than the run was made with, for tasks that accept any file; the file's name may differ."""
    hashes = {file.sha256 for file in files.values()}
    strange = [file for file in files.values() if file.sha256 not in {asked.sha256 for asked in asked_of}]
    for asked in asked_of:
        if asked.verified or asked.sha256 in hashes:
            continue
        if found := files.get(asked.name) or next((file for file in strange if not file.verified), None):
            raise UsageError(
                f"the run's answers are to questions of {asked.description}, and here is {found.description}; name the "
                "folder of "
                "that file with --data-dir"
            )


def _task_of(folder: Path) -> tuple[str, dict[str, Any], list[TaskData]]:
    """(name, options, data files) of the run's task."""
    path, todo = folder / "run.json", "name a folder that specbench run wrote"
    if not path.exists():
        raise UsageError(f"{folder} is not a run folder (it has no run.json); {todo}")
    task = json_object(read_json_object(path, todo).get("task"), f"{path} field 'task'", todo)
    name, raw = task.get("name"), task.get("options")
    if not isinstance(name, str) or not isinstance(raw, dict):
        raise damaged(path, "it does not name the task", todo)
    data = task.get("data", [])
    if not isinstance(data, list):
        raise damaged(path, "its task's data must be a list", todo)
    return name, raw, [validate(TaskData, file, f"{path} field 'task.data'", todo) for file in data]


def _fields(row: dict[str, Any], folder: Path, number: int) -> tuple[str, str, str, int]:
    """(request id, prompt id, text, turn) of a line of requests.jsonl."""
    for name in ("request_id", "prompt_id", "text"):
        if not isinstance(row.get(name), str):
            raise UsageError(f"{folder / 'requests.jsonl'}: line {number} has no text field '{name}'")
    turn = row.get("turn", 1)
    if not isinstance(turn, int):
        raise UsageError(f"{folder / 'requests.jsonl'}: line {number} has no number in field 'turn'")
    return row["request_id"], row["prompt_id"], row["text"], turn


def _write(path: Path, content: str) -> Path:
    draft: str | None = None
    try:
        # A name of its own: two scorers of one run must not write into the same temporary file.
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            draft = file.name
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(draft, 0o644)  # temporary files are private; results are not
        os.replace(draft, path)
    except BaseException as error:
        if draft is not None:
            Path(draft).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise EnvironmentRefused(
                f"cannot write {path} ({error.strerror}); free space or fix the cause, then score again"
            ) from None
        raise
    return path
