"""FastChat's files: what is written is what its own scripts write, and its judgments come back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from support import engines
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.evals.judge.judge import questions
from specbench.evals.judge.mt_bench_files import export, import_judgments
from specbench.evals.task import Question
from specbench.results.judgments import read_judgments, scores

TEXTS: engines.Texts = {
    "ar": {"81": ["A travel blog. ", "Aloha."], "111": ["12", "13"]},
    "jacobi#2": {"81": ["A travel blog.", "Aloha!"], "111": ["12", "14"]},
}
CREATED = datetime(2026, 1, 2, tzinfo=timezone.utc)
KEYS = {"question_id", "answer_id", "model_id", "choices", "tstamp"}


@pytest.fixture(scope="module")
def asked(task_data: Path) -> Mapping[str, Question]:
    return questions(engines.judged_config(TEXTS).task, task_data)


def exported(folder: Path, asked: Mapping[str, Question]) -> dict[str, list[dict[str, Any]]]:
    paths = export(folder, engines.judged_config(TEXTS), engines.records(TEXTS), asked, CREATED)
    return {str(p.relative_to(folder)): [json.loads(line) for line in p.read_text().splitlines()] for p in paths}


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_a_file_per_method_with_fastchats_fields(tmp_path: Path, asked: Mapping[str, Question]) -> None:
    files = exported(tmp_path, asked)
    assert set(files) == {"model_answer/m-ar.jsonl", "model_answer/m-jacobi-2.jsonl"}
    for name, rows in files.items():
        assert [row["question_id"] for row in rows] == [81, 111]
        for row in rows:
            assert row.keys() == KEYS
            assert row["model_id"] == Path(name).stem
            assert row["tstamp"] == CREATED.timestamp()
    first = files["model_answer/m-ar.jsonl"][0]
    assert first["choices"] == [{"index": 0, "turns": ["A travel blog.", "Aloha."]}]
    assert len({row["answer_id"] for rows in files.values() for row in rows}) == 4
    assert exported(tmp_path, asked) == files  # and again, over the first


def test_repeats_are_choices_and_unfinished_ones_are_left_out(tmp_path: Path, asked: Mapping[str, Question]) -> None:
    config = engines.judged_config(TEXTS).model_copy(update={"repeats": 2})
    records = [r for r in engines.records(TEXTS) if r.method == "ar" and r.request_id != "ar|111|0|2"]
    records += [engines.record("ar", "81", turn, f"again {turn}", repeat=1) for turn in (1, 2)]
    (path,) = export(tmp_path, config, records, asked, CREATED)
    (row,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert [choice["turns"] for choice in row["choices"]] == [["A travel blog.", "Aloha."], ["again 1", "again 2"]]
    assert [choice["index"] for choice in row["choices"]] == [0, 1]


def test_forced_conversations_are_not_exported_as_the_methods_own(tmp_path: Path, task_data: Path) -> None:
    forced = questions(engines.judged_config(TEXTS, history="ar").task, task_data)
    with pytest.raises(UsageError, match="history=own"):
        exported(tmp_path, forced)
    assert list(tmp_path.iterdir()) == []


def test_judgments_of_exported_answers_come_back(
    tmp_path: Path, asked: Mapping[str, Question], task_data: Path
) -> None:
    files = exported(tmp_path, asked)
    rows = engines.gen_judgment(files["model_answer/m-ar.jsonl"], asked, task_data, 7)
    rows += engines.gen_judgment(files["model_answer/m-jacobi-2.jsonl"], asked, task_data, 5)
    rows[0]["score"], rows[0]["judgment"] = -1, "no rating"
    strangers = [{**rows[0], "model": "vicuna-13b-v1.2"}]
    file = write(tmp_path / "gpt-4_single.jsonl", [*rows, *strangers])
    answers, config = engines.rated(TEXTS, asked, task_data), engines.judged_config(TEXTS)
    assert import_judgments(tmp_path, file, config, answers) == (8, 0)
    found = {judgment.request: judgment for judgment in read_judgments(tmp_path)}
    assert found["ar|81|0"].rating is None
    assert found["ar|81|0|2"].rating == 7
    assert found["jacobi#2|111|0|2"].rating == 5
    assert {(j.judge.id, j.judge.kind) for j in found.values()} == {("gpt-4", "import")}
    assert found["ar|111|0"].prompt == "single-math-v1"
    assert import_judgments(tmp_path, file, config, answers) == (0, 0)  # nothing twice
    assert len((tmp_path / "judgments.jsonl").read_text().splitlines()) == 8


def test_a_judgment_of_another_text_is_not_ours(tmp_path: Path, asked: Mapping[str, Question], task_data: Path) -> None:
    rows = engines.gen_judgment(exported(tmp_path, asked)["model_answer/m-ar.jsonl"], asked, task_data, 7)
    rows[0]["user_prompt"] = rows[0]["user_prompt"].replace("A travel blog.", "A poem.")
    file = write(tmp_path / "gpt-4_single.jsonl", rows)
    answers, config = engines.rated(TEXTS, asked, task_data), engines.judged_config(TEXTS)
    assert import_judgments(tmp_path, file, config, answers) == (3, 1)
    (tmp_path / "judgments.jsonl").unlink()
    write(file, rows[:1])
    with pytest.raises(UsageError, check=wording):
        import_judgments(tmp_path, file, config, answers)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "vicuna"},
        {"score": None},
        {"judge": "gpt-4"},
        {"user_prompt": None},
        {"turn": "one"},
    ],
)
def test_a_file_that_is_not_about_this_run_or_damaged_is_one_line(
    tmp_path: Path, asked: Mapping[str, Question], task_data: Path, change: dict[str, Any]
) -> None:
    (row, *_) = engines.gen_judgment(exported(tmp_path, asked)["model_answer/m-ar.jsonl"], asked, task_data, 7)
    row = {name: value for name, value in {**row, **change}.items() if value is not None}
    file = write(tmp_path / "x.jsonl", [row])
    with pytest.raises(UsageError, check=wording) as error:
        import_judgments(tmp_path, file, engines.judged_config(TEXTS), engines.rated(TEXTS, asked, task_data))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "judgments.jsonl").exists()


@pytest.mark.parametrize("score", [0, 0.99, 10.01, 11, 85, 1e308, -1, -1e308])
def test_a_score_off_the_scale_is_no_rating(
    tmp_path: Path, asked: Mapping[str, Question], task_data: Path, score: float
) -> None:
    (row, *_) = engines.gen_judgment(exported(tmp_path, asked)["model_answer/m-ar.jsonl"], asked, task_data, 7)
    file = write(tmp_path / "x.jsonl", [{**row, "score": score}])
    answers, config = engines.rated(TEXTS, asked, task_data), engines.judged_config(TEXTS)
    assert import_judgments(tmp_path, file, config, answers) == (1, 0)
    (kept,) = read_judgments(tmp_path)
    assert (kept.rating, scores([kept], ["ar"])[0]["methods"]["ar"]["score"]) == (None, None)
