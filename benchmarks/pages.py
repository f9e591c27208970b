"""Fill the generated blocks of README, docs and the methods' pages with figures of committed runs.

``make pages`` rewrites what stands between ``<!-- specbench: KIND … -->`` and ``<!-- /specbench -->``. The comment says
what to print, so a new figure or table needs no Python:

``value run=demo row=pld of=speedup``
    one figure, inside a sentence
``table run=demo rows=jacobi,pld columns=speedup,tokens_per_forward``
    a row per method and a column per figure
``show run=demo width=92 lines=1-5,8``
    lines that ``specbench show`` prints, with ``request=`` and ``method=`` as there
``link run=demo text="the run"``
    a link to the folder of a run
``picture run=demo name=across alt="…"``
    a picture of the committed report; of several runs, as in ``run=a,b``, the one they share
``words``
    the definitions of the report's terms
``stated by=FILE``
    a number that does not come from a run and is left unchanged; FILE is its source

``run`` is a piece of ``results/README.md`` or the end of a folder's name, ``crossing/c4`` one concurrency of a sweep,
``a+b`` two runs pooled, and ``a,b`` one figure of each. ``file`` is a JSON file instead. ``of`` is a field of a row of
``summary.json`` (of the run or its configuration without ``row``), with dots for parts, as in
``text.without_loops.speedup``. ``where=threads:1,context:64`` chooses a line of a sweep, or of a list in a file
(``in=cells``), or the last such line of a journal (``.jsonl``); with ``;`` between pairs, words may have commas.
``as=%`` or ``as=ms`` scales, ``digits=`` rounds.

Lines ``row NAME key=value …`` and ``column NAME key=value …`` in a table's comment define its rows and columns freely:
a cell combines the words of the table, its column and its row. ``@key`` stands for the value of another of these words;
a cell without that word stays empty, and so does a cell that asks for no figure.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import evidence
from specbench.analysis.pooling import Cost, pooled
from specbench.analysis.read import ReadRun, read_run
from specbench.report import vocabulary
from specbench.sweeps import read_sweep

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"<!-- specbench: (\w+)\b(.*?)-->(.*?)<!-- /specbench -->", re.S)
_UNITS = {
    "%": (100.0, 0, "%"),
    "ms": (1e3, 2, " ms"),
    "minutes": (60.0, 0, ""),
    "tok/s": (1.0, 1, ""),
    "": (1.0, 2, ""),
}
#: Column heads of fields.
_HEADS = {"tokens_per_forward": "tokens per forward", "decode_tok_s": "tok/s", "rows_per_step": "rows per forward"}

Asked = dict[str, str]


def pages() -> list[Path]:
    """Return the pages that have generated blocks."""
    found = [ROOT / "README.md", ROOT / "reports" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return found + sorted(page for room in ("methods", "tasks") for page in (ROOT / room).rglob("README.md"))


@dataclass(frozen=True)
class Block:
    """A generated block of a page: its kind, its words, and its content."""

    kind: str
    words: str
    printed: str

    @property
    def asked(self) -> Asked:
        """The words before any ``row`` or ``column``, without a table's row and column names."""
        head = re.split(r"\n\s*(?:row|column) ", self.words)[0]
        return dict(word.split("=", 1) for word in shlex.split(head))

    def _named(self, what: str, figure: str) -> list[tuple[str, Asked]]:
        listed = [name for name in self.asked.get(f"{what}s", "").split(",") if name]
        found = [(_HEADS.get(name, f"`{name}`" if what == "row" else name), {figure: name}) for name in listed]
        for line in re.findall(rf"^\s*{what} (.*)$", self.words, re.M):
            name, *words = shlex.split(line)
            found.append((name, dict(word.split("=", 1) for word in words)))
        return found

    def grid(self) -> list[tuple[str, list[Asked]]]:
        """The rows of a table: name, and the words of each cell (no words for an empty cell)."""
        base = {key: word for key, word in self.asked.items() if key not in ("rows", "columns", "head")}
        columns = self._named("column", "of")
        return [(name, [_merged({**base, **column, **row}) for _, column in columns])
                for name, row in self._named("row", "row")]  # fmt: skip

    def heads(self, page: Path) -> list[str]:
        """The head of a table; ``{run}`` in the name of a column is replaced by the link to its run."""
        columns = self._named("column", "of")
        names = [name.replace("{run}", _link(words["run"], page)) if "{" in name else name for name, words in columns]
        return [self.asked.get("head", ""), *names]

    def figures(self) -> Iterator[tuple[Asked, str]]:
        """Each figure of a value or a table: its words, and how the page prints it."""
        if self.kind == "value":
            yield self.asked, self.printed
        elif self.kind == "table":
            lines = self.printed.strip().splitlines()[2:]
            for (name, cells), line in zip(self.grid(), lines, strict=True):
                printed = [cell.strip() for cell in line.strip().strip("|").split("|")][name.count("|") + 1 :]
                yield from ((asked, cell) for asked, cell in zip(cells, printed, strict=True) if asked)


