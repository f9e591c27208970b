"""Show an answer step by step from its record, in the terminal with a line per target forward.

Tokens are marked by origin, with colours or, in a terminal without colours, with letters. Model text is escaped for the
terminal, so that it cannot contain control sequences; the data, which pages use too, are not escaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.style import Style
from rich.table import Table
from rich.text import Text

from specbench.analysis import checked_trace, origin_of, parents_of, token_texts
from specbench.decoding import FILLED, ORIGINS
from specbench.results import BONUS, PREFILL, Draft, RequestRecord, TokenTrace

END, EMPTY, BLANK, REJECTED = "∎", "◌", "␣", "✗"
_OPEN, _CLOSE, _BETWEEN = "⟨", "⟩", "│"
_OURS = set("\\" + END + EMPTY + BLANK + REJECTED + _OPEN + _CLOSE + _BETWEEN)  # escaped in model text
_BRANCHES = 3  # rejected branches shown per step

_COLOURS = {
    BONUS: "default", PREFILL: "default", "draft": "green", "guess": "green", "noise": "red", "block": "cyan",
    "pool": "magenta", "window": "cyan", "lookup": "blue", "head": "green", "draft-model": "green",
}  # fmt: skip
_PLAIN, _DIM, _STRUCK = Style(), Style(dim=True), Style(dim=True, strike=True)
_OTHER_COLOURS = ("yellow", "bright_magenta", "bright_cyan", "bright_blue", "bright_green")


def escaped(text: str) -> str:
    """Escape a token's text as in a Python literal: ``\\n``, ``\\x1b``, ``\\u202e``."""
    return "".join(
        one if one.isprintable() and one not in _OURS else one.encode("unicode_escape").decode() for one in text
    )


def prompt_name(prompt_id: str, repeat: int, turn: int) -> str:
    """Name of a request's prompt, repeat and turn, for titles."""
    return prompt_id + (f"#{repeat}" if repeat else "") + (f" turn {turn}" if turn > 1 else "")


