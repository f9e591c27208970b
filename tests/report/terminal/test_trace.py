"""Steps of a request from its record."""

from __future__ import annotations

from typing import Any

import pytest
from support import runs
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.decoding.tree import TokenTree
from specbench.models.loaded_model import ByteTokenizer
from specbench.report.answers.generation import legend, steps
from specbench.results.request_schema import RequestRecord

as_bytes = ByteTokenizer().decode
END = 299

#        root  B   C   D   E   F    B and C D are drafted under the root, E F under B; F only generates drafts
TREE = TokenTree(
    list(b"ABCDEF"), [-1, 0, 0, 2, 1, 4], [True, True, True, True, True, False],
    ["", "guess", "pool", "pool", "guess", "window"],
)  # fmt: skip


@pytest.fixture
def record() -> RequestRecord:
    """A; then B E are accepted, and Z follows; then nothing is drafted, and the answer ends."""
    return runs.traced_record(
        as_bytes, ord("A"), [(TREE, [0, 1, 4], ord("Z")), (TokenTree.chain([ord("Z")]), [0], END)], stop_ids=[END]
    )


def test_the_steps_of_an_answer(record: RequestRecord) -> None:
    found = steps(record)
    assert [(step.number, step.rows) for step in found] == [(0, None), (1, 6), (2, 1)]
    assert [[(token.text, token.origin, token.beyond) for token in step.tokens] for step in found] == [
        [("A", "prefill", False)],
        [("B", "guess", False), ("E", "guess", False), ("Z", "bonus", False)],
        [("", "bonus", True)],
    ]


def test_drafts_come_in_the_order_of_their_rows_and_rejected_ones_in_chains(record: RequestRecord) -> None:
    before, step, last = steps(record)
    assert before.drafts is None
    assert last.drafts == []
    drafts = step.drafts or []
    assert [(draft.row, draft.parent, draft.text, draft.origin) for draft in drafts] == [
        (1, 0, "B", "guess"), (2, 0, "C", "pool"), (3, 2, "D", "pool"), (4, 1, "E", "guess"), (5, 4, "F", "window"),
    ]  # fmt: skip
    assert [draft.text for draft in drafts if draft.accepted] == ["B", "E"]
    assert [draft.text for draft in drafts if draft.draft_only] == ["F"]
    assert [[draft.text for draft in chain] for chain in steps(record)[1].branches] == [["C", "D"], ["F"]]
    tree = TokenTree(list(b"ABCDE"), [-1, 0, 1, 1, 3])
    found = steps(runs.traced_record(as_bytes, ord("A"), [(tree, [0], ord("Z"))]))
    assert [[draft.text for draft in chain] for chain in found[1].branches] == [["B", "C"], ["D", "E"]]


def test_the_legend_has_what_occurs() -> None:
    tree = TokenTree.chain(list(b"AB"), origins="tea-leaves")
    found = legend(steps(runs.traced_record(as_bytes, ord("A"), [(tree, [0, 1], ord("C"))])))
    assert list(found) == ["prefill", "bonus", "tea-leaves"]
    assert found["tea-leaves"] == ""
    assert found["bonus"] == "the target's own next token"


def test_a_record_without_drafts_or_without_tokens(record: RequestRecord) -> None:
    made = runs.traced_record(as_bytes, ord("A"), [(TREE, [0, 1], ord("C"))], whole=False)
    (_, step) = steps(made)
    assert step.drafts is None
    assert step.branches == []
    assert [token.origin for token in step.tokens] == ["guess", "bonus"]
    with pytest.raises(UsageError, check=wording):
        steps(record.model_copy(update={"tokens": None}))


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("tokens", {"origins": "a"}), ("tokens", {"chars": [1]}), ("forwards", {"rows": [6]}),
        ("text", {"tail": "more"}), ("text", {"chars": [9, -8, 1, 1, 1]}), ("origins", {"words": ["prefill"]}),
        ("drafts", {"drafts": []}), ("drafts", {"rows": [5, 1]}),
    ],
)  # fmt: skip
def test_a_trace_that_contradicts_its_record_is_refused(
    record: RequestRecord, what: str, change: dict[str, Any]
) -> None:
    assert record.tokens is not None
    broken = record.model_copy(update={"tokens": record.tokens.model_copy(update=change)})
    with pytest.raises(UsageError, check=wording):
        steps(broken)