def _merged(words: Asked) -> Asked:
    for key, word in words.items():
        names = re.findall(r"@(\w+)", word)
        if any(name not in words for name in names):
            return {}
        for name in names:
            words = {**words, key: words[key].replace(f"@{name}", words[name])}
    return words if words.get("of") else {}


def blocks(text: str) -> Iterator[Block]:
    """Return the blocks of a page, in order."""
    return (Block(*match.groups()) for match in BLOCK.finditer(text))


def place(name: str) -> Path:
    """Find the folder of a run by its piece in ``results/README.md``, or by the end of its name."""
    name, _, part = name.partition("/")
    listed = {piece.name: piece.folder for piece in evidence.read(evidence.LIST.read_text()) if piece.folder}
    (folder,) = [listed[name]] if name in listed else {one for one in listed.values() if one.endswith(f"-{name}")}
    return evidence.LIST.parent / folder / part


@cache
def _read(folder: Path) -> ReadRun:
    return read_run(folder, traces=False)


@cache
def _source(asked: str) -> Any:
    """Read a run or file: a summary with its configuration, the lines of a sweep, or JSON."""
    folder = place(asked)
    if (folder / "run.json").exists():
        return _read(folder)
    if (folder / "sweep.json").exists():
        return read_sweep(folder).cells.to_dict("records")
    return json.loads((folder / "profile.json").read_text())


@cache
def _pooled(names: str) -> Mapping[str, Any]:
    costs: list[dict[str, dict[str, Cost]]] = []
    for one in map(_read, map(place, names.split("+"))):
        mine: dict[str, dict[str, Cost]] = {}
        for record in one.records:
            of = mine.setdefault(record.method, {})
            of[record.prompt_id] = of.get(record.prompt_id, Cost()).with_(record)
        costs.append(mine)
    return {row.method: row for row in pooled(costs)}


def _part(value: Any, path: str) -> Any:
    for name in filter(None, path.split(".")):
        if value is None:
            return None
        if isinstance(value, list):
            value = value[int(name)]
        else:
            value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return value


def _chosen(asked: Asked, run: str) -> Any:
    """Return the object that has the figure as a field."""
    if "+" in run:
        return _pooled(run)[asked["row"]]
    source: Any = _of_file(ROOT / asked["file"]) if "file" in asked else _source(run)
    if isinstance(source, ReadRun):
        if "row" in asked:
            return next(row for row in source.summary.rows if row.method == asked["row"])
        summary: Any = source.summary
        return summary if hasattr(summary, asked["of"].split(".")[0]) else source.config
    source = _part(source, asked.get("in", ""))
    if "where" in asked:
        wanted = [pair.split(":", 1) for pair in asked["where"].split(";" if ";" in asked["where"] else ",")]
        found = [line for line in source if all(str(line.get(key)) == word for key, word in wanted)]
        journal = asked.get("file", "").endswith(".jsonl")
        (source,) = found[-1:] if journal else found
    return source


def _of_file(path: Path) -> Any:
    """Content of a JSON file, or the lines of a journal, in which a figure that was measured again comes later."""
    text = path.read_text()
    return [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)


def _ends(chosen: Any, of: str, value: Any) -> Sequence[float] | None:
    """Return the interval that belongs to a figure."""
    if getattr(value, "low", None) is not None:
        return value.low, value.high
    if not isinstance(chosen, Mapping):
        return None
    pairs = [("_low", "_high"), ("_min", "_max")]
    found = [[chosen[of + low], chosen[of + high]] for low, high in pairs if of + low in chosen]
    return [*found, chosen.get(f"{of}_quartiles")][0]


