"""Runs with penalties, biases and a grammar: what is recorded, resumed, compared and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import models, runs

from specbench.runner.grades import lossless

RUN = ("run", "--task", "prompts", "--method", "jacobi,pld", "--max-new-tokens", 12, "--no-score")


@pytest.fixture
def asked(tmp_path: Path) -> tuple[Any, ...]:
    """A model with a tokenizer of bytes, and conversations of two turns."""
    file = tmp_path / "ask.jsonl"
    file.write_text('{"turns": ["Say yes.", "And again?"]}\n{"turns": ["One", "Two"]}\n')
    return (*RUN, "--model", models.save(tmp_path / "model"), "--data-file", file, "--out", tmp_path / "out")


def folders(asked: tuple[Any, ...]) -> list[Path]:
    return sorted(asked[-1].glob("[!.]*"))


def verdicts(folder: Path) -> dict[str, Any]:
    return {label: row["lossless"]["verdict"] for label, row in runs.rows_on_disk(folder).items()}


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_penalised_conversations_are_ar(cli: Any, asked: tuple[Any, ...], temperature: float) -> None:
    flags = ("--repetition-penalty", 1.4, "--frequency-penalty", 0.5, "--min-p", 0.01, "--logit-bias", "a=3")
    assert cli(*asked, *flags, "--temperature", temperature, "--concurrency", 2).code == 0
    (folder,) = folders(asked)
    sampling = runs.config_on_disk(folder)["sampling"]
    assert (sampling["repetition_penalty"], sampling["logit_bias"]) == (1.4, {"a": 3.0})
    assert {verdicts(folder)[label] for label in ("jacobi", "pld")} == {"exact"}
    lines = runs.requests_on_disk(folder)
    assert {line["turn"] for line in lines} == {1, 2}
    assert cli(*asked, *flags, "--temperature", temperature, "--concurrency", 2).code == 0
    assert folders(asked) == [folder]  # the same run


def test_another_grammar_is_another_run(cli: Any, asked: tuple[Any, ...], tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    grammar = tmp_path / "answer.regex"
    for number, text in enumerate(("(yes|no)+!", "(yes|no)+!", "[0-9]{3}"), 1):
        grammar.write_text(text)
        assert cli(*asked, "--grammar", grammar).code == 0
        assert len(folders(asked)) == (1 if number < 3 else 2)
    first, second = sorted(
        folders(asked), key=lambda each: len(runs.config_on_disk(each)["sampling"]["grammar"]["text"])
    )
    assert {line["text"][:3] for line in runs.requests_on_disk(second)} <= {"yes", "no" + "y", "non", "no!"}
    assert all(line["text"].isdecimal() and len(line["text"]) == 3 for line in runs.requests_on_disk(first))
    assert cli("compare", first, second).code == 2


def test_a_divergence_under_penalties_is_graded_after_its_prompt(
    cli: Any, asked: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scores at a divergence are those of AR there, whose output begins after the prompt."""
    seen: list[float] = []
    graded = lossless.Grader._distances

    def at_every_token(self: Any, ids: Any, prompt: int) -> dict[int, float]:
        found = graded(self, ids, prompt)
        seen.append(found.get(expected[len(ids) - prompt], float("inf")))
        return found

    monkeypatch.setattr(lossless.Grader, "_distances", at_every_token)
    expected: list[int] = []
    real = lossless.Grader.grade

    def grade(self: Any, prompt_id: str, prompt: Any, ar: Any, other: Any) -> Any:
        expected[:] = ar
        for at in range(len(ar)):
            self._distances([*prompt, *ar[:at]], len(prompt))
        return real(self, prompt_id, prompt, ar, other)

    monkeypatch.setattr(lossless.Grader, "grade", grade)
    assert cli(*asked, "--presence-penalty", 1.5, "--frequency-penalty", 1.5).code == 0
    assert seen
    assert set(seen) == {0.0}  # AR's token is always the best one


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (("--logit-bias", "two words=1"), "--logit-bias"),
        (("--logit-bias", "999999=1"), "--logit-bias"),
        (("--logit-bias", "a=1", "--logit-bias", "66=1"), "--logit-bias"),
    ],
)
def test_biases_that_the_model_lacks_are_refused(cli: Any, asked: tuple[Any, ...], more: Any, named: str) -> None:
    found = cli(*asked, *more)
    assert found.code == 2
    assert named in found.err


def test_a_grammar_without_texts_is_refused(cli: Any, asked: tuple[Any, ...], tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    grammar = tmp_path / "none.lark"
    grammar.write_text("start: A\nA: /a/ & /b/\n")
    found = cli(*asked, "--grammar", grammar)
    assert found.code == 2
    assert "--grammar" in found.err


def test_a_model_without_words_has_no_grammar(cli: Any, asked: tuple[Any, ...], tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    grammar = tmp_path / "answer.regex"
    grammar.write_text("a")
    found = cli(*RUN, "--model", "config:tiny", *asked[len(RUN) + 2 :], "--grammar", grammar)
    assert found.code == 2
    assert "--grammar" in found.err
