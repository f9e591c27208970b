"""Judgments on disk: ``judgments.jsonl`` of a run folder, one line each, appended as they come. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from specbench.errors import UsageError, first_fault
from specbench.records import Record
from specbench.request_log import read_requests

JUDGMENTS = "judgments.jsonl"


class JudgeSpec(Record):
    """Who judged. Two judges are the same when all of this is."""

    id: str = Field(description="the model's name, as the loader or the endpoint knows it")
    kind: Literal["local", "endpoint", "import"]
    endpoint: str | None = Field(default=None, description="host and port that answered")
    fingerprint: str | None = Field(default=None, description="of a local model's weights")
    dtype: str | None = None
    max_tokens: int | None = Field(default=None, description="budget of a judgment; None where it is not known")


class Judgment(Record):
    """A rating of one answer."""

    request: str = Field(description="key of the answer in requests.jsonl")
    method: str
    prompt_id: str
    repeat: int
    turn: int
    category: str
    judge: JudgeSpec
    prompt: str = Field(description="FastChat's name of the judge prompt")
    prompt_sha256: str = Field(description="of all that the judge read: system prompt, question and answer")
    rating: float | None = Field(description="1 to 10; None is no rating, and never counts as a number")
    text: str = Field(description="what the judge wrote")
    same_as: str | None = Field(
        default=None, description="request with the same answer whose judgment this is, AR's mostly"
    )
    error: str | None = Field(
        default=None, description="why the judge could not be asked; asked again by the next command"
    )


def read_judgments(folder: Path) -> list[Judgment]:
    """The judgments of a run, the last one of each judge and answer; none if there are none.

    Raises:
        UsageError: a line is damaged; names its number.
    """
    found: dict[tuple[str, str], Judgment] = {}
    for number, row in enumerate(read_requests(folder / JUDGMENTS), 1):
        try:
            judgment = Judgment.model_validate(row)
        except ValidationError as error:
            where = f"{folder / JUDGMENTS} line {number}"
            raise UsageError(f"{where} is damaged ({first_fault(error)}); delete that line") from None
        found[judgment.judge.model_dump_json(), judgment.request] = judgment
    return list(found.values())
