"""Data files of tasks that take any file with the right rows: what they need is checked in every format, no more."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_data
from small_data import mathematics, speed
from support.wording import wording

from specbench.common import registry
from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.evals.data import DATA_DIR, manifest
from specbench.tasks.aime25 import task as aime25
from specbench.tasks.codesearchnet import task as codesearchnet
from specbench.tasks.math import task as math
from specbench.tasks.speed_bench import task as speed_bench

Row = dict[str, Any]

# What reads the rows, rows, the fields that are needed, the field that must be unlike in every row.
READERS: dict[str, tuple[Callable[[Path], list[Any]], list[Row], set[str], str]] = {
    "aime25": (aime25.load, mathematics.AIME, {"problem", "answer"}, "id"),
    "math": (math.load, mathematics.MATH, {"problem", "solution", "level", "type"}, ""),
    "codesearchnet": (
        codesearchnet.load, speed.FUNCTIONS, {"func_documentation_string", "func_code_string", "language"}, "",
    ),
    "codesearchnet's own": (codesearchnet.load, speed.OWN_FUNCTIONS, {"docstring", "code", "language"}, ""),
    "speed-bench": (speed_bench.load, speed.QUALITATIVE, {"question_id", "category", "turns"}, "question_id"),
    "speed-bench, throughput": (
        speed_bench.load, speed.THROUGHPUT, {"question_id", "category", "turns"}, "question_id",
    ),
}  # fmt: skip


def parquet(rows: list[Row]) -> bytes:
    pytest.importorskip("pyarrow", reason="needs pip install 'specbench-llm[eval]'")
    import pyarrow.parquet

    buffer = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
    return bytes(buffer.getvalue().to_pybytes())


def lines(rows: list[Row]) -> bytes:
    return small_data.lines(rows).encode()


FORMATS: dict[str, Callable[[list[Row]], bytes]] = {
    "x.jsonl": lines, "x.jsonl.gz": lambda rows: gzip.compress(lines(rows)),
    "x.json": lambda rows: json.dumps(rows).encode(), "x.parquet": parquet,
}  # fmt: skip


def written(folder: Path, rows: list[Row], name: str = "x.jsonl") -> Path:
    path = folder / name
    path.write_bytes(FORMATS[name](rows))
    return path


def refused(name: str, path: Path, message: str) -> None:
    with pytest.raises(UsageError, check=wording) as error:
        READERS[name][0](path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", READERS)
def test_all_formats_have_the_same_rows_and_further_columns_are_let_through(tmp_path: Path, name: str) -> None:
    read, rows, needed, _ = READERS[name]
    found = [read(written(tmp_path, rows, format)) for format in FORMATS]
    assert len(found[0]) == len(rows)
    assert all(other == found[0] for other in found)
    bare = [{key: value for key, value in row.items() if key in {*needed, "id", "sub_category"}} for row in rows]
    assert read(written(tmp_path, bare)) == found[0]
    assert read(written(tmp_path, [{**row, "more": [1, {"x": None}]} for row in rows])) == found[0]


@pytest.mark.parametrize("name", READERS)
def test_a_row_without_what_is_needed_is_named(tmp_path: Path, name: str) -> None:
    _, (first, second, *_), needed, unique = READERS[name]
    for field in sorted(needed):
        without = {key: value for key, value in second.items() if key != field}
        path = written(tmp_path, [first, without])
        # A field that has two names is missed by the first of them.
        refused(name, path, r"x\.jsonl line 2 is damaged \(field '\w+': Field required")
        for bad in (None, 3.5, {"x": 1}, "" if field != "problem" else None):
            refused(name, written(tmp_path, [first, {**second, field: bad}]), r"line 2 is damaged \(field '\w+")
    if unique:
        refused(name, written(tmp_path, [first, {**second, unique: first[unique]}]), "line 2.*is there twice")
        path = written(tmp_path, [first, {**second, unique: first[unique]}], "x.parquet")
        refused(name, path, r"x\.parquet row 2.*is there twice")


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_such_file_is_refused(tmp_path: Path, name: str) -> None:
    rows = READERS[name][1]
    for format, make in FORMATS.items():
        path = written(tmp_path, rows, format)
        path.write_bytes(make(rows)[:-20])
        refused(name, path, "truncated|not JSON|not whole Parquet")
    (tmp_path / "x.jsonl").write_bytes(lines(rows[:1]) + b'{"problem": "\xff"}\n')
    refused(name, tmp_path / "x.jsonl", "line 2 is damaged .not UTF-8")
    for empty in (b"", b"\n\n"):
        (tmp_path / "x.jsonl").write_bytes(empty)
        refused(name, tmp_path / "x.jsonl", r"is damaged \(it has no \w+\)")
    refused(name, written(tmp_path, [], "x.json"), r"is damaged \(it has no \w+\)")
    (tmp_path / "x.jsonl").write_bytes(b"[1]\n")
    refused(name, tmp_path / "x.jsonl", "line 1 is damaged .not a JSON object")


def test_values_that_published_rows_have_in_other_spellings(tmp_path: Path) -> None:
    spelt = {"70": 70, 70: 70, "070": 70, "007": 7, "336^\\circ": 336, "$336^{\\circ}$": 336, " 12 ": 12, "0": 0}
    for answer, value in spelt.items():
        row = {"question": "What is it?", "answer": answer}
        (found,) = aime25.load(written(tmp_path, [row]))
        assert (found.problem, found.answer) == ("What is it?", value)
    for level, number in {"Level 1": 1, "Level 5": 5, "Level ?": 0, 3: 3, "4": 4}.items():
        (made,) = math.load(written(tmp_path, [{**mathematics.MATH[0], "level": level}]))
        assert made.level == number
    named = {**mathematics.MATH[0], "subject": mathematics.MATH[0]["type"]}
    del named["type"]
    assert math.load(written(tmp_path, [named])) == math.load(written(tmp_path, [mathematics.MATH[0]]))
    for solution, answer in {
        "$\\boxed{2}$ and $\\boxed{\\frac{1}{2}}$": "\\frac{1}{2}", "It is $\\boxed 9$.": "9",
        "So $x=\\boxed \\frac{1}{2}$.": "\\frac{1}{2}", "\\fboxed{7}": "7",
    }.items():  # fmt: skip
        (made,) = math.load(written(tmp_path, [{**mathematics.MATH[0], "solution": solution}]))
        assert made.answer == answer


def test_a_question_without_its_text_says_what_fills_it_in(tmp_path: Path) -> None:
    assert speed.PLACEHOLDER == speed_bench.PLACEHOLDER
    first, second, *_ = speed.QUALITATIVE
    for turns in ([speed.PLACEHOLDER], [f"{speed.PLACEHOLDER}\n\nSum up: {{article}}"], ["Hello.", speed.PLACEHOLDER]):
        for format, where in (("x.jsonl", "line 2"), ("x.parquet", "row 2")):
            with pytest.raises(UsageError) as error:
                speed_bench.load(written(tmp_path, [first, {**second, "turns": turns}], format))
            result = str(error.value)
            assert f"{tmp_path / format} {where} (question {second['question_id']})" in result
            assert result.endswith("examples/specdec_bench: python prepare_data.py --dataset speed --config all")


# --------------------------------------------------------------------------------------------------------- which file


TASKS: dict[str, tuple[Row, list[Row]]] = {
    "aime25": ({"style": "chat"}, mathematics.AIME), "codesearchnet": ({}, speed.FUNCTIONS),
    "speed-bench": ({}, speed.QUALITATIVE), "speed-bench 1k": ({"split": "throughput_1k"}, speed.THROUGHPUT),
    "math": ({"style": "chat"}, mathematics.MATH),
}  # fmt: skip


@pytest.mark.parametrize("name", TASKS)
def test_any_of_the_names_is_found_and_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name in ("aime25", "math"):
        pytest.importorskip("math_verify", reason="needs pip install 'specbench-llm[eval]'")
    card, (options, rows) = registry.task(name.split()[0]), TASKS[name]
    module = card.load()
    file = next(
        file
        for file in manifest(card.folder / "task.toml")
        if not options.get("split") or file.name.startswith(options["split"])
    )
    assert file.sha256 is None
    monkeypatch.delenv(DATA_DIR, raising=False)
    with pytest.raises(UsageError, check=wording):
        module.Task(module.Options(**options), tmp_path)
    if file.hub is None and name != "math":
        with pytest.raises(EnvironmentRefused, match=DATA_DIR):
            module.Task(module.Options(**options))
    for other in file.names:
        folder = tmp_path / other.replace("/", "-")
        path = folder / other
        path.parent.mkdir(parents=True)
        path.write_bytes(FORMATS["x." + other.partition(".")[2]](rows))
        made = module.Task(module.Options(**options), folder)
        assert len(made.prompts(chat=True)) == len(rows)
