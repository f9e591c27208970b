"""A traced run on the page: trajectories and rounds of the pictured prompt, as text in HTML and in Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support import runs
from support.wording import wording

from specbench.decoding.tree import TokenTree
from specbench.report.document import Document, Section
from specbench.report.gathering import Run, gather
from specbench.report.page.trajectories import rounds, trajectories
from specbench.report.render.csv import to_csv
from specbench.report.render.html import to_html
from specbench.report.render.markdown import to_markdown
from specbench.results.request_schema import RequestRecord

WORDS = ["def", " add", "```", " b):", "<script>", "|x|", " a + b", "\x1b[31m", "\u202e", "a_b*c"]


def guesses(words: Sequence[str], method: str, forwards: int = 30) -> RequestRecord:
    """A chain of guesses, of which every other forward has one right."""
    steps = []
    for at in range(forwards):
        tokens = [at % 10, (at + 1) % 10, 7, 8, 9]
        steps.append((TokenTree.chain(tokens, origins="guess"), [0], (at + 1) % 10))
    return runs.traced_record(joined(words), 0, steps, budget=forwards + 1, method=method, prompt="p/0")


def trees(words: Sequence[str], method: str) -> RequestRecord:
    """A tree of a head in each of two forwards; the second accepts two."""
    tree = TokenTree(
        [1, 4, 5, 2, 3], [-1, 0, 0, 1, 1], origins=["", *["head"] * 4], scores=[None, -0.5, -1.0, -0.25, -2.5]
    )  # fmt: skip
    return runs.traced_record(
        joined(words), 0, [(tree, [0], 1), (tree, [0, 1, 4], 6)], budget=5, method=method, prompt="p/0"
    )


def joined(words: Sequence[str]) -> Any:
    return lambda ids: "".join(words[i] for i in ids)


def folder(out: Path, *records: RequestRecord, lot: Sequence[str] = ()) -> Path:
    first = runs.answers("ar", 1, decode_s=1.0)[0].model_copy(update={"prompt_id": "p/0", "request_id": "ar|p/0|0"})
    labels = [record.method for record in records]
    return runs.folder(out, runs.run_config(labels, 1, lot=lot), [first, *records])


def read(*records: RequestRecord, out: Path, **more: Any) -> Run:
    (run,) = gather([folder(out, *records, **more)]).runs
    return run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    labels = ["jacobi", "jf", "cllm", "msn"]
    return read(*(guesses(WORDS, label) for label in labels), trees(WORDS, "jetspec"), out=tmp_path)


def document(run: Run) -> Document:
    return Document("t", "u", [Section("a", "A", [*trajectories(run), *rounds(run)])])


def test_methods_that_guess_have_a_trajectory_and_those_with_trees_a_round(run: Run) -> None:
    found = list(trajectories(run))
    assert [grid.title for grid in found] == [f"Trajectory of {label} on p/0" for label in ("jacobi", "jf", "cllm")]
    assert [grid.open for grid in found] == [True, False, False]
    first = found[0]
    assert (len(first.answer), len(first.states)) == (24, 20)
    assert first.summary.endswith("Not shown: 10 states and 7 positions.")
    assert [state.first for state in first.states] == list(range(20))
    assert {mark for state in first.states for _, mark in state.cells} <= first.legend.keys()
    (figure,) = rounds(run)
    assert figure.title == "Round 2 of 2 of jetspec on p/0: 5 rows, 2 accepted, 2 rejected"
    assert figure.data is not None
    became = {row.cells[0].text: row.cells[3].text for row in figure.data.rows}
    assert became == {
        "0": "last token emitted before this forward", "1 under 0": "accepted", "2 under 0": "rejected",
        "3 under 1": "top pick not accepted", "4 under 1": "accepted", "the target's own next token": "emitted",
    }  # fmt: skip


def test_an_untraced_or_simulated_run_has_neither(tmp_path: Path) -> None:
    record = guesses(WORDS, "jacobi")
    assert record.tokens is not None
    headline = record.model_copy(update={"tokens": record.tokens.model_copy(update={"drafts": None})})
    for at, (made, lot) in enumerate([(headline, ()), (record, ("jacobi",))]):
        found = read(made, out=tmp_path / str(at), lot=lot)
        assert not [*trajectories(found), *rounds(found)]
        assert found.pictured.keys() == {"jacobi"}


def test_a_damaged_tree_leaves_its_run_out_and_says_so(tmp_path: Path) -> None:
    record = trees(WORDS, "jetspec")
    assert record.tokens is not None
    drafts = [draft.model_copy(update={"path": [2, 1]}) for draft in record.tokens.drafts or ()]
    damaged = record.model_copy(update={"tokens": record.tokens.model_copy(update={"drafts": drafts})})
    whole = folder(tmp_path / "whole", guesses(WORDS, "jacobi"))
    (skipped,) = gather([whole, folder(tmp_path / "bad", damaged)]).skipped
    assert wording(skipped.why)


class Tags(HTMLParser):
    """Which tags a page has, and what stands in the cells of its grid."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.cells: list[str] = []
        self._in = False

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self._in = tag == "td"
        if self._in:
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in = self._in and tag != "td"

    def handle_data(self, data: str) -> None:
        if self._in:
            self.cells[-1] += data


def test_what_a_model_wrote_is_text_in_every_format(run: Run) -> None:
    page, text = Tags(), to_markdown(document(run), "pictures")
    page.feed(to_html(document(run)))
    assert "script" not in page.tags
    assert {"»<script>", "»|x|", "≈\\u202e", "≈\\x1b[31m", "»```"} <= {*page.cells}
    assert text.count("```") == 6, "a fence of the model's ends no block"
    assert "\u202e" not in to_html(document(run)) + text + to_csv(document(run))
    for line in text.splitlines():
        if line.startswith("| ") and "top pick" in line:
            assert len(re.findall(r"(?<!\\)\|", line)) == 7, line
