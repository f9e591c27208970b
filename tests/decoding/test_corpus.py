"""Texts of a corpus file, its record, and the figure on answers that the corpus contains."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.asserting import refusal
from support.decoders import decided
from support.wording import wording

from specbench.common import UsageError
from specbench.decoding import corpus as texts
from specbench.decoding.corpus import SEEN, SEGMENT, check_corpus, read_corpus
from specbench.decoding.protocol import Context
from specbench.methods.sam import corpus, decoder
from specbench.methods.sam.corpus import NO_TOKEN, Corpus
from specbench.models.loaded_model import ByteTokenizer
from specbench.planning.methods import plan_methods

VOCAB = 300


def lines(*rows: Any) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("a.jsonl", lines({"text": "one"}, {"text": " \n"}, {"text": "two"}), ["one", "two"]),
        ("a.jsonl", lines({"request_id": "ar|x|0", "text": "an answer", "output_ids": [1]}), ["an answer"]),
        ("a.txt", "one\n\ntwo\n", ["one\n\ntwo\n"]),
        ("a.md", '{"text": "one"}\n', ['{"text": "one"}\n']),
        ("no suffix", "ö", ["ö"]),
    ],
)
def test_texts_are_lines_of_jsonl_or_a_whole_file(name: str, content: str, found: list[str], tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(content)
    check_corpus(str(file), "sam")
    read = read_corpus(str(file))
    assert read.texts == found
    assert read.weights == {"corpus": name, "corpus_sha256": hashlib.sha256(content.encode()).hexdigest()}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", b'{"text": "one"}\n{"words": "two"}\n', ["a.jsonl line 2", "'text'"]),
        ("a.jsonl", b"", ["a.jsonl"]),
        ("a.txt", b"\xff\xfe", ["a.txt", "UTF-8"]),
    ],
)
def test_a_file_that_is_no_corpus_is_refused_in_a_line(
    name: str, content: bytes, says: list[str], tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    message = refusal(UsageError, read_corpus, str(file))
    assert all(part in message for part in [*says, "give a .txt file, or a .jsonl file with a text in each line"]), (
        message
    )


@pytest.mark.parametrize("path", ["gone.txt", ".", "", "a\0b"])
def test_what_is_not_there_is_refused_before_a_model_is_loaded(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert wording(refusal(UsageError, check_corpus, path, "sam"))
    if path:
        (_, made) = plan_methods(["sam"], [f"sam.corpus={path}"])
        assert wording(refusal(UsageError, made.check, "config:tiny"))


# ------------------------------------------------------------------ in the target's tokens


def target(ends: int | None = None) -> Any:
    tokenizer: Any = ByteTokenizer()
    tokenizer.eos_token_id = ends
    kept: dict[Any, Any] = {}

    def once(key: Any, make: Any) -> Any:
        if key not in kept:
            kept[key] = make()
        return kept[key]

    return SimpleNamespace(tokenizer=tokenizer, once=once)


def test_texts_are_joined_in_the_targets_tokens_and_the_end_of_text_is_between_them(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(lines({"text": "ab"}, {"text": "c"}))
    for ends, separator in ((None, NO_TOKEN), (0, 0), (257, 257)):
        found = corpus.load(str(file), target(ends))
        assert found.automaton.tokens == [97, 98, separator, 99, separator]
        assert found.separator == separator
        assert found.weights == read_corpus(str(file)).weights


def test_rows_of_one_corpus_read_it_once_and_those_of_another_have_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def reading(path: str) -> texts.Texts:
        read.append(path)
        return read_corpus(path)

    monkeypatch.setattr(corpus, "read_corpus", reading)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"text of {name}")
    model, (a, b) = target(), (str(tmp_path / "a.txt"), str(tmp_path / "b.txt"))
    options = [decoder.Options(corpus=path, draft_length=length) for path, length in ((a, 4), (a, 8), (b, 4))]
    shared = [decoder.Decoder.prepare(each, model) for each in options]
    assert read == [a, b]
    assert shared[0] is shared[1]
    assert [decoder.Decoder.weights(each)["corpus"] for each in shared] == ["a.txt", "a.txt", "b.txt"]
    assert decoder.Decoder.prepare(decoder.Options(), model) is None
    assert decoder.Decoder.weights(None) == {}


def test_a_corpus_of_too_many_tokens_is_refused_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "MOST_TOKENS", 1000)
    file = tmp_path / "a.txt"
    file.write_text("x" * 1000)
    assert len(corpus.load(str(file), target()).automaton.tokens) == 1001
    file.write_text("x" * 1001)
    assert wording(refusal(UsageError, corpus.load, str(file), target()))


# ------------------------------------------------------------------ how much of an answer it holds


def seen(held: Corpus | None, prompt: Sequence[int], answer: Sequence[int], kept: int | None = None) -> Any:
    """Return the reported share of an answer that a corpus contains; it comes in chunks, some of one token."""
    rng = random.Random(len(answer))
    made = decoder.Decoder(decoder.Options(), Context(VOCAB, 0, rng, shared=held))
    made.begin(prompt)
    at = 0
    while at < len(answer):
        size = 1 if at == 0 else rng.choice([1, 1, 3])
        made.observe(decided(list(answer[at : at + size]), range(len(answer[at : at + size]))))
        at += size
    return made.measures(len(answer) if kept is None else kept, False).get(SEEN)


def plainly(texts: Sequence[Sequence[int]], answer: Sequence[int]) -> float:
    """The same by the words of its description: tokens in strings of 16 or more that a text or its end has."""
    inside = set[int]()
    joined = [token for text in texts for token in (*text, NO_TOKEN)]
    for start in range(len(answer) - SEGMENT + 1):
        string = list(answer[start : start + SEGMENT])
        if any(joined[at : at + SEGMENT] == string for at in range(len(joined))):
            inside.update(range(start, start + SEGMENT))
    return len(inside) / len(answer)


def test_what_the_prompt_shares_with_it_is_not_the_answers() -> None:
    prompt, answer = list(range(30)), list(range(30, 60))
    held = corpus.of([[*prompt, *answer[:10]]], NO_TOKEN)
    assert seen(held, prompt, answer) == 0.0, "ten tokens of its own are no string of 16"
    held = corpus.of([[*prompt, *answer[:20]]], NO_TOKEN)
    assert seen(held, prompt, answer) == pytest.approx(20 / 30)
    assert seen(corpus.of([prompt], NO_TOKEN), prompt, answer) == 0.0


def test_what_was_cut_after_the_answer_does_not_count() -> None:
    answer = list(range(40))
    held = corpus.of([answer[20:]], NO_TOKEN)
    for kept, share in ((40, 0.5), (30, 0.0), (36, 16 / 36)):
        assert seen(held, [99], answer, kept=kept) == pytest.approx(share)


def test_it_is_the_share_that_a_plain_search_finds() -> None:
    shares = []
    for seed in range(40):
        rng = random.Random(seed)
        answer = rng.choices(range(30), k=rng.randint(20, 70))
        held = []
        for _ in range(3):  # parts of the answer between other things
            start, length = rng.randrange(len(answer)), rng.choice([8, 15, 16, 17, 40])
            held.append([*rng.choices(range(30), k=5), *answer[start : start + length], *rng.choices(range(30), k=5)])
        shares.append(plainly(held, answer))
        assert seen(corpus.of(held, NO_TOKEN), [299], answer) == pytest.approx(shares[-1])
    assert min(shares) == 0.0
    assert max(shares) > 0.8
    assert len({round(share, 3) for share in shares}) > 15
