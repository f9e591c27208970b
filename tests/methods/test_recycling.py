"""Token Recycling by hand: what a forward teaches, the tree that is filled with it, and what is cut off a tree."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.asserting import refusal
from support.processes import bytes_taken, lines_run

from specbench.common import UsageError
from specbench.decoding.protocol import Context
from specbench.decoding.tree import StepResult, TokenTree
from specbench.methods.recycling.decoder import Decoder, Options
from specbench.methods.recycling.trees import CANDIDATES, TREE, smallest
from specbench.runner.methods import plan_methods

#: Token t of these examples has the candidates 10 t, 10 t + 1, …; 7 stands for all that was never fed.
BEST = {token: [10 * token + rank for rank in range(CANDIDATES)] for token in range(100)}


def decided(emitted: Sequence[int], best: Sequence[Sequence[int]], path: Sequence[int] = (0,)) -> StepResult:
    """A forward whose rows have these best tokens; they come with two more than the method takes."""
    ids = torch.tensor([[*row, 98, 99] for row in best])
    return StepResult(list(emitted), list(path), [row[0] for row in best], (torch.zeros(ids.shape), ids))


def decoder(prompt: Sequence[int], first: int, state: Any = None, **options: Any) -> Decoder:
    """Behind the prefill, which taught what follows the prompt's last token."""
    made = Decoder(Options(**options), Context(1000, 0, random.Random(0), state=state))
    made.begin(prompt)
    made.observe(decided([first], [BEST[prompt[-1]]]))
    return made


def shape(tree: TokenTree) -> tuple[list[int], list[int]]:
    return list(tree.tokens), list(tree.parents)


# ------------------------------------------------------------------ by hand


def test_a_draft_is_what_was_likely_behind_the_same_tokens_before() -> None:
    made = decoder([4, 2, 1], 1, tree="0 1 00 01 000")
    # Fed so far: the last token of the prompt, 1, which is emitted again. Behind it 10 and 11, of which none was.
    assert shape(made.draft()) == ([1, 10, 11], [-1, 0, 0])
    # That forward says what is likely behind 1, 10 and 11, of which none was accepted, and says 10.
    made.observe(decided([10], [[1, 11, *BEST[1][2:]], BEST[10], BEST[11]]))
    # Behind 10 there are 100 and 101, which were never fed.
    assert shape(made.draft()) == ([10, 100, 101], [-1, 0, 0])
    made.observe(decided([1], [BEST[10], BEST[1], BEST[5]]))
    # Behind 1 now 1 and 11; behind that 1 the same again, and once more.
    assert shape(made.draft()) == ([1, 1, 11, 1, 11, 1], [-1, 0, 0, 1, 1, 3])


def test_rejected_rows_teach_too_and_of_one_token_the_last_row_does() -> None:
    made = decoder([1], 1, tree="0 1")
    made.draft()
    made.instead(TokenTree([1, 5, 5, 6], [-1, 0, 0, 1]))  # another one's drafts, all of them wrong
    made.observe(decided([5], [BEST[1], BEST[20], BEST[30], BEST[40]]))
    assert shape(made.draft()) == ([5, 300, 301], [-1, 0, 0])
    made.observe(decided([6], [BEST[5], BEST[0], BEST[0]]))
    assert shape(made.draft()) == ([6, 400, 401], [-1, 0, 0])
    # And the row of the root, fed anew, says of its token what is likely by now.
    made.observe(decided([6], [BEST[60], BEST[0], BEST[0]]))
    assert shape(made.draft()) == ([6, 600, 601], [-1, 0, 0])


def test_where_nothing_is_known_it_drafts_nothing_or_token_0_as_released() -> None:
    assert shape(decoder([1], 7, tree="0 1 00 10").draft()) == ([7], [-1])
    assert shape(decoder([1], 7, tree="0 1 00 10", unknown="zero").draft()) == ([7, 0, 0, 0, 0], [-1, 0, 0, 1, 2])
    assert shape(decoder([1], 1, tree="0 1 00 10", unknown="zero").draft()) == ([1, 10, 11, 0, 0], [-1, 0, 0, 1, 2])


def test_a_warm_row_keeps_what_requests_have_taught_and_a_cold_one_does_not() -> None:
    state = Decoder.state(Options(warm=True))
    decoder([3], 5, state, warm=True).end()
    assert shape(decoder([4], 3, state, warm=True, tree="0").draft()) == ([3, 30], [-1, 0])
    assert shape(decoder([4], 3, tree="0").draft()) == ([3], [-1])
    assert Decoder.state(Options()) is None
    assert Decoder.state(Options(warm=True)) == {}


