"""Train the adapters and heads that the package ships, one piece of ``weights.toml`` at a time, resumable.

``make weights ONLY=msn MINUTES=60`` works on one piece for an hour. Finished weights are in ``trained/``; ``SHIP=1``
copies them to the folder that the package ships them from. It takes hours of both cores.
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
#: Largest size of a weight file in the repository, in bytes; larger weights are split into several files.
LARGEST = 10_000_000
CARD = "card.json"


@dataclass(frozen=True)
class Piece:
    """Weights of a method that the package ships, or that a comparison needs.

    Attributes:
        name: name of the piece.
        commands: commands that make the weights, in order.
        made: folder that the last command writes.
        shipped: folder that the weights are copied to.
    """

    name: str
    commands: tuple[str, ...]
    made: str
    shipped: str

    @property
    def in_package(self) -> bool:
        """Whether the package has these weights."""
        return not self.shipped.startswith("trained/")


def read(path: Path = LIST) -> list[Piece]:
    """Read the pieces of a list."""
    found = toml.read(path, "restore it")["piece"]
    return [Piece(one["name"], tuple(one["commands"]), one["made"], one["shipped"]) for one in found]


def train(piece: Piece, minutes: float) -> bool:
    """Run the commands of a piece; return whether all finished in time.

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
    """Copy a piece to its shipped folder and remove the old files, except a model card that the piece does not have.

    Returns:
        The names of the copied files.
    """
    made, shipped = root / piece.made, root / piece.shipped
    files = sorted(file for file in made.iterdir() if file.is_file())
    if not (made / CARD).exists() and (made.parent / CARD).exists():  # the card of a head is in the folder above
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
    """Train the selected pieces; return 0 if all of them are finished."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="?", default="", help="piece to train; default is all that are shipped")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="at most this long for each piece")
    parser.add_argument("--ship", action="store_true", help="copy finished weights to the package")
    asked = parser.parse_args(arguments)
    pieces = [piece for piece in read() if asked.only == piece.name or (not asked.only and piece.in_package)]
    if not pieces:
        print(f"no piece {asked.only!r}; known: {', '.join(piece.name for piece in read())}", file=sys.stderr)
        return 2
    left = 0
    for piece in pieces:
        if not made(piece, asked.minutes):
            print(f"{piece.name} is not finished; repeat the command to resume it", file=sys.stderr)
            left += 1
        elif asked.ship:
            print(f"{piece.shipped}: {', '.join(ship(piece, root))}; read its card, and measure it with make evidence")
        else:
            print(f"{piece.name} is finished, in {piece.made}")
    return 1 if left else 0


if __name__ == "__main__":
    end_by_sigterm()
    raise SystemExit(main(sys.argv[1:]))
