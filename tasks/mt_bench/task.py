"""MT-Bench (Zheng et al. 2023, arXiv 2306.05685): 80 questions, each with a second turn about the first answer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from specbench.common import Options as OptionsBase
from specbench.common import Prompt, UsageError, option
from specbench.evals import (
    STYLE_HELP,
    Question,
    Style,
    Unscored,
    build_dialogue,
    by_field,
    choose_style,
    manifest,
    read_rows,
    resolve_file,
)

Category = Literal["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"]

# FastChat, llm_judge/common.py; the other categories have 0.
OFFICIAL_TEMPERATURES: dict[str, float] = {"writing": 0.7, "roleplay": 0.7, "stem": 0.1, "humanities": 0.1}
NEED_REFERENCE = frozenset({"math", "reasoning", "coding"})


class Options(OptionsBase):
    """Options of the task."""

    style: Style = option("auto", help=STYLE_HELP)
    history: Literal["own", "ar"] = option(
        "own",
        help="answers in the history of turn two: the method's own, or AR's, so that all methods get the same input",
    )
    temperatures: Literal["zero", "official"] = option(
        "zero",
        help="zero: the run's --temperature for all; official: 0.7 writing, roleplay, 0.1 stem, humanities, else 0",
    )


class Row(BaseModel):
    """A row of FastChat's question.jsonl. ``reference`` is not used: judges get GPT-4's answers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    question_id: int
    category: Category
    turns: list[str] = Field(min_length=2, max_length=2)
    reference: list[str] | None = None


class Choice(BaseModel):
    """An answer in FastChat's format."""

    model_config = ConfigDict(strict=True)

    index: int
    turns: list[str]


class Reference(BaseModel):
    """A row of FastChat's reference_answer/gpt-4.jsonl."""

    model_config = ConfigDict(strict=True)

    question_id: int
    choices: list[Choice] = Field(min_length=1)


class Task(Unscored):
    """The 80 questions. No verdict: :mod:`specbench.evals.judge` rates the answers."""

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        """``data_dir``: folder that holds mt_bench_question.jsonl; None searches the usual places."""
        self.options = options
        self._data_dir = data_dir
        questions, self._references = manifest(Path(__file__).with_name("task.toml"))
        self._rows = load(resolve_file(questions, data_dir))

    def prompts(self, chat: bool) -> list[Prompt]:
        """All questions in data order."""
        style = choose_style(self.options.style, chat, "mt-bench")
        self.options = self.options.model_copy(update={"style": style})
        return [
            build_dialogue(
                str(row.question_id),
                row.turns,
                style,
                forced=self.options.history == "ar",
                category=row.category,
                temperature=self._temperature(row.category),
            )
            for row in self._rows
        ]

    def _temperature(self, category: str) -> float | None:
        return OFFICIAL_TEMPERATURES.get(category, 0.0) if self.options.temperatures == "official" else None

    def questions(self) -> dict[str, Question]:
        """The judge's input: questions, and GPT-4's answers for math, reasoning and coding."""
        references = load_references(resolve_file(self._references, self._data_dir), self._rows)
        forced = self.options.history == "ar"
        return {
            str(row.question_id): Question(tuple(row.turns), references.get(row.question_id), forced)
            for row in self._rows
        }


def load(path: Path) -> list[Row]:
    """The questions in order."""
    return list(by_field(path, read_rows(path, Row), "question_id").values())


def load_references(path: Path, rows: Iterable[Row]) -> dict[int, tuple[str, ...]]:
    """Reference answers by question, one per turn, for the categories that need them."""
    found = {row.question_id: tuple(row.choices[0].turns) for _, row in read_rows(path, Reference)}
    needed = [row for row in rows if row.category in NEED_REFERENCE]
    for row in needed:
        if len(found.get(row.question_id, ())) != len(row.turns):
            raise UsageError(f"{path}: no reference answer to each turn of question {row.question_id} ({row.category})")
    return {row.question_id: found[row.question_id] for row in needed}
