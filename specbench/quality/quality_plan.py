"""Options of ``specbench quality``: models, and the lm-eval tasks or the text that they are measured on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import field_validator

from specbench.common import UsageError, flag, flag_of
from specbench.models import resolve
from specbench.planning import Loading, Noting, split_names

#: Where the files go.
QUALITY = Path("quality")


class QualityPlan(Noting, Loading):
    """QualityPlan: models, tasks, and how these are asked."""

    models: Sequence[str] = flag(
        ..., "MODEL", help="As --model of run takes it, or a .json that this command wrote; the first is compared with."
    )
    tasks: str | None = flag(None, "--tasks", help="Tasks or groups of lm-eval, comma-separated.", metavar="NAMES")
    include: Path | None = flag(None, "--include", help="Folder with task files (YAML) of your own.", exists="folder")
    limit: int | None = flag(None, "--limit", help="The first N documents of each task.", ge=1)
    shots: int | None = flag(None, "--shots", help="Examples before each document.", shown="the task's", ge=0)
    chat: bool = flag(False, "--chat", help="Ask through the model's chat template.")
    max_length: int | None = flag(
        None, "--max-length", help="Tokens of a text at most; longer ones lose their start.", shown="the model's", ge=2
    )
    concurrency: int = flag(8, "--concurrency", help="Answers generated together.", ge=1, le=4096)
    out: Path = flag(QUALITY, "--out", help="Folder that receives a file of each model.", recorded=False)
    text: Path | None = flag(
        None, "--text", help="Rate this text (UTF-8) instead: perplexity per token, word and byte.", exists="file"
    )
    base: str = flag(
        "auto", "--base", help="With --text: one more model; none. auto: what an adapter was made for.", metavar="MODEL"
    )
    context: int | None = flag(
        None, "--context", help="With --text: tokens of a window.", shown="1024, or what the model takes", ge=1
    )
    stride: int | None = flag(
        None, "--stride", help="With --text: tokens that a window rates.", shown="half of it", ge=1
    )
    max_words: int | None = flag(None, "--max-words", help="With --text: its first N words.", ge=1)
    tokens: Path | None = flag(None, "--tokens", help="With --text: write the nats of each token there, as .jsonl.")

    @field_validator("models")
    @classmethod
    def _some(cls, models: Sequence[str]) -> Sequence[str]:
        if not models:
            raise UsageError("no model is named; write specbench quality smollm2-135m --tasks NAMES")
        return models

    @property
    def names(self) -> list[str]:
        """The tasks asked for."""
        return split_names(self.tasks or "")

    def check(self) -> None:
        """Refuse what cannot be carried out, before anything is loaded."""
        text_options = ("base", "context", "stride", "max_words", "tokens")
        other_options = ("tasks", "include", "limit", "shots", "chat", "max_length", "concurrency", "out")
        unused = other_options if self.text is not None else text_options
        for name in unused:
            if name in self.model_fields_set:
                how = "does not go with" if self.text is not None else "goes with"
                raise UsageError(f"{flag_of(QualityPlan, name).name} {how} --text FILE; leave one of them out")
        asked = [model for model in self.models if not is_file(model)]
        for model in asked:
            resolve(model)
        if self.text is not None:
            if asked != list(self.models):
                raise UsageError("--text rates models, and a .json file is none; name models only")
            return
        if asked and not self.names:
            raise UsageError("--tasks names nothing; give tasks of lm-eval, as in --tasks arc_easy,hellaswag")

    def of(self, model: str) -> QualityPlan:
        """The same of one of the models, for the loader."""
        return self.model_copy(update={"model": model})


def is_file(model: str) -> bool:
    """Whether a MODEL is a file of figures, not to be asked anew."""
    return model.endswith(".json") and not model.startswith("config:")
