"""What is shown of files in which every text is hostile: visible, no one's control sequence, and never markup."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Group
from rich.table import Table
from rich.text import Text
from support import runs

import specbench
from specbench.analysis.read import read_run
from specbench.cli.app import main
from specbench.cli.streams import Stream, closing
from specbench.common import UsageError
from specbench.common.escape import console, escape_control
from specbench.common.progress import bar
from specbench.sweeps import read_sweep

#: In front of every text of every file. A request's key is made of three of them, between bars: the bar is apart.
HOSTILE = (
    "=cmd()\x1b]0;x\x07\x1b[2J\u202e\u2066\u200b\u2028\U000e0041\x85\x9b31m\x7f[/x][bold][link=http://h]:smile:<script>"
    "\\input{x}`$x$\n\r\t\0\"'"
)
#: The same for the label of a method, which is refused where a letter of it cannot be printed; these can, to no avail.
LABEL = "=cmd()[/x][bold][link=http://h]:smile:\U000e0101\\input{x}`$x$"
TOKENS = [HOSTILE, "</script>", "\x1b[31m", "\u202e"]
TEXT, ORIGINS = "".join(TOKENS), "abca"
#: Keys of files that are names; the others are fields.
NAMES = {"jf", "hits", "strict", "window", "toy n=2", "toy"}
#: Enough to be sure that something of it was shown, where columns are narrow.
SEEN = re.compile(r"=cmd\(\)\\x1b|\\x1b\]0|\\u202e|\[bold\]")
STYLE = re.compile(r"\x1b\[[0-9;]*m")
#: What rich does to the terminal itself while something moves.
MOVES = re.compile(r"\x1b\[(\?25[lh]|[0-9]*[AK]|2K)|\r(?=\x1b\[|\n|$)")


SOURCES = Path(specbench.__file__).parent


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from value.split("|")
    elif isinstance(value, dict):
        yield from (each for key in value for each in key.split("|") if each in NAMES)
        yield from (each for inner in value.values() for each in strings(inner))
    elif isinstance(value, list):
        yield from (each for inner in value for each in strings(inner))


def renamed(value: Any, names: Mapping[str, str], key: bool = False) -> Any:
    if isinstance(value, str):
        return "|".join(names.get(part, part) if not key or part in NAMES else part for part in value.split("|"))
    if isinstance(value, dict):
        return {renamed(name, names, True): renamed(inner, names) for name, inner in value.items()}
    return [renamed(inner, names) for inner in value] if isinstance(value, list) else value


class Folder:
    """A folder of JSON files in which as many texts are made hostile as its reader lets pass."""

    def __init__(self, path: Path, files: Mapping[str, bytes], read: Any) -> None:
        self.path, self._read = path, read
        self._files = {name: [json.loads(line) for line in self._lines(name, text)] for name, text in files.items()}
        self.names: dict[str, str] = {}
        found = {each for rows in self._files.values() for row in rows for each in strings(row)}
        found -= {"", "ar", TEXT, ORIGINS}
        self._grow(sorted(found), HOSTILE)
        self._grow(sorted(found - self.names.keys()), LABEL)
        self._write(self.names)

    def _lines(self, name: str, text: bytes) -> list[bytes]:
        return text.splitlines() if name.endswith("l") else [text]

    def _grow(self, more: Sequence[str], text: str) -> None:
        """Makes those of them hostile that may be, in halves: most may."""
        tried = self.names | {each: text + each for each in more}
        self._write(tried)
        try:
            self._read(self.path)
        except UsageError:
            if len(more) > 1:
                self._grow(more[: len(more) // 2], text)
                self._grow(more[len(more) // 2 :], text)
        else:
            self.names = tried

    def _write(self, names: Mapping[str, str]) -> None:
        for name, rows in self._files.items():
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            texts = [json.dumps(renamed(row, names)) for row in rows]
            (self.path / name).write_text("\n".join(texts) + "\n")


def traced_run(out: Path) -> dict[str, bytes]:
    """The files of a run of two methods and two prompts whose tokens are hostile and have their times."""
    more = {
        **runs.traced(TOKENS, [2, 1], ORIGINS, ["prefill", "draft", "bonus"]),
        "step_s": [0.25, 0.5],
        "gpu": runs._GPU,
    }
    rows = [("ar", 2.0), ("jf", 1.0)]
    records = [
        record.model_copy(update={**more, "category": f"c{at}/x", "measures": {"hits": 1.5}})
        for label, seconds in rows
        for at, record in enumerate(runs.answers(label, 2, decode_s=seconds))
    ]
    path = runs.folder(out, runs.run_config(["jf"], 2), records, lossless={"jf": runs.EXACT}, metrics=["strict"])
    return {name: (path / name).read_bytes() for name in (runs.RUN, runs.SUMMARY, runs.REQUESTS)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("hostile")
    others = {runs.WATCH.name: runs.watch(), runs.BANDWIDTH.name: runs.memory()}
    made = Folder(out / "run", {**runs.a_run(), **others, **traced_run(out / "made")}, read_run)
    assert {"jf", "p/0", "c0/x", "humaneval", "hits", "block", "x:1", "power cap"} <= made.names.keys()
    (made.path / "DONE").touch()
    return made.path


@pytest.fixture(scope="module")
def other(run: Path) -> Path:
    return shutil.copytree(run, run.parent / "other")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Folder(tmp_path_factory.mktemp("hostile") / "sweep", runs.a_sweep(), read_sweep)
    assert {"p0", "cpu"} & made.names.keys()
    return made.path


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from specbench.hardware import read_profile

    good = runs.made_up_profile(contexts=(512,), slots=()).model_dump_json().encode()
    made = Folder(tmp_path_factory.mktemp("hostile") / "profile", {"profile.json": good}, read_profile)
    assert {"a CPU", "NVIDIA H200"} & made.names.keys()
    return made.path


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str


def call(folder: Path, columns: int, *argv: object) -> CommandResult:
    """A command on the streams that the script gives it."""
    files = [folder / name for name in ("stdout", "stderr")]
    with files[0].open("w") as out, files[1].open("w") as err, pytest.MonkeyPatch.context() as patched:
        patched.setenv("COLUMNS", str(columns))
        patched.setattr("sys.stdout", Stream(out))
        patched.setattr("sys.stderr", Stream(err))
        code = closing(main([str(each) for each in argv]))
    return CommandResult(code, *(file.read_bytes().decode() for file in files))


def hidden(text: str, keep: str = "\n") -> list[str]:
    """Letters that are obeyed or not seen, by what the Unicode database says of them."""
    categories = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    unseen = set("\U000e0101\u3164\u115f")  # of other categories, and nothing to see all the same
    found = {one for one in text if one not in keep and (unicodedata.category(one) in categories or one in unseen)}
    return sorted(hex(ord(one)) for one in found)


REQUEST, RACE = f"{HOSTILE}p/0", f"ar,{LABEL}jf"
RACED = ("--race", RACE, "--speed", "50")
TABLES: Sequence[Sequence[str]] = ([], ["--summary"], ["--positions"])
#: The reading commands with every view that they have, and the exit code. What is in capitals is a folder.
READING: Mapping[str, Sequence[tuple[int, Sequence[str]]]] = {
    "show": [
        *((0, [folder, *json_]) for folder in ("RUN", "SWEEP", "PROFILE") for json_ in ([], ["--json"])),
        *((0, ["RUN", *view, *json_]) for view in (["--requests"], ["--request", REQUEST], RACED)
          for json_ in ([], ["--json"])),
        (2, ["RUN", "--request", "nowhere"]), (2, ["RUN", "--request", REQUEST, "--method", "no one"]),
    ],
    "compare": [(0, ["RUN", "OTHER", *more]) for more in ([], ["--prompts"], ["--json"])],
    "claims": [(0, ["--check", "RUN"]), (0, ["--check", "RUN", "--all"]), (0, ["--check", "RUN", "--json"])],
    "report": [
        (0, ["RUN", "--out", "OUT"]),
        *((0, ["RUN", *table, "--to", to]) for to in ("csv", "json", "md", "latex") for table in TABLES),
        (0, ["SWEEP", "--to", "csv"]), (2, ["RUN", "--to", "csv", "--columns", HOSTILE]),
    ],
    "score": [(2, ["RUN"]), (2, ["RUN", "--judge", "config:tiny"])],  # of an unknown task
}  # fmt: skip


@pytest.mark.parametrize("command", sorted(READING))
@pytest.mark.parametrize(("columns", "terminal"), [(80, False), (140, True)])
def test_a_reading_command(
    run: Path, other: Path, sweep: Path, profiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    command: str, columns: int, terminal: bool,
) -> None:  # fmt: skip
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # a race on a terminal takes its time
    places = {"RUN": run, "OTHER": other, "SWEEP": sweep, "PROFILE": profiled, "OUT": tmp_path / "out"}
    seen, styled = "", False
    for code, argv in READING[command]:
        result = call(tmp_path, columns, command, *(places.get(word, word) for word in argv))
        bare = STYLE.sub("", result.out + result.err)
        assert (result.code, hidden(MOVES.sub("", bare) if "--race" in argv else bare)) == (code, []), argv
        assert result.err.startswith("error: ") == (code != 0)
        seen += bare.replace("\n", "")
        styled = styled or STYLE.search(result.out) is not None
    assert styled == (terminal and command in ("show", "compare", "claims"))
    assert SEEN.search(seen) or command == "report"
    assert "\U0001f604" not in seen  # no name is an emoji's


#: What of rich makes a console of its own, or markup of every text.
PAST = re.compile(
    r"(?<![.\w])(?:Console\(|Panel\(|print\(|from_markup|TextColumn\((?!\"left\"|.*markup=False))|markup=True"
)


def test_no_source_prints_past_the_console() -> None:
    lines = [
        f"{file.relative_to(SOURCES)}: {line.strip()}"
        for file in sorted(SOURCES.rglob("*.py"))
        for line in file.read_text().splitlines()
        if PAST.search(line)
    ]
    assert lines == ['common/progress.py: TextColumn("{task.completed}/{task.total}"),']


@pytest.mark.parametrize("color", [False, True])
def test_a_console_shows_any_text(monkeypatch: pytest.MonkeyPatch, color: bool) -> None:
    out = io.StringIO()
    if color:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stdout", out)
    made = console()
    table = Table(HOSTILE, title=HOSTILE, caption=HOSTILE)
    table.add_row(HOSTILE)
    table.add_row(Text(HOSTILE, "bold"))
    for each in (HOSTILE, Text(HOSTILE, "red"), table, Group(HOSTILE)):
        made.print(each, soft_wrap=True)
    made.out(HOSTILE)
    made.rule(HOSTILE)
    with bar(made) as progress:
        progress.add_task(HOSTILE, total=2, completed=1)
        progress.refresh()
    text = out.getvalue()
    assert hidden(MOVES.sub("", STYLE.sub("", text))) == []
    assert (STYLE.search(text) is not None) == color
    assert text.count("[link=http://h]:smile:") >= 5


def test_visible() -> None:
    for one in "\x00\x1b\x7f\x85\x9b\u200b\u200f\u2028\u202e\u2066\ufeff\ud800\U000e0041":
        assert escape_control(one, lines=False) == one.encode("unicode_escape").decode()
    assert escape_control("a\tb\n") == "a\tb\n"
    assert escape_control("na\u00efve \u4f60\u597d \\n") == "na\u00efve \u4f60\u597d \\n"


class Tags(HTMLParser):
    """The elements of a page, and its attributes that run something or go somewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.odd: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.odd += [f"{name}={value}" for name, value in attrs if name.startswith("on") or "cmd()" in name]
        self.odd += [value or "" for name, value in attrs if name in ("href", "src") and (value or "")[:1] not in "#dr"]


