"""Every figure that a page quotes of a run is what other code than specbench's finds in the run's raw files.

A section that links to runs, or to records of benchmarks, may hold no number that nobody has found: `page_figures.py`
says of each of its tables and sentences what the numbers are, or why they are none of a run. Intervals behind a
method's name are found by that name.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import page_figures
import pytest
from page_figures import Figure, Sentence, Table
from recompute import Ratio, read

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / "README.md", ROOT / "reports" / "README.md"),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(page for room in ("methods", "tasks") for page in (ROOT / room).rglob("README.md")),
]

WORDS = {
    **{"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10},
    **{"eleven": 11, "twelve": 12, "twenty": 20, "thirty": 30, "forty": 40, "sixty": 60},
}

_WORD = rf"\b(?:{'|'.join(WORDS)})\b"
_PLAIN = r"\d+(?:,\d{3})*(?:\.\d+)?%?"
INTERVAL = re.compile(r"(\d+\.\d+)\s+\[(\d+\.\d+),\s+(\d+\.\d+)\]")
#: What stands for a figure: an interval, a number, a number in words.
QUANTITY = re.compile(rf"\d+\.\d+\s+\[\d+\.\d+,\s+\d+\.\d+\]|(?<![\w.]){_PLAIN}|{_WORD}", re.I)
#: What is taken for a figure of a run until it is known to be none: a decimal number, a share, so many of so many, and
#: so many things that a run counts. Versions have a second point and are none.
_COUNTED = "prompts|problems|sessions|answers|repeats|rows|methods|texts|pairs|settings"
NUMBER = re.compile(
    rf"(?<![\w.])\d+(?:,\d{{3}})*\.\d+%?(?!\w|\.\d)|(?<![\w.])\d+%"
    rf"|(?:(?<![\w.])\d+|{_WORD}) of (?:the |its |their )?(?:\d+|{_WORD})"
    rf"|(?:(?<![\w.,])\d+|{_WORD})\s+(?:{_COUNTED})\b",
    re.I,
)


@dataclass(frozen=True)
class Section:
    """A part of a page under one heading; what is between fences belongs to the heading before it."""

    page: str
    heading: str
    text: str

    @property
    def places(self) -> list[Path]:
        """Runs and sweeps that it links to."""
        links = [link for link in re.findall(r"\]\(([^)#]+)", self.text) if not link.startswith("http")]
        found = [((ROOT / self.page).parent / link).resolve() for link in links]
        return [place for place in found if place.parent == ROOT / "results" and place.is_dir()]

    @property
    def of_runs(self) -> bool:
        """Whether it links to runs, or to records of benchmarks."""
        return bool(self.places) or "benchmarks/records" in self.text


def sections(page: Path) -> Iterator[Section]:
    """The sections of a page."""
    lines, fenced = page.read_text().splitlines(), False
    heading, begun = page.name, list[str]()
    for line in lines:
        fenced ^= line.startswith("```")
        if line.startswith("#") and not fenced:
            yield Section(str(page.relative_to(ROOT)), heading, "\n".join(begun))
            heading, begun = line.strip("# "), []
        begun.append(line)
    yield Section(str(page.relative_to(ROOT)), heading, "\n".join(begun))


QUOTING = [section for page in PAGES for section in sections(page) if section.of_runs]


def agrees(printed: str, figure: Figure) -> bool:
    """Whether a quantity, as it is printed, is a figure, rounded to as many digits."""
    if found := INTERVAL.fullmatch(printed):
        if not isinstance(figure, Ratio):
            return isinstance(figure, tuple) and all(map(agrees, found.groups(), figure))
        return agrees(found[1], figure.value) and figure.has(found[2], found[3])
    value = figure.value if isinstance(figure, Ratio) else figure
    if isinstance(value, tuple):
        return False
    if math.isnan(value):
        return True
    if printed.lower() in WORDS:
        return WORDS[printed.lower()] == value
    number = printed.replace(",", "").removesuffix("%")
    scale = 100 if printed.endswith("%") else 1
    return abs(float(number) - scale * value) <= 0.5 * 10.0 ** -len(number.partition(".")[2]) + 1e-9


def shown(figure: Figure) -> str:
    """A figure for the eye."""
    if not isinstance(figure, Ratio):
        return f"{figure:.4g}" if isinstance(figure, float) else str(figure)
    ends = figure.interval
    return f"{figure.value:.3f}" + (f" [{ends[0]:.3f}, {ends[1]:.3f}]" if ends else "")


def unlike(where: str, printed: Sequence[str], figures: Sequence[Figure] | str) -> list[str]:
    """What is wrong with some quantities: one is another figure than it says, or there are more or fewer."""
    if isinstance(figures, str):
        return [f"{where}: {figures}"]
    if len(printed) != len(figures):
        return [f"{where}: {len(printed)} numbers, and {len(figures)} are known: {[*map(shown, figures)]}"]
    pairs = zip(printed, figures, strict=True)
    return [f"{where}: says {said}, recomputed {shown(found)}" for said, found in pairs if not agrees(said, found)]


@dataclass(frozen=True)
class Recomputed:
    """What was found for a sentence or a cell.

    Attributes:
        figures: these, or what does not hold; None where there are only words.
        asked: folders of runs that they are of.
    """

    figures: Sequence[Figure] | str | None
    asked: frozenset[Path]

    @classmethod
    def by(cls, make: Callable[[], Sequence[Figure] | None]) -> Recomputed:
        """What a function of the table finds, and in which runs."""
        page_figures.ASKED.clear()
        try:
            figures: Sequence[Figure] | str | None = make()
        except (AssertionError, LookupError) as reason:
            figures = str(reason)
        return cls(figures, frozenset(page_figures.ASKED))


@cache
def of_sentence(sentence: Sentence) -> Recomputed:
    """Its figures, computed once."""
    return Recomputed.by(sentence.figures)


@cache
def of_cell(table: Table, row: str, column: str) -> Recomputed:
    """The figures of a cell, computed once."""
    return Recomputed.by(lambda: table.cell(row, column))


@cache
def pattern(words: str) -> re.Pattern[str]:
    """Words of a page as a pattern: ``{}`` is a quantity, ``…`` what is between, and any space is one."""
    parts = {"{}": f"({QUANTITY.pattern})", "…": r".{0,1000}?"}
    split = re.split(r"(\{\}|…|\s+)", words)
    return re.compile(
        "".join(r"\s+" if part.isspace() else parts.get(part, re.escape(part)) for part in split), re.S | re.I
    )


def faults(section: Section) -> list[str]:
    """What is wrong with the numbers of a section; empty where all of them are found."""
    found, asked = list[str](), set[Path]()
    known = [*_in_tables(section, found, asked), *_in_sentences(section, found, asked)]
    found += [f"no link to {place.name}, of which figures are" for place in sorted(asked.difference(section.places))]
    left = list(_masked(section.text, known))
    for match in INTERVAL.finditer("".join(left)):
        if any(agrees(match[0], ratio) for ratio in _named_before(section, match.start())):
            left[match.start() : match.end()] = " " * len(match[0])
    for match in NUMBER.finditer("".join(left)):
        around = " ".join(section.text[max(0, match.start() - 60) : match.end() + 40].split())
        found.append(f"nobody has found {match[0]!r}: … {around} …")
    return found


def _in_tables(section: Section, found: list[str], asked: set[Path]) -> Iterator[tuple[int, int]]:
    for match in re.finditer(r"(?:^\|.*\n?)+", section.text, re.M):
        lines = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in match[0].splitlines()]
        tables = [one for one in page_figures.TABLES if one.of == (section.page, section.heading)]
        table = next((one for one in tables if one.head in match[0].splitlines()[0]), None)
        if table is None:
            continue
        yield match.span()
        columns = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", cell) for cell in lines[0]]
        for cells in lines[2:] if table.cell is not page_figures.words else []:
            row = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " | ".join(cells[: table.names]))
            for column, cell in [*zip(columns, cells, strict=True)][table.names :]:
                known = of_cell(table, row, column)
                asked |= known.asked
                printed = [quantity[0] for quantity in QUANTITY.finditer(cell)]
                if known.figures is not None:
                    found += unlike(f"row {row!r}, column {column!r}", printed, known.figures)
                elif NUMBER.search(cell):
                    found.append(f"row {row!r}, column {column!r}: nobody has found {cell!r}")


def _in_sentences(section: Section, found: list[str], asked: set[Path]) -> Iterator[tuple[int, int]]:
    for sentence in page_figures.SENTENCES:
        if sentence.of != (section.page, section.heading):
            continue
        matches = list(pattern(sentence.words).finditer(section.text))
        if len(matches) != 1:
            found.append(f"{len(matches)} times in the section, and once is meant: {sentence.words!r}")
        for match in matches:
            if sentence.why:
                yield match.span()
                continue
            known = of_sentence(sentence)
            asked |= known.asked
            found += unlike(repr(" ".join(match[0].split())), match.groups(), known.figures or ())
            yield from (match.span(number) for number in range(1, 1 + len(match.groups())))


def _masked(text: str, known: Sequence[tuple[int, int]]) -> str:
    """The text with blanks for what is found, for commands, for code and for addresses."""
    spans = [*known]
    for each in (r"^(?:    |make |specbench ).*$", r"`[^`\n]*`", r"\]\([^)]*\)", r"95%\s+interval"):
        spans += [match.span() for match in re.finditer(each, text, re.M)]
    left = list(text)
    for start, end in spans:
        left[start:end] = [" " if letter != "\n" else letter for letter in left[start:end]]
    return "".join(left)


def _named_before(section: Section, at: int) -> Iterator[Ratio]:
    """Speedups of the row that was named last before a place in the text, in each of the section's runs that has it."""
    runs = [read(place) for place in section.places if (place / "run.json").exists()]
    labels = {label for run in runs for label in run.labels} - {"ar"}
    before = [name for name in re.findall(r"`([^`\n]+)`", section.text[max(0, at - 200) : at]) if name in labels]
    yield from (run.speedup(before[-1]) for run in runs if before and before[-1] in run.labels)


