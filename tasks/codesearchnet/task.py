"""CodeSearchNet (Husain et al. 2019, arXiv 1909.09436), Python, with CLLM's prompt (Kou et al. 2024, arXiv 2403.00835).

The prompt is a function's documentation, the answer the function; only decoding speed is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from specbench.common import Options as OptionsBase
from specbench.common import Prompt, UsageError, damaged, option
from specbench.evals import TODO, Unscored, each_row, manifest, resolve_file

NAME = "codesearchnet"

_ASKED = "Please generate code based on the following doc:\n{}"
# CLLM's models end with a stop token. Another model might write the next instruction after its answer.
_NEXT = ("\n### Instruction:",)


class Options(OptionsBase):
    """Options of the task."""

    style: Literal["auto", "chat", "cllm"] = option(
        "auto",
        help="chat: CLLM's instruction through the chat template; cllm: the prompt of its models' training; "
        "auto: chat when the model has a template, else cllm",
    )


class Function(BaseModel):
    """A row of the hub's parquet file or of CodeSearchNet's own .jsonl.gz, whose columns have other names.

    Strict on the documentation, the code and the language; the many further columns are allowed.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    documentation: str = Field(pattern=r"\S", validation_alias=AliasChoices("func_documentation_string", "docstring"))
    code: str = Field(min_length=1, validation_alias=AliasChoices("func_code_string", "code"))
    language: Literal["python"]


class Task(Unscored):
    """The functions of the test split; there is no verdict."""

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        """``data_dir``: folder that holds codesearchnet_python_test.parquet or one of its other names; None
        searches the usual places."""
        self.options = options
        test, train = (
            partial(resolve_file, file, data_dir) for file in manifest(Path(__file__).with_name("task.toml"))
        )
        self._tested, self._train = load(test()), train

    def prompts(self, chat: bool) -> list[Prompt]:
        """All functions in data order."""
        return self._asked(self._tested, chat)

    def training_prompts(self, chat: bool) -> list[Prompt]:
        """The functions of the training split, in the prompts of the test split."""
        return self._asked(load(self._train()), chat)

    def _asked(self, documented: Sequence[str], chat: bool) -> list[Prompt]:
        style = self.options.style
        if style == "auto":
            style = "chat" if chat else "cllm"
        if style == "chat" and not chat:
            raise UsageError(
                f"style=chat needs a model with a chat template; this one has none, so use --task-set {NAME}.style=cllm"
            )
        self.options = self.options.model_copy(update={"style": style})
        asked = [_ASKED.format(documentation).strip() for documentation in documented]
        if style == "chat":
            return [Prompt(f"{NAME}/{number}", text, True) for number, text in enumerate(asked)]
        return [
            Prompt(f"{NAME}/{number}", f"### Instruction:\n{text}\n### Response:\n", False, stops=_NEXT)
            for number, text in enumerate(asked)
        ]


def load(path: Path) -> list[str]:
    """The documentation of each function, in order."""
    found = [row.documentation for _, row in each_row(path, Function)]
    if not found:
        raise damaged(path, "it has no functions", TODO)
    return found