# ------------------------------------------------------------------ trees


def test_the_published_tree_has_80_nodes() -> None:
    nodes = TREE.known["2.2.2"]
    assert len(set(nodes)) == len(nodes) == 80
    assert Counter(map(len, nodes)) == {1: 8, 2: 21, 3: 25, 4: 15, 5: 8, 6: 3}
    assert all(node[:-1] in nodes for node in nodes if len(node) > 1)
    assert max(max(node) for node in nodes) == 7


def test_a_budget_keeps_the_nodes_of_the_best_ranks() -> None:
    # Sums of rank + 1: 0 has 1; 1 and 00 have 2; 2, 01, 10, 000 have 3; the first of those with 4 is 3, the shortest.
    kept = [(0,), (1,), (2,), (3,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]
    assert list(smallest("2.2.2", 9)) == kept
    assert [len(smallest("2.2.2", budget)) for budget in (2, 40, 81, 512)] == [1, 39, 80, 80]
    for budget in range(2, 81):
        smaller, larger = smallest("2.2.2", budget), smallest("2.2.2", budget + 1)
        assert set(smaller) < set(larger), "a smaller tree is a part of the larger one"
        assert all(node[:-1] in smaller for node in smaller if len(node) > 1)
    made = decoder([1], 1, budget=9, unknown="zero")
    assert shape(made.draft()) == ([1, 10, 11, 12, 13, 0, 0, 0, 0], [-1, 0, 0, 0, 0, 1, 1, 2, 5])


@pytest.mark.parametrize("form", ["[[0], [1], [0, 0]]", "0 1 00", "(0,), (1,), (0, 0)", "1 0,00"])
def test_a_tree_may_come_from_a_file(form: str, tmp_path: Path) -> None:
    file = tmp_path / "tree.txt"
    file.write_text(f"[{form}]" if form.startswith("(") else form)
    method = plan_methods(["recycling"], [f"tree={file}"])[1]
    assert sorted(str(method.options.model_dump()["tree"]).split()) == ["0", "00", "1"], "the record has the tree"
    assert method.max_rows == 4
    made = method.new(Context(1000, 0, random.Random(0)))
    made.begin([1])
    made.observe(decided([1], [BEST[1]]))
    assert shape(made.draft()) == ([1, 10, 11], [-1, 0, 0])


def test_a_tree_that_is_none_is_refused_in_a_line(tmp_path: Path) -> None:
    file = tmp_path / "tree.json"
    file.write_text("[[0], [0, 8]]")
    for tree, says in (
        ("2.2", "none of 2.2.2"), ("00", "has no parent"), ("0 0", "there twice"), ("0 8", "rank 8"),
        (str(file), "rank 8"), ("[]", "no path"),
    ):  # fmt: skip
        said = refusal(UsageError, plan_methods, ["recycling"], [f"tree={tree}"])
        assert says in said, said


# ------------------------------------------------------------------ what it says


def test_the_preset_is_the_released_code() -> None:
    released, default = (plan_methods(["recycling"], settings)[1] for settings in (["preset=released"], []))
    assert released.options == Options(tree="2.2.2", budget=81, warm=True, unknown="zero")
    assert (released.max_rows, default.max_rows, released.top_k) == (81, 81, 8)
    assert (released.stateful, default.stateful) == (True, False)


def test_it_says_no_figures_of_its_own() -> None:
    made = decoder([1], 1)
    made.draft()
    assert made.measures(1, True) == {}


# ------------------------------------------------------------------ how it grows


@pytest.mark.parametrize("unknown", ["skip", "zero"])
def test_it_keeps_a_line_a_token_and_a_step_is_no_more_work_later(unknown: Any) -> None:
    rng = random.Random(1)
    made = decoder([1], 2, unknown=unknown, budget=20)

    def steps(count: int) -> None:
        for _ in range(count):
            tree = made.draft()
            best = [[rng.randrange(50) for _ in range(CANDIDATES)] for _ in range(len(tree))]
            made.observe(decided([rng.randrange(50)], best))

    steps(100)  # all 50 tokens are known
    early = lines_run("methods.recycling", lambda: steps(30))
    steps(300)
    assert len(made._matrix) == 50
    assert lines_run("methods.recycling", lambda: steps(30)) < 1.2 * early
    assert bytes_taken(made.draft) < 20_000
