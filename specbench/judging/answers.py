"""The answers of a run, each with the prompt that puts it before a judge. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench import options, registry
from specbench.errors import UsageError
from specbench.judging.prompts import JudgePrompt, JudgePrompts
from specbench.records import BASELINE, RequestRecord, TaskSpec, request_key
from specbench.task import JudgedTask, Question


@dataclass(frozen=True)
class Answer:
    """One answer to be rated."""

    record: RequestRecord
    prompt: JudgePrompt


def questions(task: TaskSpec, data_dir: Path | None = None) -> Mapping[str, Question]:
    """What the prompts of a run asked, by prompt id.

    Raises:
        UsageError: the task is not judged, or is another version by now, or its data are missing or wrong.
        EnvironmentRefused: its data are nowhere on this machine.
    """
    card = registry.task(task.name)
    if not card.info.get("judge"):
        judged = ", ".join(name for name, other in registry.tasks().items() if other.info.get("judge"))
        raise UsageError(f"task '{task.name}' is not rated by a judge; those that are: {judged}")
    if int(card.info["version"]) != task.version:
        raise UsageError(
            f"the run is of {task.name} v{task.version} and this is v{card.info['version']}, whose questions may "
            "differ; run it again"
        )
    module = card.load()
    made: JudgedTask = module.Task(options.parse(module.Options, task.options, task.name), data_dir)
    return made.questions()


def answers(records: Sequence[RequestRecord], asked: Mapping[str, Question], prompts: JudgePrompts) -> list[Answer]:
    """All answers in the order of ``records``, AR's first: the others may be equal to them.

    Raises:
        UsageError: an answer to a prompt that the task does not have.
    """
    texts = {record.key: record.text for record in records}
    found = []
    for record in sorted(records, key=lambda record: record.method != BASELINE):
        question = asked.get(record.prompt_id)
        if question is None:
            raise UsageError(f"the task has no prompt '{record.prompt_id}'; the run was made with other data")
        # The judge reads the conversation as it was held.
        speaker = BASELINE if question.forced else record.method
        before = [request_key(speaker, record.prompt_id, record.repeat, turn) for turn in range(1, record.turn)]
        for key in before:
            if key not in texts:
                raise UsageError(f"the run lacks the answer {key}, which {record.key} follows; repeat its command")
        said = [texts[key] for key in before]
        found.append(Answer(record, prompts.render(question, [*said, record.text])))
    return found
