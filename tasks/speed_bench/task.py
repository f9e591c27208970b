"""SPEED-Bench (NVIDIA 2026, arXiv 2604.09557): questions of many kinds and prompts of fixed lengths, for speed only."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from specbench.common import Options as OptionsBase
from specbench.common import Prompt, UsageError, damaged, option
from specbench.evals import (
    STYLE_HELP,
    TODO,
    Style,
    Unscored,
    build_dialogue,
    choose_style,
    each_row,
    manifest,
    resolve_file,
    row_place,
    user_file,
)

NAME = "speed-bench"
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
FILL = "python prepare_data.py --dataset speed --config all"

TIERS = ("low_entropy", "mixed", "high_entropy")


class Options(OptionsBase):
    """Options of the task."""

    split: Literal[
        "qualitative", "throughput_1k", "throughput_2k", "throughput_8k", "throughput_16k", "throughput_32k"
    ] = option(
        "qualitative",
        help="qualitative: eleven categories; throughput: prompts of about that many tokens in three tiers of entropy",
    )
    file: str = option("", help="the split's file, set by --data-file; recorded without its folder")
    style: Style = option("auto", help=STYLE_HELP)
    history: Literal["own", "ar"] = option(
        "own",
        help="answers in the history of later turns: the method's own, or AR's, so that all methods get the same input",
    )


class Row(BaseModel):
    """A row of SPEED-Bench. Strict on the fields below; further columns, such as the question's source, are ignored.

    Attributes:
        category: one of eleven; in a throughput split, the tier of entropy.
        sub_category: in a throughput split, the kind of text.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    question_id: str = Field(min_length=1)
    category: str = Field(pattern=r"^[^/]+$")
    sub_category: str | None = None
    turns: list[str] = Field(min_length=1)

    @property
    def group(self) -> str:
        """The row of the table to which the question belongs: CATEGORY, or TIER/KIND in a throughput split."""
        kind = " ".join((self.sub_category or "").replace("/", " ").split())
        return f"{self.category}/{kind}" if self.category in TIERS and kind else self.category


class Task(Unscored):
    """The questions of one split; there is no verdict."""

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        """``data_dir``: folder that holds the files of the splits as ``prepare_data.py`` writes them; None searches
        ``SPECBENCH_DATA``. Ignored if ``options.file`` names the file."""
        self.options = options
        if options.file:
            path = user_file(Path(options.file))
        else:
            files = manifest(Path(__file__).with_name("task.toml"))
            path = resolve_file(next(file for file in files if file.name.startswith(f"{options.split}/")), data_dir)
        self._rows = load(path)
        tiered = options.split != "qualitative"
        if wrong := next((row for row in self._rows if (row.category in TIERS) != tiered), None):
            raise UsageError(
                f"{path} is not of split={options.split}: question {wrong.question_id} is of category "
                f"{wrong.category}; set --task-set {NAME}.split to that of the file"
            )

    def prompts(self, chat: bool) -> list[Prompt]:
        """The questions in data order."""
        style = choose_style(self.options.style, chat, NAME)
        self.options = self.options.model_copy(update={"style": style, "file": Path(self.options.file).name})
        forced = self.options.history == "ar"
        return [
            build_dialogue(row.question_id, row.turns, style, forced=forced, category=row.group) for row in self._rows
        ]


def load(path: Path) -> list[Row]:
    """The questions in order."""
    found: dict[str, Row] = {}
    for number, row in each_row(path, Row):
        where = row_place(path, number)
        if any(PLACEHOLDER in turn for turn in row.turns):
            raise UsageError(
                f"{where} (question {row.question_id}) has a placeholder for its text, which is another data set's; "
                f"fill it in with NVIDIA's Model-Optimizer, in examples/specdec_bench: {FILL}"
            )
        if not all(turn.strip() for turn in row.turns):
            raise damaged(where, "field 'turns': an empty text", TODO)
        if row.question_id in found:
            raise damaged(where, f"field 'question_id': {row.question_id} is there twice", TODO)
        found[row.question_id] = row
    if not found:
        raise damaged(path, "it has no questions", TODO)
    return list(found.values())
