"""Ratings of answers by a judge model (``judgments.jsonl`` of a run folder), and their means."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from pydantic import Field

from specbench.common import validate
from specbench.results.request_log import read_requests
from specbench.results.schema import Record

JUDGMENTS = "judgments.jsonl"


class JudgeSpec(Record):
    """The judge model. Two judges are the same if all of these fields are equal."""

    id: str = Field(description="the model's name, as the loader or the endpoint knows it")
    kind: Literal["local", "endpoint"]
    endpoint: str | None = Field(default=None, description="host and port of the endpoint")
    fingerprint: str | None = Field(default=None, description="hash of a local model's weights")
    dtype: str | None = None
    max_tokens: int | None = Field(default=None, description="token budget of a judgment; None if unknown")


class Judgment(Record):
    """A rating of one answer."""

    request: str = Field(description="key of the answer in requests.jsonl")
    method: str
    prompt_id: str
    repeat: int
    turn: int
    category: str
    judge: JudgeSpec
    answer: str | None = Field(default=None, description="hash of the answer's text; None in older files")
    prompt: str = Field(description="FastChat's name of the judge prompt")
    prompt_sha256: str = Field(description="hash of everything that the judge read: system prompt, question and answer")
    rating: float | None = Field(
        description="rating from 1 to 10; None if the judge gave no rating, which never counts as a number"
    )
    text: str = Field(description="what the judge wrote")
    injected: bool = Field(
        default=False,
        description="whether the answer contains delimiters of the judge prompt, a rating or control tokens",
    )
    same_as: str | None = Field(
        default=None, description="request with the same answer from which this judgment was copied, usually AR's"
    )
    error: str | None = Field(default=None, description="why the judge gave no reply; the next command asks again")


def read_judgments(folder: Path) -> list[Judgment]:
    """Return the judgments of a run; the last one counts for each judge and answer."""
    found: dict[tuple[str, str], Judgment] = {}
    todo = "delete that line"
    for where, row in read_requests(folder / JUDGMENTS, todo):
        judgment = validate(Judgment, row, where, todo)
        found[judgment.judge.model_dump_json(), judgment.request] = judgment
    return list(found.values())


def judge_scores(judgments: Iterable[Judgment], methods: Sequence[str]) -> list[dict[str, Any]]:
    """Return one JSON-ready entry per judge; ``methods`` are labels in the order of the run.

    Each label has ``score`` (mean rating over both turns, None without a rating), the counts ``rated``, ``judged``,
    ``same_as`` (copied from an equal answer), ``errors`` and ``injections`` (answers that could have steered the
    judge), and the same scores by ``turns`` and ``categories``.
    """
    by_judge: dict[str, list[Judgment]] = defaultdict(list)
    for judgment in judgments:
        by_judge[judgment.judge.model_dump_json()].append(judgment)
    found = []
    for mine in by_judge.values():
        by_method = dict(_by(mine, lambda judgment: judgment.method))
        rows = {label: _method(by_method[label]) for label in methods if label in by_method}
        found.append({"judge": mine[0].judge.model_dump(mode="json"), "methods": rows})
    return found


def judge_remarks(scores: Mapping[str, Any]) -> list[str]:
    """Remarks on answers that the mean ratings of one judge leave out, and on answers that may have steered it."""
    rows = scores["methods"].values()
    refused, marked = sum(row["errors"] for row in rows), sum(row["injections"] for row in rows)
    unrated = sum(row["judged"] - row["rated"] for row in rows) - refused
    asked = sum(row["judged"] for row in rows)
    found = (
        (refused, "got no reply from the judge; run the same command again to retry them"),
        (unrated, "have no rating: the judge's reply contains no number from 1 to 10"),
        (
            marked,
            "contain delimiters of the judge's prompt, ratings or control tokens (injections); the judge read them "
            "with round brackets in their place",
        ),
    )
    return [f"{count} of {asked} answers {what}." for count, what in found if count]


def _method(judgments: Sequence[Judgment]) -> dict[str, Any]:
    return {
        **_score(judgments),
        "same_as": sum(judgment.same_as is not None for judgment in judgments),
        "errors": sum(judgment.error is not None for judgment in judgments),
        "injections": sum(judgment.injected for judgment in judgments),
        "turns": {turn: _score(some) for turn, some in sorted(_by(judgments, lambda j: str(j.turn)))},
        "categories": {name: _score(some) for name, some in _by(judgments, lambda j: j.category) if name},
    }


def _score(judgments: Sequence[Judgment]) -> dict[str, Any]:
    ratings = [judgment.rating for judgment in judgments if judgment.rating is not None]
    return {"score": mean(ratings) if ratings else None, "rated": len(ratings), "judged": len(judgments)}


def _by(judgments: Iterable[Judgment], key: Callable[[Judgment], str]) -> list[tuple[str, list[Judgment]]]:
    found: dict[str, list[Judgment]] = defaultdict(list)
    for judgment in judgments:
        found[key(judgment)].append(judgment)
    return list(found.items())
