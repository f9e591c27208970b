"""Weights: trains what is shipped, a piece of ``weights.toml`` at a time, going on where it was broken off.

``make weights ONLY=msn MINUTES=60`` goes on with one piece for an hour; what is finished lies in ``trained/``, and
``SHIP=1`` puts it in the place that the package ships it from. It wants both cores and hours of them.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file

from benchmarks.evidence import ROOT, command_ended, end_by_sigterm
from specbench.common import toml

LIST = Path(__file__).with_name("weights.toml")
MINUTES = 180.0
#: Bytes of a file of weights in the repository; more are cut into several, as the hub's are.
LARGEST = 10_000_000
CARD = "card.json"


@dataclass(frozen=True)
class Piece:
    """What is shipped for a method.

    Attributes:
        name: the method's.
        commands: that make it, in their order.
        made: the folder that the last one leaves.
        shipped: the folder of the package that it goes to.
    """

    name: str
    commands: tuple[str, ...]
    made: str
    shipped: str


def read(path: Path = LIST) -> list[Piece]:
    """The pieces of a list."""
    found = toml.read(path, "restore it")["piece"]
    return [Piece(one["name"], tuple(one["commands"]), one["made"], one["shipped"]) for one in found]


def train(piece: Piece, minutes: float) -> bool:
    """Executes what makes a piece; returns whether it came to its end in time.

    Raises:
        SystemExit: a command failed.
    """
    until = time.monotonic() + 60 * minutes
    for command in piece.commands:
        print(f"\n{command}", flush=True)
        if command_ended(shlex.split(command), max(1.0, until - time.monotonic())) is None:
            return False
    return True


def ship(piece: Piece, root: Path = ROOT) -> list[str]:
    """Puts a piece in its place, and takes away what was there before but for a card that it does not bring.

    Returns:
        Its files.
    """
    made, shipped = root / piece.made, root / piece.shipped
    files = sorted(file for file in made.iterdir() if file.is_file())
    if not (made / CARD).exists() and (made.parent / CARD).exists():  # a head's lies beside it
        files.append(made.parent / CARD)
    card = shipped / "README.md"
    written = card.read_text() if card.exists() else ""
    shutil.rmtree(shipped, ignore_errors=True)
    shipped.mkdir(parents=True)
    if written:
        card.write_text(written)
    for file in files:
        if file.suffix == ".safetensors" and file.stat().st_size > LARGEST:
            save_torch_state_dict(load_file(file), shipped, max_shard_size=LARGEST)
        else:
            shutil.copyfile(file, shipped / file.name)
    return sorted(file.name for file in shipped.iterdir())


def main(arguments: Sequence[str], made: Callable[[Piece, float], bool] = train, root: Path = ROOT) -> int:
    """Trains; returns 0 where all that was asked for is finished."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="?", default="", help="the piece; default is all")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of each piece, at most")
    parser.add_argument("--ship", action="store_true", help="put what is finished in its place")
    asked = parser.parse_args(arguments)
    pieces = [piece for piece in read() if asked.only in ("", piece.name)]
    if not pieces:
        print(f"no piece {asked.only!r}; known: {', '.join(piece.name for piece in read())}", file=sys.stderr)
        return 2
    left = 0
    for piece in pieces:
        if not made(piece, asked.minutes):
            print(f"{piece.name} is not finished; repeat the command to go on", file=sys.stderr)
            left += 1
        elif asked.ship:
            print(f"{piece.shipped}: {', '.join(ship(piece, root))}; look at its card, and measure it: make evidence")
        else:
            print(f"{piece.name} is finished, in {piece.made}")
    return 1 if left else 0


if __name__ == "__main__":
    end_by_sigterm()
    raise SystemExit(main(sys.argv[1:]))