def _printed(asked: Asked, of: str, run: str, inline: bool) -> str:
    chosen = _chosen(asked, run)
    figure = _part(chosen, of)
    ends = _ends(chosen, of, figure) if asked.get("interval") != "no" else None
    value = getattr(figure, "value", figure)
    if asked.get("row") == "ar" and of in ("speedup", "e2e_speedup"):
        return "1"
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    factor, digits, suffix = _UNITS[asked.get("as", "tok/s" if of.endswith("tok_s") else "")]
    if isinstance(value, int) and "as" not in asked:
        return f"{value:,}"

    def shown(number: float) -> str:
        return f"{factor * number:.{asked.get('digits', digits)}f}"

    unit = ("×" if of.endswith("speedup") else suffix) if inline else suffix.strip(" ms")
    if ends is None or ends[0] is None or math.isnan(ends[0]):
        return f"{shown(value)}{unit}"
    low, high = map(shown, ends)
    return f"{shown(value)}{unit} ({low} to {high})" if inline else f"{shown(value)}{unit} [{low}, {high}]"


def figure(asked: Asked, inline: bool = False) -> str:
    """Print a cell or a value in a sentence; figures of several runs are joined with commas, of one run with points."""
    runs, of = asked.get("run", "").split(","), asked["of"].split(",")
    cells = [" · ".join(_printed({**asked, "of": one}, one, run, inline) for one in of) for run in runs]
    return ", ".join("–" if {*cell} <= {*"– ·"} else cell for cell in cells)


def _link(run: str, page: Path) -> str:
    return os.path.relpath(place(run), page.parent)


def _table(block: Block, page: Path) -> str:
    heads = block.heads(page)
    body = [
        f"| {name} | {' | '.join(figure(cell) if cell else '' for cell in cells)} |" for name, cells in block.grid()
    ]
    count = len(heads) + heads[0].count("|")
    return "\n".join(["", f"| {' | '.join(heads)} |", f"|{' --- |' * count}", *body, ""])


def _shown(asked: Asked) -> str:
    options = [word for key in ("request", "method") if key in asked for word in (f"--{key}", asked[key])]
    command = [sys.executable, "-m", "specbench", "show", str(place(asked["run"])), *options]
    done = subprocess.run(
        command, env={**os.environ, "COLUMNS": asked.get("width", "92")}, capture_output=True, text=True, check=True
    )
    lines, kept = [line.rstrip() for line in done.stdout.splitlines()], list[str]()
    for part in asked["lines"].split(","):
        first, _, last = part.partition("-")
        kept += lines[int(first) - 1 : int(last or first)]
    return "\n".join(["", "```", *kept, "```", ""])


def filled(text: str, page: Path) -> str:
    """Return a page with every block filled again."""

    def made(match: re.Match[str]) -> str:
        block = Block(*match.groups())
        inner = block.printed
        if block.kind == "value":
            inner = figure(block.asked, inline=True)
        elif block.kind == "table":
            inner = _table(block, page)
        elif block.kind == "show":
            inner = _shown(block.asked)
        elif block.kind == "picture":
            # The report names a picture of several runs after the first by name, which is the oldest.
            name = min(place(run).name for run in block.asked["run"].split(","))
            file = ROOT / "reports" / "report_pictures" / f"{name[:16]}-{name[-8:]}-{block.asked['name']}.svg"
            inner = f"![{block.asked['alt']}]({os.path.relpath(file, page.parent)})"
        elif block.kind == "words":
            terms = "".join(f"| {term['word']} | {term['means']} |\n" for term in vocabulary()["term"])
            inner = f"\n| word | definition |\n| --- | --- |\n{terms}"
        elif block.kind == "link":
            inner = f"[{block.asked['text']}]({_link(block.asked['run'], page)})"
        return f"<!-- specbench: {block.kind}{block.words}-->{inner}<!-- /specbench -->"

    return BLOCK.sub(made, text)


def main() -> None:
    """Rewrite the pages whose figures have changed."""
    for page in pages():
        text = page.read_text()
        if (new := filled(text, page)) != text:
            page.write_text(new)
            print(f"{page.relative_to(ROOT)} written")


if __name__ == "__main__":
    main()
