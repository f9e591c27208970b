"""Decode, store and clean the target's own answers to training prompts.

The engine decodes many answers at a time. Each answer is on disk as soon as it ends, and the same call resumes after an
interruption. Greedy answers of small models often end in a repeated segment, of which only the first copies are kept.
"""

from __future__ import annotations

import time
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
_TODO = "restore it or choose another folder"


class _Row(BaseModel):
    """Fields of a line of ``answers.jsonl`` that are read."""

    model_config = ConfigDict(strict=True)

    id: str
    prompt: list[Token]
    answer: list[Token] = Field(min_length=1)
    seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)


class _Header(BaseModel):
    """Content of ``answers.json``: how the answers were decoded."""

    model_config = ConfigDict(strict=True)

    model: str
    dtype: str
    max_new_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True)
class Asking:
    """Settings for decoding answers; ``concurrency`` is the number of sequences stepped together."""

    max_new_tokens: int
    concurrency: int
    temperature: float = 0.0
    seed: int = 0


def ask(
    model: LoadedModel,
    prompts: Sequence[Prompt],
    asking: Asking,
    folder: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Text]:
    """Return the model's answers to ``prompts``, in their order, and keep them in ``folder``.

    Args:
        prompts: their ids must be unique; prompts that leave no space for an answer in the model's context are skipped.
        folder: output folder of ``answers.jsonl`` and ``answers.json``, created if missing; answers that it already
            holds are not decoded again.
        progress: called with (finished answers, all answers) at the start and after each answer.

    Raises:
        UsageError: the folder holds answers of another model or with other settings, or every prompt is too long.
    """
    asked = {prompt.id: (prompt, model.encode(prompt)) for prompt in prompts}
    room = (model.context or 1 << 30) - asking.max_new_tokens
    asked = {name: (prompt, ids) for name, (prompt, ids) in asked.items() if len(ids) <= room}
    if not asked:
        raise UsageError(
            "cannot decode answers: every training prompt is too long for the model's context; lower --max-new-tokens"
        )
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
                f"cannot use the answers in {folder}: prompt {changed[0]} was different when they were made; choose "
                "another folder or restore the prompt"
            )
        progress(len(asked) - len(waiting), len(asked))
        with sole_use(log.path, "wait for it, or choose another folder") if waiting else nullcontext():
            before = time.monotonic()
            for record in _answered(model, asking, {name: asked[name] for name in waiting}) if waiting else ():
                text, now = Text(record.prompt_id, asked[record.prompt_id][1], record.output_ids), time.monotonic()
                line = {"id": text.id, "prompt": text.prompt, "answer": text.answer, "stop": record.finish_reason}
                log.append({**line, "seconds": now - before})  # since the answer that ended before it
                before = now
                texts[text.id] = text
                progress(sum(name in texts for name in asked), len(asked))
    finally:
        log.close()
    return [texts[name] for name in asked]


def read(folder: Path) -> list[Text]:
    """Return the answers that :func:`ask` wrote into a folder, in the order in which they were finished."""
    texts = list(_texts(folder))
    if not texts:
        raise UsageError(
            f"cannot read answers: {folder} has no {ANSWERS}, or an empty one; give a folder of specbench train"
        )
    return texts


def made(folder: Path, model: LoadedModel) -> dict[str, Any]:
    """Return how a folder's answers were made: token budget, temperature, seed, the model's fingerprint and dtype."""
    path = folder / HEADER
    if not path.exists():
        raise UsageError(f"cannot read answers: {folder} has no {HEADER}; give a folder of specbench train")
    _check(folder, {"model": model.spec.fingerprint, "dtype": model.spec.dtype})
    return validate(_Header, read_json_object(path, _TODO), path, _TODO).model_dump()


def hours(folder: Path) -> float | None:
    """Return the hours in which a folder's answers were decoded; None if an older version wrote some of them."""
    seconds = [row.seconds for row in _rows(folder)]
    return None if None in seconds else sum(each or 0.0 for each in seconds) / 3600


def sampling_of(folder: Path, model: LoadedModel) -> Sampling:
    """Return the sampling settings of a folder's answers; raises the errors of :func:`made`."""
    found = made(folder, model)
    return Sampling(temperature=found["temperature"], seed=found["seed"])


def _texts(folder: Path) -> Iterator[Text]:
    for row in _rows(folder):
        yield Text(row.id, row.prompt, row.answer)


def _rows(folder: Path) -> Iterator[_Row]:
    """Yield the finished lines of a folder's ``answers.jsonl``; raise a UsageError that names a bad line and field."""
    file, todo = folder / ANSWERS, "delete that line to decode its answer again"
    for number, row in read_json_lines(file, todo, finished=True) if file.exists() else ():
        yield validate(_Row, row, f"{file} line {number}", todo)


def _answered(
    model: LoadedModel, asking: Asking, asked: dict[str, tuple[Prompt, list[int]]]
) -> Iterator[RequestRecord]:
    """Yield records of the answers as they end.

    Prompts are sorted by length because all slots of a step attend over the length of its longest text.
    """
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
    """Write the header, or refuse a folder whose answers were made with other settings."""
    path = folder / HEADER
    if not path.exists():
        write_json_atomic(path, header)
        return
    found = read_json_object(path, _TODO)
    other = [name for name, value in header.items() if found.get(name) != value]
    if other:
        raise UsageError(
            f"cannot add answers to {folder}: its answers differ in {', '.join(other)}; choose another folder, or use "
            "their settings"
        )


def cut_circle(answer: Sequence[int], keep: int = 3, longest: int = LONGEST) -> Sequence[int]:
    """Cut an answer that ends in a repeated segment after the segment's first ``keep`` copies.

    Args:
        keep: copies that stay, at least 1.
        longest: most tokens of such a segment.
    """
    circle = next(closing_loops(answer, keep + 1, longest), None)
    return answer if circle is None else answer[: circle.start + keep * circle.period]


def without_circles(texts: Sequence[Text], keep: int) -> list[Text]:
    """Apply :func:`cut_circle` to the answers of texts; ``keep`` 0 leaves them as they are."""
    if not keep:
        return list(texts)
    return [Text(text.id, text.prompt, cut_circle(text.answer, keep)) for text in texts]


def before_run(answer: Sequence[int], longest: int) -> int:
    """Return the number of tokens before a token comes up for the ``longest``-th time in a row, or the answer's length.

    CLLM drops a block if a token comes up ten times in a row in it or before it (``detect_repetitive_patterns``). Its
    scan begins in the prompt and ends at the first stop token, which a chat template may have written into the prompt;
    here only the answer is scanned.
    """
    run = 1
    for at in range(1, len(answer)):
        run = run + 1 if answer[at] == answer[at - 1] else 1
        if run == longest:
            return at
    return len(answer)
