"""Log-likelihoods of the answers under the run's model, or under its base model if the run has one.

``likelihoods.jsonl`` has a line for each different text (prompt and answer) with its requests: the sum over tokens of
log p (base e) under the plain softmax at temperature 1, without top-k or top-p, however the tokens were chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from specbench.common import validate
from specbench.results.attachment import Attachment
from specbench.results.request_log import read_requests
from specbench.results.request_schema import RequestRecord
from specbench.results.run_file import REPEAT
from specbench.results.schema import Count, Figure, Record

LIKELIHOODS = "likelihoods.jsonl"

_TODO = "delete it to go on without its figures"


class Likelihood(Record):
    """A line of ``likelihoods.jsonl``: one text and the requests that produced it."""

    text: str = Field(description="hash of the prompt's and the answer's token ids")
    requests: list[str] = Field(min_length=1, description="keys of the requests that have this prompt and answer")
    tokens: Count = Field(description="number of the answer's kept tokens")
    answer: str | None = Field(default=None, description="hash of the answer's token ids; absent in older files")
    log_likelihood: Figure = Field(
        description="log-likelihood of the answer given the prompt: the sum over its tokens, in nats"
    )


class Reference(Record):
    """How likely a model finds the texts that really follow the prompts, in tasks that have them."""

    tokens: Count = Field(gt=0)
    log_likelihood: Figure = Field(description="sum over the tokens, in nats")

    @property
    def perplexity(self) -> float:
        """e to the power of the mean negative log-likelihood of a token."""
        return math.exp(min(-self.log_likelihood / self.tokens, 700.0))


class References(Record):
    """Content of ``references.json``: row label -> score under the row's model."""

    rows: dict[str, Reference]


REFERENCES = Attachment("references.json", References, REPEAT)


def read_likelihoods(folder: Path) -> dict[str, Likelihood]:
    """Return the likelihoods by request key (the last line of each); empty if they were not computed."""
    found: dict[str, Likelihood] = {}
    for where, content in read_requests(folder / LIKELIHOODS, _TODO):
        line = validate(Likelihood, content, where, _TODO)
        found.update(dict.fromkeys(line.requests, line))
    return found


def per_token(records: Sequence[RequestRecord], known: dict[str, Likelihood]) -> float | None:
    """Mean log-likelihood per token of some answers; None if one of them has no likelihood or there are no tokens."""
    lines = [known[record.request_id] for record in records if record.request_id in known]
    tokens = sum(line.tokens for line in lines)
    return sum(line.log_likelihood for line in lines) / tokens if tokens and len(lines) == len(records) else None
