"""A run that drafts from a corpus: what is recorded of it, and what the table warns of where it holds the answers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support import runs
from support.wording import wording

from specbench.models.loaded_model import ByteTokenizer

FIRST = 0x4E00  # letters that no prompt has, for ids: those of dummy weights are more than bytes


class Lettered:
    """The tokenizer of dummy weights where every id is a letter, so that texts are made of the ids they become."""

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        ids = [[ord(letter) - FIRST] if ord(letter) >= FIRST else list(letter.encode()) for letter in text]
        return {"input_ids": [number for some in ids for number in some]}

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(chr(FIRST + number) for number in ids)


@pytest.fixture(autouse=True)
def _letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ByteTokenizer, "__call__", Lettered.__call__)
    monkeypatch.setattr(ByteTokenizer, "decode", Lettered.decode)


TINY = ("run", "--model", "config:tiny", "--limit", 3, "--max-new-tokens", 48, "--no-score")
WARNED = "of its answers occur word for word in its corpus"


def test_a_corpus_of_the_targets_own_answers_is_reported(cli: Any, tmp_path: Path) -> None:
    plain: Path = cli.made(tmp_path / "plain", *TINY, "--method", "ar")
    answers = plain / "requests.jsonl"
    other = tmp_path / "other.txt"
    other.write_text("Nothing of all this was ever said by anybody. " * 40)
    rows = ("--method", "sam,sam,sam", "--set", f"sam#2.corpus={answers}", "--set", f"sam#3.corpus={other}")
    result = cli.ok(*TINY, *rows, "--out", tmp_path / "out", columns=200)
    (folder,) = (tmp_path / "out").iterdir()

    recorded = {spec["label"]: spec["weights"] for spec in runs.config_on_disk(folder)["methods"]}
    assert recorded["sam"] == recorded["ar"] == {}
    for label, file in (("sam#2", answers), ("sam#3", other)):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        assert recorded[label] == {"corpus": file.name, "corpus_sha256": content}

    lines = runs.requests_on_disk(folder)
    seen = {line["request_id"]: line["measures"].get("seen") for line in lines}
    assert {seen[f"sam#2|HumanEval/{n}|0"] for n in numbers(lines)} == {1.0}
    assert {seen[f"sam#3|HumanEval/{n}|0"] for n in numbers(lines)} == {0.0}
    assert {seen[f"sam|HumanEval/{n}|0"] for n in numbers(lines)} == {None}, "it has no corpus"
    forwards = {row: runs.rows_on_disk(folder)[row]["target_forwards"] for row in ("ar", "sam", "sam#2", "sam#3")}
    assert forwards["sam#2"] < forwards["ar"] / 2, "it reads them off"
    assert forwards["sam#3"] == forwards["sam"]
    words = {
        row: {word for line in lines if line["method"] == row for word in line["tokens"]["words"]} for row in recorded
    }
    assert ["corpus" in words[row] for row in ("sam", "sam#2", "sam#3")] == [False, True, False]

    reported = " ".join(result.out.split())
    assert reported.count(WARNED) == 1
    assert f"sam#2: 100% {WARNED}" in reported
    assert WARNED in " ".join(cli.ok("show", folder, columns=200).out.split())


def numbers(lines: Sequence[dict[str, Any]]) -> set[str]:
    return {line["prompt_id"].partition("/")[2] for line in lines}


def test_a_corpus_is_part_of_what_names_a_run(cli: Any, tmp_path: Path) -> None:
    """Another file under the same name is another run, and does not go on in the folder of the first."""
    file, digests = tmp_path / "mine.txt", list[str]()
    for text in ("one text of mine", "another one"):
        file.write_text(text)
        folder = cli.made(
            tmp_path / str(len(digests)), *TINY, "--method", "pld", "--set", f"pld.fallback=sam corpus={file}"
        )
        spec = runs.config_on_disk(folder)["methods"][1]
        assert spec["weights"]["corpus_sha256"] == hashlib.sha256(text.encode()).hexdigest(), "a half's is the pair's"
        digests.append(runs.config_on_disk(folder)["digest"])
    assert len(set(digests)) == 2


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("gone.txt", None),
        ("empty.jsonl", ""),
        ("words.jsonl", '{"words": "a"}\n'),
    ],
)
def test_a_corpus_that_is_none_ends_in_a_line(cli: Any, tmp_path: Path, name: str, content: str | None) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    result = cli(*TINY, "--method", "sam", "--set", f"sam.corpus={file}", "--out", tmp_path / "out")
    assert (result.code, result.out) == (2, "")
    assert wording(result.error)
    assert content is not None or result.err.count("\n") == 1, "before a model is loaded"
    assert not (tmp_path / "out").exists()
