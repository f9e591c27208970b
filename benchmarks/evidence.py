"""Evidence: measures the runs that pages of this project quote, a piece at a time, on a machine that is quiet.

``make evidence`` takes the pieces of the table in ``results/README.md`` that have no run yet; ``make evidence
ONLY=headline`` those whose names begin so. With ``REPEAT=1`` it measures those that have a run, prints both side by
side, and links nothing. Before each one the machine is watched: memory bandwidth and what other processes take; where
it is not quiet, nothing is measured (``ANYWAY=1`` measures all the same, and the run says that it was disturbed). A
run, and each part of a sweep, may wait ten minutes in all while a neighbour reads memory (``--patience``). A piece
ends after 30 minutes at the latest; the same command goes on where it stopped, today or another day, as long as the
commit is the same. What is finished, and was not disturbed meanwhile, is linked in the table, by whose names the pages'
generated blocks ask for figures: `make pages` fills them.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console

from benchmarks import repetition

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "results" / "README.md"
MINUTES, WATCHED_S, PATIENCE_S = 30.0, 10, 600
_REPEATED = "results/repeated"  # apart from what is linked, or the same command would show that
_HEAD, _OPEN = "| piece |", "–"


@dataclass(frozen=True)
class Piece:
    """A line of the table.

    Attributes:
        name: what ONLY selects.
        command: as a reader types it.
        shows, shows_not: what may be said with it, and what not.
        run: where it lies; "–" where it has not been measured.
    """

    name: str
    command: str
    shows: str
    shows_not: str
    run: str

    @property
    def open(self) -> bool:
        """Whether it is still to be measured."""
        return self.run == _OPEN

    @property
    def folder(self) -> str:
        """Of its run; "" where it has none."""
        found = re.search(r"\]\(([^)]+)\)", self.run)
        return found[1] if found else ""

    def repeated(self) -> Piece:
        """The same, beside what is linked, and anew where a run of an earlier repetition is there whole."""
        anew = " --again" if shlex.split(self.command)[1] == "run" else ""
        return replace(self, command=f"{self.command} --out {_REPEATED}{anew}")

    @property
    def line(self) -> str:
        """As the table has it."""
        return f"| {self.name} | `{self.command}` | {self.shows} | {self.shows_not} | {self.run} |"


def read(text: str) -> list[Piece]:
    """The pieces of a page.

    Raises:
        ValueError: a line of the table has not five cells as they are written here, or two have one name.
    """
    lines = iter(text.splitlines())
    found: list[Piece] = []
    for line in lines:
        if line.startswith(_HEAD):
            next(lines, "")
            for row in lines:
                if not row.startswith("|"):
                    return found
                cells = [cell.strip() for cell in row.strip().strip("|").split(" | ")]
                if len(cells) != 5:
                    raise ValueError(f"the line of {cells[0]} has {len(cells)} cells, and the table 5")
                piece = Piece(cells[0], cells[1].strip("`"), *cells[2:])
                if piece.line != row:  # or the run could not be linked in the end
                    raise ValueError(f"the line of {piece.name} is not written as {piece.line}")
                if piece.name in [each.name for each in found]:
                    raise ValueError(f"{piece.name} is there twice")
                found.append(piece)
    return found


def linked(text: str, piece: Piece, folder: Path) -> str:
    """The page with a piece's run."""
    record = json.loads(_record(folder).read_text())
    device = record["environment"]["device"]["name"]
    created = record.get("created_utc") or datetime.strptime(folder.name[:8], "%Y%m%d").date().isoformat()
    link = f"[{folder.name[:16]}…{folder.name[-9:]}]({folder.name}) {created[:10]}, `{device}`"
    done = Piece(piece.name, piece.command, piece.shows, piece.shows_not, link)
    if piece.line not in text:
        raise ValueError(f"the line of {piece.name} is not what it was")
    return text.replace(piece.line, done.line)


def was_disturbed(folder: Path) -> bool:
    """Whether something disturbed a run while it was measured, or a part of a sweep."""
    return any((summary.get("disturbed") or {}).get("reasons") for summary in repetition.parts(folder).values())


def _record(folder: Path) -> Path:
    """What says where it was measured: of a run, of a profile, or of the first part of a sweep."""
    own = [folder / name for name in ("run.json", "profile.json") if (folder / name).exists()]
    return own[0] if own else min(folder.glob("c*/run.json"))


