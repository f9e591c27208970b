"""Raw text: how it is cut into prompts and the texts that follow them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.tasks.raw_text.task import Options, Task, passages

TEXT = " = A Title = \n\nOne two three ,  four five\n six seven eight nine ten eleven twelve thirteen fourteen\n" * 3


def test_passages_add_up_to_the_text() -> None:
    found = passages(TEXT, 4)
    assert len(found) == len(TEXT.split()) // 8
    assert [word for pair in found for word in "".join(pair).split()] == TEXT.split()[: 8 * len(found)]
    assert all(len(part.split()) == 4 for pair in found for part in pair)
    assert found[0] == ("= A Title =", " \n\nOne two three ,"), "blanks stay with the word after them"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("wiki.txt", TEXT),
        ("wiki.jsonl", "".join(json.dumps({"text": line}) + "\n" for line in TEXT.splitlines(keepends=True))),
        ("ptb.jsonl", "".join(json.dumps({"sentence": line}) + "\n" for line in TEXT.splitlines())),
    ],
)
def test_text_and_rows_give_the_same_prompts(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    task = Task(Options(file=str(tmp_path / name), words=4))
    prompts = task.prompts(chat=True)
    assert [(one.text, one.reference, one.chat, one.stops) for one in prompts] == [
        (*pair, False, ()) for pair in passages(TEXT, 4)
    ]
    assert (task.options.file, len(task.options.sha256)) == (name, 64)


def test_a_short_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("too short\n")
    with pytest.raises(UsageError, check=wording):
        Task(Options(file=str(tmp_path / "short.txt"), words=4))
    with pytest.raises(UsageError, check=wording):
        Task(Options())
