"""``show --request`` with ``--trajectory`` and ``--round`` on a traced run, against its lines of JSON read plainly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support import oracles, runs
from support.wording import wording

METHODS = "jacobi,cllm,jf,lookahead,pld,msn,jetspec"
KEY = "jacobi|HumanEval/0|0"


def made(cli: Any, out: Path, *more: object) -> Path:
    argv = ("--model", "config:tiny", "--max-new-tokens", 24, "--limit", 2, "--first", "--no-score")
    return Path(cli.made(out, "run", *argv, *more))


@pytest.fixture(scope="module")
def run(cli: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    small = ("--set", "jacobi.block_size=6", "--set", "cllm.block_size=6", "--set", "jf.block_size=6")
    head = ("--head", "random", "--set", "jetspec.budget=12", "--set", "pld.branches=3")
    return made(cli, tmp_path_factory.mktemp("runs"), "--method", METHODS, "--trace", *small, *head)


def drafting(run: Path) -> list[dict[str, Any]]:
    return [line for line in runs.requests_on_disk(run) if any(draft["ids"] for draft in line["tokens"]["drafts"])]


def test_every_trajectory_of_a_stored_run_is_what_its_ids_say(cli: Any, run: Path) -> None:
    lines = drafting(run)
    assert {line["method"] for line in lines} >= {"jacobi", "cllm", "jf", "lookahead", "jetspec", "msn"}
    seen = set()
    for line in lines:
        (found,) = json.loads(cli.ok("show", run, "--request", line["request_id"], "--trajectory", "--json").out)
        cells = [[(c["position"], c["row"], c["id"], c["mark"]) for c in s["cells"]] for s in found["states"]]
        assert cells == [[tuple(cell) for cell in state] for state in oracles.states(line)]
        assert [state["emitted"] for state in found["states"]] == line["accepted_lengths"]
        assert "".join(found["texts"]) == line["text"] + line["tokens"]["tail"]
        seen |= {cell[-1] for state in cells for cell in state}
    assert {"root", "accepted", "right", "wrong"} <= seen


def test_only_what_has_scores_records_them_and_a_round_shows_what_was_missed(cli: Any, run: Path) -> None:
    scored = {line["method"] for line in drafting(run) if any("scores" in draft for draft in line["tokens"]["drafts"])}
    assert scored == {"jetspec"}
    missed = 0
    for line in drafting(run):
        for number in range(1, len(line["tokens"]["drafts"]) + 1, 5):
            result = cli.ok("show", run, "--request", line["request_id"], "--round", number, "--json")
            (found,) = json.loads(result.out)
            rows = {row["row"] for row in found["rows"] if row["missed"]}
            assert rows == oracles.missed(line, number)
            assert [row["id"] for row in found["rows"][1:]] == line["tokens"]["drafts"][number - 1]["ids"]
            missed += len(rows)
    assert missed


@pytest.mark.parametrize("view", [("--trajectory",), ("--round", 2)], ids=["trajectory", "round"])
def test_a_picture_is_written_instead(cli: Any, run: Path, tmp_path: Path, view: tuple[object, ...]) -> None:
    out = tmp_path / "deep" / "view.SVG"
    result = cli.ok("show", run, "--request", "HumanEval/0", "--method", "jacobi", *view, "--out", out)
    assert (result.out, result.err) == (f"{out}\n", "")
    assert ElementTree.parse(out).getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("--trajectory",), "--trajectory goes with --request ID; add it, or leave --trajectory out"),
        (("--round", 2), "--round goes with --request ID; add it, or leave --round out"),
        (("--out", "x.svg"), "--out goes with --race A,B, --trajectory or --round K; add one"),
        (("--request", KEY, "--out", "x.svg"), "--out goes with --race A,B, --trajectory or --round K; add one"),
        (
            ("--request", KEY, "--trajectory", "--out", "x.png"),
            "--out of --trajectory draws SVG; give x.png the suffix .svg",
        ),
        (("--request", KEY, "--round", 1, "--out", "x"), "--out of --round draws SVG; give x the suffix .svg"),
        (("--request", KEY, "--trajectory", "--round", 1), "--trajectory and --round are views of their own; look"),
        (("--request", KEY, "--trajectory", "--race", "ar,jf"), "--race and --trajectory are views of their own; look"),
        (("--request", KEY, "--round", 99), f"{KEY} has no forward 99; name one of 1 to "),
        (("--request", KEY, "--round", 0), f"{KEY} has no forward 0; name one of 1 to "),
        (("--request", "ar|HumanEval/0|0", "--trajectory"), "ar drafted nothing for ar|HumanEval/0|0; name a method"),
        (("--request", "HumanEval/0", "--round", 1), "has 7 answers with drafts; name one by --method (jacobi, cllm"),
        (("--request", "HumanEval/0", "--trajectory", "--out", "x.svg"), "has 7 answers with drafts; name one by"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(map(str, value)),
)
def test_mistakes_are_one_sentence_each(cli: Any, run: Path, argv: tuple[object, ...], says: str) -> None:
    error = cli.refused(2, "show", run, *argv)
    assert wording(error)
    assert len(error.splitlines()) == 1
