"""Spec-Bench (Xia et al. 2024, arXiv 2401.07851): 480 questions of six tasks, to measure decoding speed only."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from specbench.common import Options as OptionsBase
from specbench.common import Prompt, option
from specbench.evals import (
    STYLE_HELP,
    Style,
    Unscored,
    build_dialogue,
    by_field,
    choose_style,
    manifest,
    read_rows,
    resolve_file,
)

Group = Literal["mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag"]

# evaluation/speed.py: these eight form the group mt_bench; each of the other five categories is a group.
MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
Category = Literal[
    "writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities",
    "translation", "summarization", "qa", "math_reasoning", "rag",
]  # fmt: skip


class Options(OptionsBase):
    """Options of the task."""

    style: Style = option("auto", help=STYLE_HELP)
    group: Literal["all", Group] = option("all", help="one of the six tasks, or all")
    history: Literal["own", "ar"] = option(
        "own",
        help="answers in the history of turn two: the method's own, or AR's, so that all methods get the same input",
    )


class Row(BaseModel):
    """A row of Spec-Bench's question.jsonl. ``reference`` is not used: the benchmark does not grade answers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    question_id: int
    category: Category
    turns: list[str] = Field(min_length=1)
    reference: list[object] | None = None

    @property
    def group(self) -> str:
        """The row of the published table to which the question belongs."""
        return "mt_bench" if self.category in MT_BENCH else self.category


class Task(Unscored):
    """The 480 questions; there is no verdict."""

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        """``data_dir``: folder that holds spec_bench_question.jsonl; None searches the usual places."""
        self.options = options
        (file,) = manifest(Path(__file__).with_name("task.toml"))
        self._rows = load(resolve_file(file, data_dir))

    def prompts(self, chat: bool) -> list[Prompt]:
        """The questions of the chosen group in data order."""
        style = choose_style(self.options.style, chat, "spec-bench")
        self.options = self.options.model_copy(update={"style": style})
        return [
            build_dialogue(
                str(row.question_id),
                row.turns,
                style,
                forced=self.options.history == "ar",
                category=row.group if row.group == row.category else f"{row.group}/{row.category}",
            )
            for row in self._rows
            if self.options.group in ("all", row.group)
        ]


def load(path: Path) -> list[Row]:
    """The questions in order."""
    return list(by_field(path, read_rows(path, Row), "question_id").values())