class Generation:
    """One request, step by step, printed with colours or with letters, depending on the console."""

    def __init__(self, record: RequestRecord) -> None:
        self._record = record
        self._steps = steps(record)
        self._legend = legend(self._steps)
        self._letters = letters(list(self._legend))
        others = iter(_OTHER_COLOURS * len(self._legend))
        self._styles = {word: Style(color=_COLOURS.get(word) or next(others)) for word in self._legend}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        plain = not console.is_terminal or console.no_color or console.color_system is None
        yield Group(self._title(), Text(), self._table(plain), Text(), *self._explained(plain))

    def _title(self) -> Text:
        record = self._record
        name = prompt_name(record.prompt_id, record.repeat, record.turn)
        text = f"{record.method} on {name}: {record.output_tokens} tokens, "
        text += f"{record.target_forwards} forwards after prefill"
        mean = record.tokens_per_forward
        return Text(escaped(text) + (f", {mean:.2f} TPF" if mean is not None else ""), style="bold")

    def _table(self, plain: bool) -> Table:
        table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for name in ("step", "rows", "tokens"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("text", overflow="fold", ratio=1)
        ended = False
        for step in self._steps:
            line, ended = self._emitted(step.tokens, plain, ended)
            rows = "–" if step.rows is None else str(step.rows)
            table.add_row(str(step.number), rows, str(len(step.tokens)), Group(line, *self._drafts(step, plain)))
        return table

    def _emitted(self, tokens: Sequence[Token], plain: bool, ended: bool) -> tuple[Text, bool]:
        """The tokens that a step emitted, and whether the answer has ended."""
        line = Text()
        for (origin, beyond), run in groupby(tokens, lambda token: (token.origin, token.beyond)):
            if beyond and not ended:
                line.append(END, "bold")
                ended = True
            self._append(line, origin, list(run), plain, _DIM if beyond else _PLAIN)
        return line, ended

    def _append(
        self, line: Text, origin: str, run: Sequence[Token | DraftToken], plain: bool, style: Style = _PLAIN
    ) -> None:
        """Append tokens of one origin, in its colour or in brackets with its letter."""
        texts = [shown(token.text) for token in run]
        if not plain:
            line.append("".join(texts), self._styles[origin] + style)
        elif letter := self._letters[origin]:
            line.append(f"{_OPEN}{letter}:{_BETWEEN.join(texts)}{_CLOSE}")
        else:
            line.append("".join(texts))

    def _drafts(self, step: Step, plain: bool) -> list[Text]:
        """The rejected drafts of a step, a line per branch for the first branches."""
        rejected = [kept for branch in step.branches if (kept := [one for one in branch if not one.draft_only])]
        lines = []
        for branch in rejected[:_BRANCHES]:
            line = Text(f"{REJECTED} ", style="dim", no_wrap=True, overflow="ellipsis")
            for origin, run in groupby(branch, lambda draft: draft.origin):
                self._append(line, origin, list(run), plain, _STRUCK)
            lines.append(line)
        if more := rejected[_BRANCHES:]:
            branches = "branch" if len(more) == 1 else "branches"
            lines.append(Text(f"{REJECTED} {len(more)} more {branches}, {sum(map(len, more))} rows", style="dim"))
        return lines

    def _explained(self, plain: bool) -> list[RenderableType]:
        """Legend: the origins, their emitted tokens and, with a trace, their drafted rows."""
        emitted = Counter(token.origin for step in self._steps for token in step.tokens)
        drafted = Counter(draft.origin for step in self._steps for draft in step.drafts or ())
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
        for justify in ("left", "left", "right"):
            table.add_column(justify=justify, no_wrap=True)
        table.add_column(overflow="fold")
        for word, meaning in self._legend.items():
            mark = self._letters[word] if plain else "██"
            lines = [meaning] if meaning else []
            lines += [f"rows drafted: {drafted[word]}"] if drafted[word] else []
            table.add_row(Text(mark, self._styles[word]), Text(escaped(word)), str(emitted[word]), "; ".join(lines))
        return [table, Text(self._signs(), style="dim")]

    def _signs(self) -> str:
        tokens = [token for step in self._steps for token in step.tokens]
        drafts = [draft for step in self._steps for draft in step.drafts or ()]
        signs = [f"{END} end of the answer"] if any(token.beyond for token in tokens) else []
        empty = not all(token.text for token in tokens) or not all(draft.text for draft in drafts)
        signs += [f"{EMPTY} a token without text of its own"] if empty else []
        trace = self._record.tokens
        if trace and FILLED in trace.words:
            return "; ".join(signs) + "." * bool(signs)
        if trace and trace.drafts is None:
            return "; ".join([*signs, "use --trace to record rejected drafts"]) + "."
        return "; ".join([*signs, f"{REJECTED} rejected drafts"]) + "."


def shown(text: str) -> str:
    """Escape a token's text; text of only blanks, and empty text, get visible signs."""
    return escaped(text) if text.strip(" ") else BLANK * len(text) or EMPTY


def letters(words: Sequence[str]) -> Mapping[str, str]:
    """A letter for each origin, from its own name if possible; empty for tokens of the target itself."""
    found: dict[str, str] = {}
    for word in words:
        taken = set(found.values())
        found[word] = "" if word in (BONUS, PREFILL) else next(
            (one for one in [*word, *map(chr, range(ord("a"), ord("z") + 1))] if one not in taken), "?"
        )  # fmt: skip
    return found


def generation_data(record: RequestRecord) -> dict[str, Any]:
    """The steps of a request as JSON-ready data; texts are not escaped."""
    found = steps(record)
    names = (
        "request_id", "method", "prompt_id", "repeat", "turn", "output_tokens", "target_forwards", "tokens_per_forward",
        "finish_reason",
    )  # fmt: skip
    return {
        **{name: getattr(record, name) for name in names},
        "origins": Counter(token.origin for step in found for token in step.tokens),
        "steps": [asdict(step) for step in found],
    }


#: Meaning of specbench's own origins, in legend order. Methods may add others.
MEANINGS: Mapping[str, str] = {
    PREFILL: "first token, from the prefill",
    BONUS: "the target's own next token",
    **ORIGINS,
}


@dataclass(frozen=True)
class Token:
    """A token of the answer.

    ``text`` is "" for special tokens, and for tokens whose character the next token completes. ``origin`` is a key of
    :data:`MEANINGS` or the method's own word. ``beyond``: the stop token, or a token inside or after a stop string.
    """

    id: int
    text: str
    origin: str
    beyond: bool


@dataclass(frozen=True)
class DraftToken:
    """A drafted row of a step's tree, counted from 1; row 0 is the root, the last token before this step.

    ``text`` decodes the id alone, so that half a character is "�"; ``draft_only`` rows cannot be accepted.
    """

    row: int
    parent: int
    id: int
    text: str
    origin: str
    accepted: bool
    draft_only: bool


@dataclass(frozen=True)
class Step:
    """One target forward, counted from 1; 0 is the prefill, which has no rows.

    ``drafts`` is its tree without the root; None for runs without ``--trace``.
    """

    number: int
    rows: int | None
    tokens: list[Token]
    drafts: list[DraftToken] | None = None

    @cached_property
    def branches(self) -> list[list[DraftToken]]:
        """The rows that were not emitted, as chains: a row's first child continues its chain, others start new ones."""
        chains: list[list[DraftToken]] = []
        ends: dict[int, list[DraftToken]] = {}  # last row of a chain -> the chain
        for draft in self.drafts or ():
            if not draft.accepted:
                chain = ends.pop(draft.parent, None)
                if chain is None:
                    chains.append(chain := [])
                chain.append(draft)
                ends[draft.row] = chain
        return chains


def steps(record: RequestRecord) -> list[Step]:
    """The prefill and every target forward of a request, in order; UsageError without a usable trace."""
    trace = checked_trace(record)
    tokens = list(_tokens(record, trace))
    ends = accumulate(record.accepted_lengths, initial=record.first_tokens)
    drafts: Sequence[Draft | None] = trace.drafts or [None] * record.target_forwards
    found = [Step(0, None, tokens[: record.first_tokens])]
    for number, ((start, end), rows, draft) in enumerate(zip(pairwise(ends), trace.rows, drafts, strict=True), 1):
        found.append(Step(number, rows, tokens[start:end], None if draft is None else list(_drafted(draft, trace))))
    return found


def legend(found: Sequence[Step]) -> dict[str, str]:
    """The origins in these steps with their meanings; the method's own origins come last and have no meaning."""
    words = {token.origin for step in found for token in (*step.tokens, *(step.drafts or ()))}
    ours = {word: meaning for word, meaning in MEANINGS.items() if word in words}
    return ours | dict.fromkeys(sorted(words - ours.keys()), "")


def _tokens(record: RequestRecord, trace: TokenTrace) -> Iterator[Token]:
    answer, texts = record.text_tokens, token_texts(record, trace)
    for at, (token, letter, text) in enumerate(zip(record.output_ids, trace.origins, texts, strict=True)):
        yield Token(token, text, origin_of(trace, letter), at >= answer)


def _drafted(draft: Draft, trace: TokenTrace) -> Iterator[DraftToken]:
    parents = parents_of(draft)
    path, only = set(draft.path), set(draft.draft_only)
    pieces = trace.pieces or {}
    for row, (token, parent, letter) in enumerate(zip(draft.ids, parents, draft.origins, strict=True), 1):
        yield DraftToken(row, parent, token, pieces.get(token, ""), origin_of(trace, letter), row in path, row in only)
