"""Reading runs that figures are to rest on: whole, and every file of them of the same run, or not at all. No torch."""

from __future__ import annotations

from pathlib import Path

from specbench.errors import UsageError
from specbench.reading import ReadRun, read_run
from specbench.storage import RunFolder


def read_whole(path: Path) -> ReadRun:
    """A finished run of which every file agrees with the others.

    Raises:
        UsageError: not a run folder, unfinished, damaged, cut off, of a newer version, or files of several runs; names
            the folder and says what to do.
    """
    folder = RunFolder.load(path)
    if not folder.finished:
        raise UsageError(f"{path} is not finished; repeat its command to go on")
    if not folder.summary():
        raise UsageError(f"{path} has no summary.json, or an empty one; restore it or repeat the run")
    read = read_run(path)
    try:
        _check(read)
    except UsageError as error:
        raise UsageError(f"{path} cannot be used: {error}; restore it or repeat the run") from error
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path}/summary.json is damaged ({type(error).__name__}: {error}); repeat the run") from error
    return read


def _check(read: ReadRun) -> None:
    if not read.summary["complete"]:
        raise UsageError("it does not hold all the requests of its configuration")
    prompts: dict[str, list[str]] = {spec.label: [] for spec in read.config.methods}
    for record in read.records:
        prompts[record.method].append(record.prompt_id)
    task = read.config.task
    expected = (task.requests or task.prompts) * read.config.repeats
    for label, asked in prompts.items():
        if len(asked) != expected or len({*asked}) != task.prompts:
            raise UsageError(f"requests.jsonl holds {len(asked)} requests of {label}, run.json says {expected}")
    if strange := read.verdicts.keys() - {record.key for record in read.records}:
        raise UsageError(f"verdicts.jsonl judges {min(strange)}, which requests.jsonl does not hold")
