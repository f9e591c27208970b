"""Attached files of a run: verdicts, likelihoods, branches and judgments have to be about the answers that it holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from specbench.results.branches import BRANCHES, RatedBranch, read_branches
from specbench.results.judgments import JUDGMENTS, Judgment, read_judgments
from specbench.results.likelihoods import LIKELIHOODS, read_likelihoods
from specbench.results.request_schema import RequestRecord
from specbench.results.verdicts import VERDICTS, answer_hash, read_verdict_lines


class Attached:
    """What the attached files of a run say, by request. Raises UsageError where one is damaged."""

    def __init__(self, folder: Path) -> None:
        self.verdicts = read_verdict_lines(folder)
        self._likelihoods, self._branches = read_likelihoods(folder), read_branches(folder)
        self._judgments: dict[str, list[Judgment]] = defaultdict(list)
        for judgment in read_judgments(folder):
            self._judgments[judgment.request].append(judgment)

    def contradiction(self, record: RequestRecord) -> str:
        """How an attached file contradicts an answer; empty where none does.

        Files from before they named the answer are only held to what they say of it.
        """
        key = record.request_id
        line = self.verdicts.get(key)
        if line and line.answer not in (None, answer_hash(record.text)):
            return f"is another answer than {VERDICTS} is about"
        known = self._likelihoods.get(key)
        if known and (known.tokens, known.answer or "") != (
            record.output_tokens,
            answer_hash(record.output_ids) if known.answer else "",
        ):
            return f"is another answer than {LIKELIHOODS} is about"
        if not _of(record, self._branches.get(key, ())):
            return f"has other branches than {BRANCHES} is about"
        if any(judgment.answer not in (None, answer_hash(record.text)) for judgment in self._judgments.get(key, ())):
            return f"is another answer than {JUDGMENTS} is about"
        return ""


def _of(record: RequestRecord, rated: Sequence[RatedBranch]) -> bool:
    """Whether rated branches are among a record's own, some of which may not be rated."""
    own = {(len(branch.ids), branch.log_probability) for branch in record.branches or ()}
    return all((branch.tokens, branch.promised) in own for branch in rated)
