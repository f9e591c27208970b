"""Trees of TR-Jacobi by a file: how paths may be written, what is refused in a sentence, and what a record says."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.decoders import language, walk
from support.wording import wording

from specbench.common import UsageError
from specbench.decoding.protocol import Context, Method
from specbench.methods.msn.trees import MC_SIM_7B_63, TREE
from specbench.planning.methods import plan_methods

MEDUSA = TREE.known["mc_sim_7b_63"]
FORMS = {
    "json": str([list(node) for node in MEDUSA]),
    "python": str(MEDUSA).replace("), (", "),\n  ("),
    "a comma after the last": str(tuple(list(node) for node in MEDUSA))[:-1] + ",)",
    "names": MC_SIM_7B_63,
    "a name a line": MC_SIM_7B_63.replace(" ", "\n") + "\n",
    "names with commas": MC_SIM_7B_63.replace(" ", ", "),
}


def msn(tree: str, *more: str) -> Method:
    return plan_methods(["msn"], [f"tree={tree}", *more])[1]


@pytest.mark.parametrize("form", FORMS)
def test_the_published_tree_from_a_file_is_the_published_tree(form: str, tmp_path: Path) -> None:
    file = tmp_path / "tree.txt"
    file.write_text(FORMS[form], encoding="utf-8-sig")
    assert TREE.nodes_of(TREE.named(str(file))) == MEDUSA
    by_file, by_name = (
        walk(
            msn(tree).new(Context(2000, 1999, random.Random(5))), language(5, words=9), [1, 2, 3, 4, 5, 6, 7], 40,
            top_k=10, vocab=12,
        )
        for tree in (str(file), "mc_sim_7b_63")
    )  # fmt: skip
    assert by_file.trees == by_name.trees
    assert by_file.emitted == by_name.emitted


def test_a_node_before_its_parent_is_put_after_it_and_nothing_else_moves() -> None:
    assert TREE.named("2 010 01 0 1 21") == "2 0 01 010 1 21"


def test_rows_are_those_of_the_file() -> None:
    assert msn("[[0], [0, 0], [3]]", "retrieval=off").max_rows == 4
    assert msn("[[0], [0, 0], [3]]").max_rows == 9
    assert msn("0 00 000 0000 00000 000000", "retrieval=off").max_rows == 7


def test_a_record_has_the_paths_and_a_changed_file_is_another_tree(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text("[[0], [1], [0, 0]]")
    before = msn(str(file)).options.model_dump(mode="json")
    assert before["tree"] == "0 1 00"
    assert msn(before["tree"]).options == msn(str(file)).options  # what is recorded gives the same tree
    file.write_text("[[0], [1], [0, 1]]")
    assert msn(str(file)).options.model_dump(mode="json") == {**before, "tree": "0 1 01"}
    assert [msn(name).options.model_dump()["tree"] for name in ("mc_sim_7b_63", "chain")] == ["mc_sim_7b_63", "chain"]
    assert msn(MC_SIM_7B_63).options.model_dump()["tree"] == MC_SIM_7B_63  # longer than a file's name may be


REFUSED = ["", "{}", "[[0], [0, 0}", "[[0], [0, 10]]", "[[true]]", "0 010", "[[0], [1], [0]]", "0" * 5000]


@pytest.mark.parametrize("content", REFUSED, ids=lambda content: content[:20] or "empty")
def test_what_is_no_tree_is_refused_in_a_sentence_that_names_the_file(content: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(content)
    with pytest.raises(UsageError, check=wording) as caught:
        msn(str(file))
    result = str(caught.value)
    assert result.startswith(str(file))
    assert len(result) < 400 + len(str(file))
    assert "\n" not in result
