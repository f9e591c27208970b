"""What this process is doing, in shared memory that the supervisor reads even when this process hangs.

Whoever calls a plug-in or a forward records it here: two stores of an integer, since some of it is on the clock. A
forked child writes to the same place, so only processes that decode write.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from enum import IntEnum

#: Places of :data:`CELLS`.
AT, BEATS, LIMIT_MS, ENDED = range(4)


class Activity(IntEnum):
    """What is done at the moment."""

    OURS = 0  # nothing that is watched
    HOSTED = 1  # a guest's code, nothing is timed
    BEGIN = 2
    DRAFT = 3
    OBSERVE = 4
    END = 5
    MEASURES = 6
    FORWARD = 7  # of the engine


#: How a sentence says what a guest did.
WORDS = {
    Activity.OURS: "between two steps",
    Activity.HOSTED: "before anything is timed",
    Activity.BEGIN: "in begin",
    Activity.DRAFT: "in draft",
    Activity.OBSERVE: "in observe",
    Activity.END: "in end",
    Activity.MEASURES: "in measures or branches",
    Activity.FORWARD: "in the target's forward",
}

_WORDS, _TEXT, _PARTS = 64, 1024, 3  # bytes of the integers, and of each text
_memory = mmap.mmap(-1, mmap.PAGESIZE)

#: Unsigned integers; also written to directly, where a call would cost more than the store.
SHARED = memoryview(_memory)[:_WORDS].cast("Q")


@dataclass(frozen=True)
class Reading:
    """What was read.

    Attributes:
        beats: grows with every step.
        limit_s: seconds that a call may take; 0 is for ever.
        ended: the exit code that the command came to; None before.
        who: the guest, as an error names it; empty where none is known.
    """

    at: Activity
    beats: int
    limit_s: float
    ended: int | None
    who: str
    row: str
    folder: str

    @property
    def allowed_s(self) -> float:
        """Seconds that it may go on as it is; 0 is for ever. What is hosted may load models, and has ten times that."""
        return 0.0 if self.at == Activity.OURS else self.limit_s * (10 if self.at == Activity.HOSTED else 1)


def clear() -> None:
    """Forgets everything, as before another process begins."""
    _memory[:] = bytes(len(_memory))


def record(**texts: str) -> None:
    """Writes ``who``, ``row`` or ``folder``."""
    for name, text in texts.items():
        start = _WORDS + _TEXT * ("who", "row", "folder").index(name)
        written = text.encode(errors="replace")[: _TEXT - 1]
        _memory[start : start + _TEXT] = written.ljust(_TEXT, b"\0")


def ended(code: int) -> None:
    """Says what the command came to; whatever the interpreter does on its way out is not the command's."""
    SHARED[ENDED] = 1 + (code & 0xFF)


def read() -> Reading:
    """What it is at."""
    texts = [_memory[_WORDS + _TEXT * at : _WORDS + _TEXT * (at + 1)] for at in range(_PARTS)]
    who, row, folder = (text.partition(b"\0")[0].decode(errors="replace") for text in texts)
    at = SHARED[AT]
    return Reading(
        Activity(at) if at in Activity._value2member_map_ else Activity.OURS,
        SHARED[BEATS],
        SHARED[LIMIT_MS] / 1000,
        SHARED[ENDED] - 1 if SHARED[ENDED] else None,
        who,
        row,
        folder,
    )