@pytest.mark.parametrize("section", [pytest.param(one, id=f"{one.page} {one.heading}") for one in QUOTING])
def test_what_a_page_quotes_is_recomputed_from_the_raw_files(section: Section) -> None:
    assert not (found := faults(section)), "\n".join(found)


def test_every_line_of_the_table_is_of_a_section_that_is_there() -> None:
    texts = {(section.page, section.heading): section.text for section in QUOTING}
    assert {one.of for one in page_figures.SENTENCES} <= texts.keys()
    assert not [one for one in page_figures.TABLES if one.head not in texts.get(one.of, "")]


def _section(page: str, heading: str) -> Section:
    return next(section for section in QUOTING if (section.page, section.heading) == (page, heading))


@pytest.mark.parametrize(
    ("page", "heading", "said", "planted"),
    [
        ("reports/README.md", "The family on the embedded model", "1.94 · 0.48 [", "1.95 · 0.48 ["),  # a cell's number
        ("reports/README.md", "The family on the embedded model", "1.59 [1.47, 1.72]", "1.59 [1.47, 1.75]"),
        ("README.md", "specbench", "790  2.43  112.9", "790  2.43  112.8"),  # the table at the head
        ("README.md", "specbench", "`jacobi` 0.75 [0.74, 0.77]", "`jacobi` 0.75 [0.71, 0.77]"),
        ("README.md", "specbench", "2.85 times", "2.84 times"),
        ("README.md", "specbench", "Seven of the forty", "Six of the forty"),
        ("README.md", "specbench", "Not one answer", "It is 1.7 times as fast. Not one answer"),  # nobody has found it
        ("README.md", "specbench", "without these prompts the three", "without them the three"),  # other words
        ("README.md", "specbench", "111305Z-", "225426Z-"),  # the link to the run is gone
        ("docs/no-training.md", "What was measured", "`suffix` 1.42 [1.32, 1.53]", "`suffix` 1.42 [1.32, 1.58]"),
    ],
)
def test_a_wrong_digit_is_found(page: str, heading: str, said: str, planted: str) -> None:
    section = _section(page, heading)
    assert section.text.count(said) == 1
    wrong = replace(section, text=section.text.replace(said, planted))
    assert len(faults(wrong)) > len(faults(section))


