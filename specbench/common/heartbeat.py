"""Record in shared memory what this process is doing, so that the supervisor can tell even when the process hangs.

Code that calls a plug-in or runs a forward records it with two integer stores, because some of it is timed. A forked
child writes to the same memory, so only processes that decode write.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from enum import IntEnum

#: Indices into :data:`CELLS`.
AT, BEATS, LIMIT_MS, ENDED = range(4)


class Activity(IntEnum):
    """What the process is doing."""

    OURS = 0  # not watched
    PLUGIN = 1  # a plug-in's code, untimed
    BEGIN = 2
    DRAFT = 3
    OBSERVE = 4
    END = 5
    MEASURES = 6
    FORWARD = 7  # of the engine


#: Words for an error message.
WORDS = {
    Activity.OURS: "between two steps",
    Activity.PLUGIN: "before anything is timed",
    Activity.BEGIN: "in begin",
    Activity.DRAFT: "in draft",
    Activity.OBSERVE: "in observe",
    Activity.END: "in end",
    Activity.MEASURES: "in measures or branches",
    Activity.FORWARD: "in the target's forward",
}

_WORDS, _TEXT, _PARTS = 64, 1024, 3  # bytes of the integers, and of each text
_memory = mmap.mmap(-1, mmap.PAGESIZE)

#: Unsigned integers; written to directly where a function call would cost more than the store.
SHARED = memoryview(_memory)[:_WORDS].cast("Q")


@dataclass(frozen=True)
class Reading:
    """The recorded state.

    Attributes:
        beats: increases with every step.
        limit_s: time limit of a call in seconds; 0 is unlimited.
        ended: exit code of the command; None before its end.
        who: the plug-in, as errors name it; empty if unknown.
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
        """Time limit of the current activity in seconds; 0 is unlimited.

        Untimed plug-in code may load models and gets ten times the limit."""
        return 0.0 if self.at == Activity.OURS else self.limit_s * (10 if self.at == Activity.PLUGIN else 1)


def clear() -> None:
    """Reset everything before another process starts."""
    _memory[:] = bytes(len(_memory))


def record(**texts: str) -> None:
    """Write ``who``, ``row`` or ``folder``."""
    for name, text in texts.items():
        start = _WORDS + _TEXT * ("who", "row", "folder").index(name)
        written = text.encode(errors="replace")[: _TEXT - 1]
        _memory[start : start + _TEXT] = written.ljust(_TEXT, b"\0")


def ended(code: int) -> None:
    """Record the command's exit code; later events belong to the interpreter's shutdown."""
    SHARED[ENDED] = 1 + (code & 0xFF)


def read() -> Reading:
    """Read the recorded state."""
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
