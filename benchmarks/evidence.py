"""Measure the runs that this project's pages quote, one piece at a time, on a quiet machine.

``make evidence`` measures the pieces of the table in ``results/README.md`` that have no run yet; ``make evidence
ONLY=headline`` those whose names begin with "headline". With ``REPEAT=1`` it measures pieces that already have a run,
prints both side by side, and links nothing. Before each piece it checks memory bandwidth and the load of other
processes. If the machine is not quiet, nothing is measured (``ANYWAY=1`` measures anyway, and the run is marked as
disturbed). A run, and each part of a sweep, may wait ten minutes in total while other processes use the memory
(``--patience``). A piece stops after 30 minutes; the same command resumes it, also on another day, as long as the
commit is the same. A finished, undisturbed run is linked in the table, from which `make pages` fills the generated
blocks of the pages.
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
_REPEATED = "results/repeated"  # another folder than the linked runs, which the same command would find as finished
_HEAD, _OPEN = "| piece |", "–"


@dataclass(frozen=True)
class Piece:
    """A line of the table.

    Attributes:
        name: name that ONLY selects by.
        command: command line of the measurement.
        shows, shows_not: conclusions that the run supports, and conclusions that it does not.
        run: link to the run; "–" if it has not been measured.
    """

    name: str
    command: str
    shows: str
    shows_not: str
    run: str

    @property
    def open(self) -> bool:
        """Whether the piece has not been measured yet."""
        return self.run == _OPEN

    @property
    def folder(self) -> str:
        """Folder of the linked run; "" if there is none."""
        found = re.search(r"\]\(([^)]+)\)", self.run)
        return found[1] if found else ""

    def repeated(self) -> Piece:
        """Return the piece with a command that measures it again, in another folder."""
        anew = " --again" if shlex.split(self.command)[1] == "run" else ""
        return replace(self, command=f"{self.command} --out {_REPEATED}{anew}")

    @property
    def line(self) -> str:
        """The piece as a line of the table."""
        return f"| {self.name} | `{self.command}` | {self.shows} | {self.shows_not} | {self.run} |"


def read(text: str) -> list[Piece]:
    """Read the pieces from a page.

    Raises:
        ValueError: a line of the table does not have the expected form, or a name occurs twice.
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
                    raise ValueError(f"the line of {cells[0]} has {len(cells)} cells instead of 5")
                piece = Piece(cells[0], cells[1].strip("`"), *cells[2:])
                if piece.line != row:  # otherwise linking the run would fail at the end
                    raise ValueError(f"the line of {piece.name} has to be written as {piece.line}")
                if piece.name in [each.name for each in found]:
                    raise ValueError(f"{piece.name} occurs twice")
                found.append(piece)
    return found


def linked(text: str, piece: Piece, folder: Path) -> str:
    """Return the page with the piece's run linked."""
    record = json.loads(_record(folder).read_text())
    device = record["environment"]["device"]["name"]
    created = record.get("created_utc") or datetime.strptime(folder.name[:8], "%Y%m%d").date().isoformat()
    link = f"[{folder.name[:16]}…{folder.name[-9:]}]({folder.name}) {created[:10]}, `{device}`"
    done = Piece(piece.name, piece.command, piece.shows, piece.shows_not, link)
    if piece.line not in text:
        raise ValueError(f"the line of {piece.name} has changed")
    return text.replace(piece.line, done.line)


def was_disturbed(folder: Path) -> bool:
    """Whether a run, or a part of a sweep, is marked as disturbed."""
    return any((summary.get("disturbed") or {}).get("reasons") for summary in repetition.parts(folder).values())


def _record(folder: Path) -> Path:
    """Path of the file that records the machine: of a run, a profile, or the first part of a sweep."""
    own = [folder / name for name in ("run.json", "profile.json") if (folder / name).exists()]
    return own[0] if own else min(folder.glob("c*/run.json"))


def is_quiet() -> bool:
    """Watch the machine with ``specbench doctor`` and return whether it is quiet."""
    return subprocess.run([*_specbench(), "doctor", "--watch", str(WATCHED_S)], cwd=ROOT, check=False).returncode == 0


def measure(piece: Piece, minutes: float = MINUTES) -> Path | None:
    """Run a piece and return its folder, or None if the time limit ended it.

    Raises:
        SystemExit: the command failed.
    """
    words = shlex.split(piece.command)
    patient = [*words, "--patience", str(PATIENCE_S)] if words[1] in ("run", "sweep") else words
    output = command_ended(patient, 60 * minutes)
    return None if output is None else ROOT / folder_of(output)


def command_ended(words: Sequence[str], seconds: float) -> str | None:
    """Run a specbench command and return its JSON output, or None after the time limit (finished requests are kept).

    Raises:
        SystemExit: the command failed.
    """
    assert words[0] == "specbench", f"{words[0]} is not specbench"
    with subprocess.Popen(
        [*_specbench(), *words[1:], "--json"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # SIGTERM, because background jobs of a shell ignore Ctrl-C
            process.communicate()
            return None
        except BaseException:
            process.terminate()  # otherwise it would run on and keep its folder locked
            raise
    if process.returncode:
        raise SystemExit(process.returncode)
    return output


def end_by_sigterm() -> None:
    """Turn SIGTERM into an exception, so that the command that this process waits for ends too."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def folder_of(output: str) -> str:
    """Return the run folder from a command's JSON output: an object, or a list with one per task."""
    found = json.loads(output)
    return str((found[0] if isinstance(found, list) else found)["folder"])


def _print_both(then: Path, now: Path) -> None:
    """Print the repeated run next to the linked one."""
    print(f"then results/{then.name}, now {_REPEATED}/{now.name}")
    found = repetition.pairs(then, now)
    if not found:  # a profile has no rows of methods
        print("no speedups to compare; specbench show prints each folder")
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
    """Measure the selected pieces; return 0 if all of them are finished."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "only", nargs="?", default="", help="measure only pieces whose names begin with this; default is all"
    )
    parser.add_argument(
        "--repeat", action="store_true", help="measure pieces that have a run again, to compare the two"
    )
    parser.add_argument("--anyway", action="store_true", help="measure even if the machine is not quiet")
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
            print(f"{piece.name} is not finished; repeat the command to resume it", file=sys.stderr)
            return 1
        if asked.repeat:
            _print_both(page.parent / piece.folder, folder)
            continue
        if was_disturbed(folder) and not asked.anyway:
            print(
                f"{folder.name} was disturbed and is not linked; repeat with --again, or set ANYWAY=1", file=sys.stderr
            )
            return 1
        page.write_text(linked(page.read_text(), piece, folder))
        print(f"linked in {page.name}; make pages quotes it; to commit it: git add --force results/{folder.name}")
    return 0


if __name__ == "__main__":
    end_by_sigterm()
    raise SystemExit(main(sys.argv[1:]))
