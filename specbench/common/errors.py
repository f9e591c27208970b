"""Errors a user can act on. Each carries the exit code of its kind, and its text is one line that says what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from specbench.common.escape import escape_control

#: Exit code of what Ctrl-C ended, with what was finished kept.
INTERRUPTED = 130
#: Likewise of what SIGTERM ended.
TERMINATED = 143


_MOST = 400  # letters of a word in a sentence; paths are shorter
_LONG = re.compile(rf"\S{{{_MOST + 1},}}")
_BEGINNING, _END = 1000, 400  # of a sentence that is longer than both: what is wrong, and what to do


class SpecbenchError(Exception):
    """Base of all expected failures; the CLI prints its text and exits with ``exit_code``.

    The text is one line whatever it quotes: a name in a file may have line breaks and terminal escapes in it, and be as
    long as the file.
    """

    exit_code = 1

    def __init__(self, text: str = "") -> None:
        said = _LONG.sub(lambda found: f"{found[0][:_MOST]}…", _printable(text))
        whole = len(said) <= _BEGINNING + _END
        super().__init__(said if whole else f"{said[:_BEGINNING]} … {said[-_END:]}")

    @property
    def code(self) -> str:
        """Module and function that raised the error, such as ``sweeps.grid.narrow``; empty before it is raised.

        Unlike the text it stays the same when a sentence is improved.
        """
        code, frame = "", self.__traceback__
        while frame is not None:
            module = str(frame.tb_frame.f_globals.get("__name__", ""))
            if module.startswith("specbench."):
                code = f"{module.removeprefix('specbench.')}.{frame.tb_frame.f_code.co_name}"
            frame = frame.tb_next
        return code


class NotQuiet(SpecbenchError):
    """This machine does other work too, so that what is timed on it now is noisy."""

    exit_code = 1


class UsageError(SpecbenchError):
    """The request cannot be carried out as written: unknown name, bad option, bad data file."""

    exit_code = 2


class NothingLearnt(UsageError):
    """A training was ended by its first look at trained weights, so that it leaves none: others of a sweep go on."""


class EnvironmentRefused(SpecbenchError):
    """The request is fine but this machine is not: another GPU, no disk space, a missing package."""

    exit_code = 3


class LosslessFailed(SpecbenchError):
    """A method that declares itself lossless produced other tokens than autoregressive decoding."""

    exit_code = 4


class Regression(SpecbenchError):
    """A comparison fell below the threshold the user set."""

    exit_code = 5


class Undecided(SpecbenchError):
    """A comparison proves nothing either way, because a run that it uses was disturbed."""

    exit_code = 8


class PluginFault(SpecbenchError):
    """A method or a task did what none may do, such as to raise, to end the command, or to draft no tree; names it.

    Attributes:
        row: label of the row that it decoded; empty where it was not decoding.
        spoils_all: other methods cannot go on either, because the plug-in changed the model that they all decode with.
    """

    exit_code = 6

    def __init__(self, text: str = "", row: str = "", *, spoils_all: bool = False) -> None:
        super().__init__(text)
        self.row, self.spoils_all = row, spoils_all


class EngineFault(SpecbenchError):
    """Another engine is not there, died, stalled, or did not do what it was asked; names its row."""

    exit_code = 7


class _Faulty(Protocol):
    def errors(self) -> Sequence[Mapping[str, Any]]: ...


def first_fault(error: _Faulty) -> str:
    """The first thing that a pydantic ``ValidationError`` complains of, and the field where it is."""
    first = error.errors()[0]
    where = one_line(".".join(map(str, first["loc"])), 80)  # an unknown field's name is the file's, of any length
    plain = {"extra_forbidden": "unknown field", "missing": "missing"}.get(str(first["type"]))
    reason = plain or one_line(str(first["msg"]).removeprefix("Value error, "))
    return f"field '{where}': {reason}" if where else reason


def one_line(text: str, most: int = 200) -> str:
    """A text as part of a sentence: without line breaks and what no terminal should get, and not too long."""
    line = " ".join(_printable(text[: 4 * most]).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _printable(text: str) -> str:
    text = text if text.isprintable() else "".join(each if each.isprintable() else " " for each in text)
    return escape_control(text)  # what has a place among letters, and nothing to see


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """An error for a name that does not exist, naming the nearest ones that do."""
    names = sorted(known)
    near = difflib.get_close_matches(name[:200], names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names) or 'none'}"
    return UsageError(f"unknown {kind} '{one_line(name, 80)}'; {hint}")