def is_quiet() -> bool:
    """Watches the machine; says what it finds."""
    return subprocess.run([*_specbench(), "doctor", "--watch", str(WATCHED_S)], cwd=ROOT, check=False).returncode == 0


def measure(piece: Piece, minutes: float = MINUTES) -> Path | None:
    """Runs a piece; returns its folder, None where the time ended first.

    Raises:
        SystemExit: its command failed.
    """
    words = shlex.split(piece.command)
    patient = [*words, "--patience", str(PATIENCE_S)] if words[1] in ("run", "sweep") else words
    said = command_ended(patient, 60 * minutes)
    return None if said is None else ROOT / folder_of(said)


def command_ended(words: Sequence[str], seconds: float) -> str | None:
    """What a command of ours wrote as JSON; None where the time ended first, and what it had finished is kept.

    Raises:
        SystemExit: it failed.
    """
    assert words[0] == "specbench", f"{words[0]} is no command of ours"
    with subprocess.Popen(
        [*_specbench(), *words[1:], "--json"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # a shell has its background ignore Ctrl-C
            process.communicate()
            return None
        except BaseException:
            process.terminate()  # or it would go on without us, and hold its folder
            raise
    if process.returncode:
        raise SystemExit(process.returncode)
    return said


def end_by_sigterm() -> None:
    """Has SIGTERM end this process as an exception does, and so the command that it waits for too."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def folder_of(said: str) -> str:
    """The folder in what a command wrote as JSON: an object, or one for each task."""
    found = json.loads(said)
    return str((found[0] if isinstance(found, list) else found)["folder"])


def _beside(then: Path, now: Path) -> None:
    """Prints what was measured again beside what is linked."""
    print(f"then results/{then.name}, now {_REPEATED}/{now.name}")
    found = repetition.pairs(then, now)
    if not found:  # a profile has rows of steps, and no method's
        print("nothing in them is over AR; specbench show prints each")
        return
    Console().print(repetition.table(found))
    disturbed = "; something disturbed the repetition" if was_disturbed(now) else ""
    print(f"{repetition.count(found)}{disturbed}")


def _specbench() -> list[str]:
    return [sys.executable, "-m", "specbench"]


def main(
    arguments: Sequence[str],
    quiet: Callable[[], bool] = is_quiet,
    run: Callable[[Piece], Path | None] = measure,
    page: Path = LIST,
) -> int:
    """Measures; returns 0 where nothing is left of what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="?", default="", help="pieces whose names begin so; default is all")
    parser.add_argument("--repeat", action="store_true", help="those that have a run, to hold another one against it")
    parser.add_argument("--anyway", action="store_true", help="measure on a machine that is not quiet too")
    asked = parser.parse_args(arguments)
    try:
        pieces = [piece for piece in read(page.read_text()) if piece.name.startswith(asked.only)]
    except ValueError as error:
        print(f"{page.name}: {error}", file=sys.stderr)
        return 2
    if not pieces:
        print(f"no piece begins with {asked.only!r}; see {page.name}", file=sys.stderr)
        return 2
    left = [piece for piece in pieces if piece.open != asked.repeat]
    print(f"{sum(not piece.open for piece in pieces)} of {len(pieces)} pieces are measured")
    for piece in left:
        print(f"\n{piece.name}: {piece.command}\n{datetime.now(timezone.utc):%H:%M} UTC", flush=True)
        if not quiet() and not asked.anyway:
            print("The machine is not quiet; nothing is measured. Repeat the command later.", file=sys.stderr)
            return 1
        folder = run(piece.repeated() if asked.repeat else piece)
        if folder is None:
            print(f"{piece.name} is not finished; repeat the command to go on", file=sys.stderr)
            return 1
        if asked.repeat:
            _beside(page.parent / piece.folder, folder)
            continue
        if was_disturbed(folder) and not asked.anyway:
            print(f"{folder.name} was disturbed, and is not linked; repeat with --again, or ANYWAY=1", file=sys.stderr)
            return 1
        page.write_text(linked(page.read_text(), piece, folder))
        print(f"linked in {page.name}; make pages quotes it; to commit it: git add --force results/{folder.name}")
    return 0


if __name__ == "__main__":
    end_by_sigterm()
    raise SystemExit(main(sys.argv[1:]))