def test_an_interval_behind_a_name_is_of_that_row_of_a_run_beside_it() -> None:
    link = page_figures.named(page_figures.GSM8K).name
    section = Section("README.md", "A new one", f"In [a run](results/{link}) `pld` is at 1.41 [1.28, 1.56] over AR.")
    assert faults(section) == []
    assert len(faults(replace(section, text=section.text.replace("1.56", "1.61")))) == 3
    assert len(faults(replace(section, text=section.text.replace("`pld`", "`jf`")))) == 3
    assert len(faults(replace(section, text=f"{section.text} That is 7 rows and 12%."))) == 2
    assert len(faults(replace(section, text=f"{section.text}\n\n| a | b |\n| --- | --- |\n| c | 1.23 |"))) == 1


def test_what_recomputes_has_nothing_of_specbench() -> None:
    for file in ("recompute.py", "page_figures.py"):
        text = (ROOT / "tests" / file).read_text()
        assert "import" in text
        assert not re.search(r"^\s*(?:from|import) specbench", text, re.M)


@pytest.mark.parametrize("section", [pytest.param(one, id=f"{one.page} {one.heading}") for one in QUOTING])
def test_most_wrong_digits_are_found(section: Section) -> None:
    drawn, before = random.Random(section.heading), len(faults(section))
    digits = last_digits(section)
    tried = drawn.sample(digits, min(12, len(digits)))
    found = 0
    for at in tried:
        digit = drawn.choice([one for one in "0123456789" if one != section.text[at]])
        wrong = replace(section, text=section.text[:at] + digit + section.text[at + 1 :])
        found += len(faults(wrong)) > before
    assert found >= 0.75 * len(tried)


def last_digits(section: Section) -> list[int]:
    """Where the last digits of decimal numbers stand that are said to be a run's: a wrong one is the least wrong."""
    none = [
        match.span()
        for one in page_figures.SENTENCES
        if one.why and one.of == (section.page, section.heading)
        for match in pattern(one.words).finditer(section.text)
    ]
    for table in page_figures.TABLES:
        if table.cell is page_figures.words and table.of == (section.page, section.heading):
            start = section.text.index(table.head)
            none.append((start, section.text.find("\n\n", start) % (len(section.text) + 1)))
    text = _masked(section.text, none)
    return [match.end() - 1 for match in re.finditer(r"(?<![\w.])\d+\.\d+(?!\w|\.\d)", text)]
