"""Files of given answers: published formats of rows, their texts, and errors of invalid rows."""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.decoders import loaded
from support.models import byte_tokenizer, tiny_llama
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.training.data.answers import Asking
from specbench.training.data.given_answers import given_texts, has_answers, read_given
from specbench.training.data.sources import Found, Wanted, find

TEMPLATE = (
    "{% for each in messages %}[{{ each.role }}]{{ each.content }}"
    "{% if each.role == 'assistant' %}!</s>{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
PUBLISHED = [
    {"conversations": ["2+2?", "4"], "source": "lima"},
    {"conversations": ["2+2?", "4", "Sure?", "Yes"], "source": "multi_turn"},
    {"instruction": "Add.", "input": "2+2", "output": "4"},  # Alpaca
    {"instruction": "Say hi", "input": "", "output": "hi"},
    {"problem": "Print 4", "solution": "print(4)", "lang": "python", "raw_index": 3},  # Magicoder-OSS
    {"instruction": "Print 4", "response": "print(4)"},  # Magicoder-Evol
    {"messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4", "weight": 1},
    ]},
    {"id": "a_0", "conversations": [  # ShareGPT
        {"from": "system", "value": "Be brief."}, {"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"},
    ]},
    {"prompt": "def four():", "answer": " return 4"},
]  # fmt: skip
CHAT = [
    "[user]2+2?[assistant]",
    "[user]2+2?[assistant]4!</s>[user]Sure?[assistant]",
    "[user]Add.\n\n2+2[assistant]",
    "[user]Say hi[assistant]",
    "[user]Print 4[assistant]",
    "[user]Print 4[assistant]",
    "[system]Be brief.[user]2+2?[assistant]",
    "[system]Be brief.[user]2+2?[assistant]",
    "def four():",
]
ANSWERS = ["4", "Yes", "4", "hi", "print(4)", "print(4)", "4", "4", " return 4"]


def model(template: str | None = TEMPLATE, context: int | None = None) -> Any:
    made = loaded(tiny_llama(300), tokenizer=byte_tokenizer(template=template))
    return replace(made, stop_ids=frozenset({0}), context=context)


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def written(target: Any, file: Path) -> list[tuple[str, str]]:
    """Prompts and answers as text, special tokens too."""
    texts = given_texts(target, read_given(file, target.has_chat_template)[0])
    return [(target.tokenizer.decode(text.prompt), target.tokenizer.decode(text.answer)) for text in texts]


def test_published_rows_are_chats_that_end_as_the_template_ends_an_answer(tmp_path: Path) -> None:
    found = written(model(), write(tmp_path / "mine.jsonl", *PUBLISHED))
    assert [prompt for prompt, _ in found] == CHAT
    raw = len(PUBLISHED) - 1  # goes through no template: the tokenizer's own stop token
    assert [answer for _, answer in found] == [
        f"{answer}{'' if at == raw else '!'}</s>" for at, answer in enumerate(ANSWERS)
    ]


def test_without_a_template_they_are_plain_text(tmp_path: Path) -> None:
    found = written(model(template=None), write(tmp_path / "mine.jsonl", *PUBLISHED))
    assert found[1] == ("USER: 2+2?\nASSISTANT: 4\nUSER: Sure?\nASSISTANT:", " Yes</s>")
    assert found[-1] == ("def four():", " return 4</s>")


@pytest.mark.parametrize(
    "row",
    [
        "{",
        {"text": "x"},
        {"instruction": "x"},
        {"messages": [{"role": "assistant", "content": "a"}]},
        {"prompt": "x", "answer": " \n"},
        {"prompt": "x", "answer": 3},
    ],
)
def test_a_row_that_is_no_question_with_its_answer_is_one_sentence(row: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps(PUBLISHED[0]) + "\n\n" + (row if isinstance(row, str) else json.dumps(row)) + "\n")
    with pytest.raises(UsageError) as raised:
        read_given(file, chat=True)
    assert str(raised.value).startswith(f"{file} line 3 is damaged (")
    assert wording(raised.value)


def test_a_question_that_is_measured_on_is_refused_with_its_line(
    task_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (question, *_) = (json.loads(line)["question"] for line in (task_data / "gsm8k_test.jsonl").open())
    file = write(tmp_path / "mine.jsonl", PUBLISHED[0], {"instruction": question, "output": "18"})
    wanted = Wanted(sets=[str(file)], given=True, data_dir=task_data)
    with pytest.raises(UsageError, check=wording):
        find(model(), wanted, Asking(8, 2), tmp_path / "out", lambda done, total: None)


def test_what_editors_and_systems_put_into_files_changes_no_row(tmp_path: Path) -> None:
    rows = [{"prompt": "a\u2028b", "answer": "c\x85d\u2029"}, {"prompt": "Ä", "answer": " 4 "}]
    file = tmp_path / "mine.jsonl"
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    file.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([lines[0], "", lines[1]]).encode())
    found, digest = read_given(file, chat=True)
    assert [(row.prompt.text, row.answer, row.id) for row in found] == [
        ("a\u2028b", "c\x85d\u2029", "mine/1"), ("Ä", " 4 ", "mine/3"),
    ]  # fmt: skip
    assert digest == hashlib.sha256(file.read_bytes()).hexdigest()
    file.write_bytes('{"prompt": "Ä", "answer": "x"}'.encode("latin-1"))
    with pytest.raises(UsageError, check=wording):
        read_given(file, chat=True)
    assert not has_answers(file)


def test_json_lists_parquet_and_packed_lines_read_alike(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"instruction": "Add.", "input": "2+2", "output": "4"}, {"instruction": "Hi", "input": "", "output": "hi"}]
    write(tmp_path / "a.jsonl", *rows)
    (tmp_path / "b.json").write_text(json.dumps(rows))
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "d.parquet")
    found = [(read_given(file, chat=True), file) for file in sorted(tmp_path.iterdir())]
    assert len(found) == 4
    for (given, sha256), file in found:
        own = file.name.partition(".")[0]
        assert [(each.prompt.text, each.answer, each.id) for each in given] == [
            ("Add.\n\n2+2", "4", f"{own}/1"), ("Hi", "hi", f"{own}/2"),
        ]  # fmt: skip
        assert sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
        assert has_answers(file)


def test_they_are_a_source_of_texts_which_says_what_file_they_are_of(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", *PUBLISHED)

    def found(**more: Any) -> Found:
        wanted = Wanted(sets=[str(file)], given=True, **more)
        return find(model(), wanted, Asking(8, 2), tmp_path / "out", lambda done, total: None)

    whole, some = found(), found(limit=3)
    assert [text.id for text in whole.texts] == [f"mine/{line}" for line in range(1, len(PUBLISHED) + 1)]
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert whole.about == {"prompts": ["mine.jsonl"], "given": {"mine.jsonl": digest}}
    assert len({text.id for text in some.texts} & {text.id for text in whole.texts}) == len(some.texts) == 3
    assert some.about["limit"] == "3 of each set, sampled with seed 0"
    assert not (tmp_path / "out").exists()  # nothing was asked
