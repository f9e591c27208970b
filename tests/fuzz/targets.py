"""The fuzzing targets, each with the kinds of input that it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fuzz import answers, files, lines
from fuzz.cases import Kinds

#: Made when they are asked for: some take seconds.
TARGETS: Mapping[str, Callable[[], Kinds]] = {
    "command-lines": lines.command_lines,
    "rows": files.rows,
    "runs": files.runs,
    "models": files.models,
    "replies": files.replies,
    "answers": answers.answers,
}
