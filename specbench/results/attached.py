"""Check that a run's verdicts, likelihoods, branches and judgments belong to the answers in its ``requests.jsonl``."""

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
    """The attached files of a run, by request key. Raises UsageError if one is damaged."""

    def __init__(self, folder: Path) -> None:
        self.verdicts = read_verdict_lines(folder)
        self._likelihoods, self._branches = read_likelihoods(folder), read_branches(folder)
        self._judgments: dict[str, list[Judgment]] = defaultdict(list)
        for judgment in read_judgments(folder):
            self._judgments[judgment.request].append(judgment)

    def contradiction(self, record: RequestRecord) -> str:
        """Why an attached file does not match an answer, as the end of an error message; empty if all match.

        Older files without a hash of the answer are checked by the fields that they do have.
        """
        key = record.request_id
        line = self.verdicts.get(key)
        if line and line.answer not in (None, answer_hash(record.text)):
            return f"has another answer than the one that {VERDICTS} scored"
        known = self._likelihoods.get(key)
        if known and (known.tokens, known.answer or "") != (
            record.output_tokens,
            answer_hash(record.output_ids) if known.answer else "",
        ):
            return f"has another answer than the one that {LIKELIHOODS} rated"
        if not _of(record, self._branches.get(key, ())):
            return f"has other branches than those that {BRANCHES} rated"
        if any(judgment.answer not in (None, answer_hash(record.text)) for judgment in self._judgments.get(key, ())):
            return f"has another answer than the one that {JUDGMENTS} rated"
        return ""


def _of(record: RequestRecord, rated: Sequence[RatedBranch]) -> bool:
    """Whether every rated branch is one of the record's branches. Not every branch has to be rated."""
    own = {(len(branch.ids), branch.log_probability) for branch in record.branches or ()}
    return all((branch.tokens, branch.promised) in own for branch in rated)