def test_what_is_written(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    assert call(tmp_path, 80, "report", run, "--out", out).code == 0
    assert call(tmp_path, 80, "show", run, "--race", RACE, "--request", REQUEST, "--out", out / "race.html").code == 0
    pages = sorted(out.rglob("*.html"))
    assert len(pages) >= 2
    for file in [*pages, out / "report.md", out / "report.csv", *out.rglob("*.svg")]:
        text = file.read_text()
        assert hidden(text, "\n\t") == [], file
        assert SEEN.search(text), file
    for page in pages:
        tags = Tags(page.read_text())
        assert tags.odd == []
        assert tags.names.count("script") == (0 if page.name == "report.html" else 2)
    drawings = re.findall(r"<svg.*?</svg>", (out / "report.html").read_text(), re.DOTALL)
    assert drawings
    for drawing in drawings:
        assert not [each for each in ElementTree.fromstring(drawing).iter() if each.tag.endswith("script")]
    assert_no_formulas((out / "report.csv").read_text())


@pytest.mark.parametrize("table", TABLES, ids=lambda table: "".join(table) or "requests")
def test_a_spreadsheet_computes_nothing(run: Path, tmp_path: Path, table: Sequence[str]) -> None:
    assert_no_formulas(call(tmp_path, 80, "report", run, "--to", "csv", *table).out)


def assert_no_formulas(text: str) -> None:
    cells = [cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row]
    assert [cell for cell in cells if cell.lstrip(" \t\r\n\"'")[:1] in tuple("=+@") and not cell.startswith("'")] == []
    assert any(cell.startswith("'=cmd()\\x1b]0;x\\x07") or cell.startswith("'=cmd()[/x]") for cell in cells)


def test_a_text_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    for made in ("x" * 10_000_000, Text("x" * 10_000_000, "bold")):
        out = io.StringIO()
        monkeypatch.setattr("sys.stdout", out)
        console().print(made, soft_wrap=True)
        assert out.getvalue() == "x" * 50_000 + "… (too long to show)\n"
