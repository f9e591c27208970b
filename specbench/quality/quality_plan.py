"""Options of ``specbench quality``: models, and the lm-eval tasks or the text to measure them on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import field_validator

from specbench.common import UsageError, flag, flag_of
from specbench.models import resolve
from specbench.planning import Loading, Noting, split_names

#: Default folder of results.
QUALITY = Path("quality")


class QualityPlan(Noting, Loading):
    """Models to measure, and the tasks or text with their settings."""

    models: Sequence[str] = flag(
        ..., "MODEL", help="A value of run --model, or a .json of this command; the first is the baseline."
    )
    tasks: str | None = flag(None, "--tasks", help="Tasks or groups of lm-eval, comma-separated.", metavar="NAMES")
    include: Path | None = flag(None, "--include", help="Folder with task files (YAML) of your own.", exists="folder")
    limit: int | None = flag(None, "--limit", help="Use the first N documents of each task.", ge=1)
    shots: int | None = flag(None, "--shots", help="Number of examples before each document.", shown="the task's", ge=0)
    chat: bool = flag(False, "--chat", help="Use the model's chat template.")
    max_length: int | None = flag(
        None, "--max-length", help="Most tokens of a text; longer ones lose their start.", shown="the model's", ge=2
    )
    concurrency: int = flag(8, "--concurrency", help="Number of answers decoded together.", ge=1, le=4096)
    out: Path = flag(QUALITY, "--out", help="Output folder, with one file per model.", recorded=False)
    text: Path | None = flag(
        None, "--text", help="Score this UTF-8 text instead: perplexity per token, word and byte.", exists="file"
    )
    base: str = flag(
        "auto", "--base", help="With --text: a model to compare; none; auto: an adapter's base.", metavar="MODEL"
    )
    context: int | None = flag(
        None, "--context", help="With --text: tokens per window.", shown="1024, or the model's limit", ge=1
    )
    stride: int | None = flag(
        None, "--stride", help="With --text: tokens scored per window.", shown="half of --context", ge=1
    )
    max_words: int | None = flag(None, "--max-words", help="With --text: score its first N words.", ge=1)
    tokens: Path | None = flag(None, "--tokens", help="With --text: write each token's nats to this .jsonl file.")

    @field_validator("models")
    @classmethod
    def _some(cls, models: Sequence[str]) -> Sequence[str]:
        if not models:
            raise UsageError(
                "cannot measure quality: no model is given; write specbench quality smollm2-135m --tasks NAMES"
            )
        return models

    @property
    def names(self) -> list[str]:
        """Names of the tasks."""
        return split_names(self.tasks or "")

    def check(self) -> None:
        """Refuse invalid combinations of options, before anything is loaded."""
        text_options = ("base", "context", "stride", "max_words", "tokens")
        other_options = ("tasks", "include", "limit", "shots", "chat", "max_length", "concurrency", "out")
        unused = other_options if self.text is not None else text_options
        for name in unused:
            if name in self.model_fields_set:
                own = flag_of(QualityPlan, name).name
                if self.text is not None:
                    raise UsageError(f"cannot use {own} with --text; remove one of them")
                raise UsageError(f"cannot use {own} without --text FILE; add --text or remove {own}")
        asked = [model for model in self.models if not is_file(model)]
        for model in asked:
            resolve(model)
        if self.text is not None:
            if asked != list(self.models):
                raise UsageError("cannot use a .json file with --text: it scores models only; remove the file")
            return
        if asked and not self.names:
            raise UsageError("cannot run without --tasks; give tasks of lm-eval, such as --tasks arc_easy,hellaswag")

    def of(self, model: str) -> QualityPlan:
        """Return the plan for one of the models, for the loader."""
        return self.model_copy(update={"model": model})


def is_file(model: str) -> bool:
    """Return whether a MODEL is a results file instead of a model."""
    return model.endswith(".json") and not model.startswith("config:")
