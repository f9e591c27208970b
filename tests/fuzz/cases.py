"""Outcomes of hostile inputs, minimised inputs, and the corpus folder that keeps them."""

from __future__ import annotations

import hashlib
import random
import re
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutants import mutant

from specbench.common.errors import SpecbenchError

_ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"
MOST_OF_A_CASE = 2000  # bytes that are kept
MOST_OF_A_TARGET = 20  # files that are kept; of faults all
_WALL_S = 60.0  # for what waits instead of working
_LONGEST = 1500  # letters of a sentence


class Hung(BaseException):
    """A case takes too long."""


@dataclass(frozen=True)
class Kind:
    """A kind of input.

    Attributes:
        good: one that is as it should be.
        read: takes one; gives anything, or raises a :class:`SpecbenchError`.
        form: as :func:`mutants.mutant` takes it.
        vary: another one made of one, where mutants of that form are not what hurts.
        seconds: of processor time that it may take.
    """

    good: Callable[[], bytes]
    read: Callable[[bytes], Any]
    form: str = "text"
    vary: Callable[[random.Random, bytes], bytes] | None = None
    seconds: float = 2.0

    def other(self, draw: random.Random, content: bytes) -> bytes:
        """A variation of a content."""
        return self.vary(draw, content) if self.vary else mutant(draw, content, self.form)


#: The kinds of a target, by name.
Kinds = dict[str, Kind]


@dataclass(frozen=True)
class Outcome:
    """What a case came to.

    Attributes:
        sentence: class of the error message; empty for a value.
        fault: description of a fault, else empty; its first line is the class.
        error: the error with the message.
    """

    sentence: str = ""
    fault: str = ""
    error: SpecbenchError | None = None

    @property
    def key(self) -> str:
        """What makes two outcomes one class."""
        return f"fault: {self.fault.splitlines()[0]}" if self.fault else self.sentence


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Ends what takes more than these seconds of processor time, or a minute of anybody's."""

    def end(number: int, frame: Any) -> None:
        raise Hung(f"over {seconds:g} s of processor time" if number == signal.SIGPROF else f"over {_WALL_S:g} s")

    before = [(number, signal.signal(number, end)) for number in (signal.SIGPROF, signal.SIGALRM)]
    # Again and again: what raises in a destructor, or is caught by a library, is lost.
    signal.setitimer(signal.ITIMER_PROF, seconds, 1)
    signal.setitimer(signal.ITIMER_REAL, _WALL_S, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before:
            signal.signal(number, handler)


def outcome(kind: Kind, content: bytes) -> Outcome:
    """What a content comes to: a value, a sentence, or a fault with the last lines of its traceback."""
    try:
        began = time.process_time()
        with limited(kind.seconds):
            kind.read(content)
    except SpecbenchError as error:
        text = str(error)
        if not text or not text.isprintable() or len(text) > _LONGEST:
            return Outcome(fault=f"no sentence: {text[:300]!r}")
        return Outcome(sentence=f"{type(error).__name__}: {sentence_class(text)}", error=error)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except Hung as error:
        return Outcome(fault=f"{error}, {_described(error)}")
    except BaseException as error:
        spent = time.process_time() - began
        late = f" after {spent:.1f} s" if spent > kind.seconds else ""
        return Outcome(fault=f"{type(error).__name__}{late}, {_described(error)}")
    return Outcome()


def _described(error: BaseException) -> str:
    """Place of an error in one line, followed by the last frames and the message."""
    frames = [at for at in traceback.extract_tb(error.__traceback__) if at.filename != __file__]
    ours = [at for at in frames if Path(at.filename).is_relative_to(_ROOT) and "site-packages" not in at.filename]
    inner = (ours or frames)[-1]
    way = "\n".join(f"  {at.filename}:{at.lineno} {at.name}: {at.line}" for at in (*ours[-5:], *frames[-2:]))
    return f"in {Path(inner.filename).name} {inner.name}\n{way}\n  {str(error)[:500]!r}"


def sentence_class(sentence: str) -> str:
    """Class of a message: its text without quoted names, paths and numbers."""
    plain = re.sub(r"'[^']*'|\"[^\"]*\"|\([^()]*\)|\S*[/\\…]\S*|\S*[\d_=]\S*", "~", sentence)
    return " ".join(plain.split()[:10])[:90]


def smallest(content: bytes, same: Callable[[bytes], bool], seconds: float) -> bytes:
    """A content with all left out that can be, in the time there is."""
    until, size = time.monotonic() + seconds, max(1, len(content) // 2)
    while size >= 1 and time.monotonic() < until:
        at, shorter = 0, False
        while at < len(content) and time.monotonic() < until:
            tried = content[:at] + content[at + size :]
            if tried != content and same(tried):
                content, shorter = tried, True
            else:
                at += size
        if not shorter or size > len(content):
            size //= 2
    return content


# ------------------------------------------------------------------------------------------------------------- corpus


def slug(name: str) -> str:
    """A kind's name as a part of a file's."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def kept(target: str, kinds: Kinds) -> Iterator[tuple[str, bytes, str]]:
    """(kind, content, file's name) of all that is kept of a target."""
    names = {slug(name): name for name in kinds}
    for file in sorted((CORPUS / target).glob("*.*")):
        if name := names.get(file.name.rpartition(".")[0]):  # data of one kind may be missing here
            yield name, file.read_bytes(), file.name


def room(target: str, name: str, kinds: int) -> bool:
    """Whether there are few enough cases of a target and of this one of its kinds."""
    files = list((CORPUS / target).glob("*.*"))
    own = [file for file in files if file.name.rpartition(".")[0] == slug(name)]
    return len(files) < MOST_OF_A_TARGET and len(own) < max(1, MOST_OF_A_TARGET // kinds)


def keep(target: str, name: str, content: bytes, *, fault: bool) -> Path | None:
    """Keeps a case; None where it is too large."""
    if not fault and len(content) > MOST_OF_A_CASE:
        return None
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{slug(name)}.{hashlib.sha256(content).hexdigest()[:8]}"
    file.write_bytes(content)
    return file
