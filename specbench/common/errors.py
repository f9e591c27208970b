"""Exceptions with an exit code and a text of one line that says what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from specbench.common.escape import escape_control

#: Exit code after Ctrl-C; finished requests are kept.
INTERRUPTED = 130
#: Exit code after SIGTERM; finished requests are kept.
TERMINATED = 143


_MOST = 400  # longest word in a sentence; paths are shorter
_LONG = re.compile(rf"\S{{{_MOST + 1},}}")
_BEGINNING, _END = (
    1000,
    400,
)  # characters kept of a longer sentence: its beginning (what is wrong) and its end (what to do)


class SpecbenchError(Exception):
    """Base of all expected failures; the CLI prints its text and exits with ``exit_code``.

    The text is one line even if it quotes names from files, which may contain line breaks and terminal escapes and be
    very long.
    """

    exit_code = 1

    def __init__(self, text: str = "") -> None:
        text = _LONG.sub(lambda found: f"{found[0][:_MOST]}…", _printable(text))
        whole = len(text) <= _BEGINNING + _END
        super().__init__(text if whole else f"{text[:_BEGINNING]} … {text[-_END:]}")

    @property
    def code(self) -> str:
        """Module and function that raised the error, such as ``sweeps.grid.narrow``; empty before it is raised.

        Unlike the text, it does not change when a sentence is improved.
        """
        code, frame = "", self.__traceback__
        while frame is not None:
            module = str(frame.tb_frame.f_globals.get("__name__", ""))
            if module.startswith("specbench."):
                code = f"{module.removeprefix('specbench.')}.{frame.tb_frame.f_code.co_name}"
            frame = frame.tb_next
        return code


class NotQuiet(SpecbenchError):
    """This machine does other work too, so timings are noisy."""

    exit_code = 1


class UsageError(SpecbenchError):
    """The request cannot be carried out as written: unknown name, bad option, bad data file."""

    exit_code = 2


class NothingLearnt(UsageError):
    """A training was stopped by its first evaluation of trained weights; other trainings of a sweep go on."""


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
    """A method or task raised, ended the command, or returned something invalid; the text names it.

    Attributes:
        row: label of the row that it decoded; empty if it was not decoding.
        spoils_all: other methods cannot go on either, because the plug-in changed the shared model.
    """

    exit_code = 6

    def __init__(self, text: str = "", row: str = "", *, spoils_all: bool = False) -> None:
        super().__init__(text)
        self.row, self.spoils_all = row, spoils_all


class EngineFault(SpecbenchError):
    """Another engine is missing, died, stalled, or returned something unexpected; the text names its row."""

    exit_code = 7


class _Faulty(Protocol):
    def errors(self) -> Sequence[Mapping[str, Any]]: ...


def first_fault(error: _Faulty) -> str:
    """The first complaint of a pydantic ``ValidationError``, with its field."""
    first = error.errors()[0]
    # An unknown field's name comes from the file and may have any length.
    where = one_line(".".join(map(str, first["loc"])), 80)
    plain = {"extra_forbidden": "unknown field", "missing": "missing"}.get(str(first["type"]))
    reason = plain or one_line(str(first["msg"]).removeprefix("Value error, "))
    return f"field '{where}': {reason}" if where else reason


#: Words for the limits of a number, by pydantic's names.
LIMIT_WORDS = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}


def number_wanted(fault: Mapping[str, Any]) -> str:
    """What to give instead of a wrong number, from a pydantic error; empty for an error of another kind."""
    kind = str(fault["type"])
    if kind.startswith("int_"):
        return "give an integer"
    if kind.startswith(("float_", "finite_number")):
        return "give a number"
    for name, bound in fault.get("ctx", {}).items() if kind.startswith(("greater_", "less_")) else ():
        if name in LIMIT_WORDS:
            return f"give {'a number' if isinstance(bound, float) else 'an integer'} {LIMIT_WORDS[name]} {bound:g}"
    return ""


def one_line(text: str, most: int = 200) -> str:
    """A text for use inside a sentence: one line, printable, and not too long."""
    line = " ".join(_printable(text[: 4 * most]).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _printable(text: str) -> str:
    text = text if text.isprintable() else "".join(each if each.isprintable() else " " for each in text)
    return escape_control(text)  # invisible characters


#: Most characters of the names in an error.
_LISTED = 120


def unknown_name(
    kind: str, name: str, known: Iterable[str], where: str = "", *, choose: str = "known", see: str = ""
) -> UsageError:
    """An error for a name that does not exist, naming the most similar ones that do.

    Args:
        where: words after the name, such as "in --set".
        choose: words before the list of names.
        see: a clause that says where all names are, for a list that is too long.
    """
    names = sorted({*known})
    near = difflib.get_close_matches(name[:200], names, n=3, cutoff=0.5)
    if near:
        hint = f"did you mean {' or '.join(one_line(each, 80) for each in near)}?"
    else:
        hint = f"{choose}: {_some(name, names) or 'none'}"
        hint += f"; {see}" if see and "… and " in hint else ""
    return UsageError(f"unknown {kind} '{one_line(name, 80)}'{where and f' {where}'}; {hint}")


def _some(name: str, names: Sequence[str]) -> str:
    """All names, or the most similar and first ones and the number of others if the list is long."""
    if len(text := ", ".join(names)) <= _LISTED:
        return one_line(text)
    similar = difflib.get_close_matches(name[:200], names, n=10, cutoff=0.35)
    first, *others = dict.fromkeys([*similar, *names[:20]])
    shown = [one_line(first, 80)]
    for each in others:
        if len(", ".join([*shown, each])) <= _LISTED - 30:
            shown.append(one_line(each, 80))
    return f"{', '.join(shown)} … and {len(names) - len(shown)} more"
