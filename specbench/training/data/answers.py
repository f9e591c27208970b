"""The target's own answers to training prompts.

The engine decodes many at a time; each is on disk as it ends, and the same call resumes after an interruption. Circles
at an answer's end, which small models' greedy answers have, are learnt from once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from specbench.analysis import LONGEST, closing_loops
from specbench.common import (
    Prompt,
    UsageError,
    check_writable,
    read_json_lines,
    read_json_object,
    sole_use,
    validate,
    write_json_atomic,
)
from specbench.engine import Sampling
from specbench.models import LoadedModel
from specbench.planning import plan_methods
from specbench.results import BASELINE, RequestLog, RequestRecord
from specbench.runner import Request, Session, StopRule
from specbench.training.recipe import Text, Token

ANSWERS, HEADER = "answers.jsonl", "answers.json"
_TODO = "restore it or name another folder"


class _Row(BaseModel):
    """A line of ``answers.jsonl``, as far as it is used."""

    model_config = ConfigDict(strict=True)

    id: str
    prompt: list[Token]
    answer: list[Token] = Field(min_length=1)


class _Header(BaseModel):
    """``answers.json``."""

    model_config = ConfigDict(strict=True)

    model: str
    dtype: str
    max_new_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True)
class Asking:
    """How answers are made."""

    max_new_tokens: int
    concurrency: int
    temperature: float = 0.0
    seed: int = 0


def ask(
    model: LoadedModel,
    prompts: Sequence[Prompt],
    asking: Asking,
    folder: Path,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> list[Text]:
    """The model's answers to ``prompts``, in their order, kept in ``folder``.

    Args:
        prompts: of different ids; those that leave no room for an answer in the model's context are left out.
        folder: receives ``answers.jsonl`` and ``answers.json``; answers that are in there already are taken as they
            are. Made where it is missing.
        told: (answers done, answers in all) at the start and after each.

    Raises:
        UsageError: the folder holds answers of another model, or made in another way; or nothing can be asked.
    """
    asked = {prompt.id: (prompt, model.encode(prompt)) for prompt in prompts}
    room = (model.context or 1 << 30) - asking.max_new_tokens
    asked = {name: (prompt, ids) for name, (prompt, ids) in asked.items() if len(ids) <= room}
    if not asked:
        raise UsageError("every training prompt is too long for an answer; lower --max-new-tokens")
    check_writable(folder)
    how = {k: v for k, v in asdict(asking).items() if k != "concurrency"}
    _check(folder, {"model": model.spec.fingerprint, "dtype": model.spec.dtype, **how})
    log = RequestLog(folder / ANSWERS)
    try:
        texts = {text.id: text for text in _texts(folder)}
        waiting = [name for name in asked if name not in texts]
        changed = [name for name, (_, ids) in asked.items() if name in texts and list(texts[name].prompt) != ids]
        if changed:
            raise UsageError(
                f"{folder} holds an answer to another prompt called {changed[0]}; name another folder, or ask as before"
            )
        told(len(asked) - len(waiting), len(asked))
        with sole_use(log.path, "wait for it, or name another folder") if waiting else nullcontext():
            for record in _answered(model, asking, {name: asked[name] for name in waiting}) if waiting else ():
                text = Text(record.prompt_id, asked[record.prompt_id][1], record.output_ids)
                log.append({"id": text.id, "prompt": text.prompt, "answer": text.answer, "stop": record.finish_reason})
                texts[text.id] = text
                told(sum(name in texts for name in asked), len(asked))
    finally:
        log.close()
    return [texts[name] for name in asked]


def read(folder: Path) -> list[Text]:
    """The answers that :func:`ask` has left in a folder, in the order in which they were finished."""
    texts = list(_texts(folder))
    if not texts:
        raise UsageError(f"{folder} holds no {ANSWERS}; name a folder that specbench train wrote")
    return texts


def made(folder: Path, model: LoadedModel) -> dict[str, Any]:
    """How the answers of a folder were made: budget, temperature, seed; fingerprint and precision of the model."""
    path = folder / HEADER
    if not path.exists():
        raise UsageError(f"{folder} has no {HEADER}; name a folder that specbench train or trajectories wrote")
    _check(folder, {"model": model.spec.fingerprint, "dtype": model.spec.dtype})
    return validate(_Header, read_json_object(path, _TODO), path, _TODO).model_dump()


def sampling_of(folder: Path, model: LoadedModel) -> Sampling:
    """How the answers of a folder were decoded; raises as :func:`made`."""
    found = made(folder, model)
    return Sampling(temperature=found["temperature"], seed=found["seed"])


def _texts(folder: Path) -> Iterator[Text]:
    """The finished lines of a folder's ``answers.jsonl``; raises a UsageError that names the line and the field."""
    file, todo = folder / ANSWERS, "delete that line to go on without its answer"
    for number, row in read_json_lines(file, todo, finished=True) if file.exists() else ():
        found = validate(_Row, row, f"{file} line {number}", todo)
        yield Text(found.id, found.prompt, found.answer)


def _answered(
    model: LoadedModel, asking: Asking, asked: dict[str, tuple[Prompt, list[int]]]
) -> Iterator[RequestRecord]:
    """Records of the answers, as they end. By prompt length: the slots of a step attend over its longest text."""
    longest = max(len(ids) for _, ids in asked.values())

    def request(name: str, prompt: Prompt, ids: Sequence[int]) -> Request:
        rule = StopRule(model.stop_ids, prompt.stops, asking.max_new_tokens, model.decode)
        return Request(name, 0, ids, rule)

    requests = [request(name, prompt, ids) for name, (prompt, ids) in asked.items()]
    requests.sort(key=lambda request: len(request.ids))
    with Session(
        model,
        plan_methods([BASELINE], []),
        Sampling(temperature=asking.temperature, seed=asking.seed),
        capacity=longest + asking.max_new_tokens,
        slots=asking.concurrency,
    ) as session:
        session.capture(longest)
        yield from session.decode(session.methods[0], requests)


def _check(folder: Path, header: dict[str, Any]) -> None:
    """Answers made in two ways do not go into one folder."""
    path = folder / HEADER
    if not path.exists():
        write_json_atomic(path, header)
        return
    found = read_json_object(path, _TODO)
    other = [name for name, value in header.items() if found.get(name) != value]
    if other:
        raise UsageError(
            f"{folder} holds answers with another {', '.join(other)}; name another folder, or ask as they were asked"
        )


def cut_circle(answer: Sequence[int], keep: int = 3, longest: int = LONGEST) -> Sequence[int]:
    """An answer without the rounds of a circle at its end, but for the first ``keep``.

    Args:
        keep: rounds that stay, at least 1.
    """
    circle = next(closing_loops(answer, keep + 1, longest), None)
    return answer if circle is None else answer[: circle.start + keep * circle.period]


def without_circles(texts: Sequence[Text], keep: int) -> list[Text]:
    """Texts whose answers are cut so; ``keep`` 0 leaves them as they are."""
    if not keep:
        return list(texts)
    return [Text(text.id, text.prompt, cut_circle(text.answer, keep)) for text in texts]


def before_run(answer: Sequence[int], longest: int) -> int:
    """Tokens of an answer before one comes up for the ``longest``-th time in a row; all of them where none does.

    CLLM drops a block from which, or from before which, a token stands ten times in a row
    (``detect_repetitive_patterns``). Its scan begins in the prompt and ends at the first stop token, which a chat
    template may write into the prompt; here it is the answer's.
    """
    run = 1
    for at in range(1, len(answer)):
        run = run + 1 if answer[at] == answer[at - 1] else 1
        if run == longest:
            return at
    return len(answer)
