"""Chat templates, rendered in a child process with limits.

A template comes with the model's files and is a program: it can loop for ever or multiply a letter by 10^10.
transformers' sandbox limits neither time nor memory, so templates are rendered in a fork of this process with limits of
the kernel's, and one that is too slow is killed. A text depends on template, turns and given time alone: the child's
clock, time zone and random numbers are set first, and a text with an address of memory in it is refused.
"""

from __future__ import annotations

import gc
import json
import os
import random
import re
import resource
import select
import signal
import socket
import threading
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers import PreTrainedTokenizerBase

from specbench.common import one_line

#: Seconds of its processor that one text may take, and of a clock.
SECONDS, PATIENCE = 5, 20
#: Letters of one text, the most that a template may write of short turns.
LARGEST = 8 << 20

_MEMORY = 512 << 20  # bytes beside what the process had when it was forked
_BLOCK = 1 << 16
# How Python writes an object that has no text of its own, a generator for one: by a number that every process changes.
_ADDRESS = re.compile(r"<[^<>]* at 0x[0-9a-f]{6,}>")
_NOW = "specbench_now"  # a field of a request
_DONE = b"\n"  # JSON writes no line break


class TemplateFault(Exception):
    """What a template raised, or that it was stopped; one line."""


def asks_time(tokenizer: Any) -> bool:
    """Whether a tokenizer's chat template may write the time into a text."""
    return "strftime_now" in str(getattr(tokenizer, "chat_template", None))


def render(tokenizer: Any, turns: Sequence[Mapping[str, str]], now: datetime | None = None, **how: Any) -> str:
    """Turns as a text, by a tokenizer's own chat template: what its ``apply_chat_template`` writes.

    Args:
        now: the local time that a template is given which asks for it; default is the clock's.
        how: ``add_generation_prompt`` or ``continue_final_message``.

    Raises:
        TemplateFault: the template refuses the turns, is none, or takes too long or too much.
    """
    if getattr(type(tokenizer), "apply_chat_template", None) is not PreTrainedTokenizerBase.apply_chat_template:
        try:  # code that writes the turns itself: the library's, or what --trust-remote-code let in
            return str(tokenizer.apply_chat_template([*turns], tokenize=False, **how))
        except Exception as error:
            raise TemplateFault(_said(error)) from error
    try:
        asked = {
            "chat_template": tokenizer.get_chat_template(),
            "conversations": [[{key: value for key, value in turn.items() if value is not None} for turn in turns]],
            **tokenizer.special_tokens_map,
            **how,
            _NOW: (now or datetime.now()).isoformat(),
        }
        line = json.dumps(asked, default=str).encode()
    except Exception as error:  # settings of the tokenizer, which may be anything
        raise TemplateFault(_said(error)) from error
    with _lock:
        try:
            child = _child()
        except OSError as error:
            raise TemplateFault(f"no process could be started for it ({_said(error)})") from error
        return child.ask(line)


def start() -> None:
    """Forks the child, while this process is still small; where that fails, whoever renders tries again."""
    with _lock, suppress(OSError):
        _child()


class _Child:
    """The process that renders. It ends when this one has ended, or has killed it."""

    def __init__(self) -> None:
        _ready()
        self.owner = os.getpid()
        self._pipe, theirs = socket.socketpair()
        with warnings.catch_warnings():
            # Python warns of locks that other threads hold. The child takes those of the interpreter alone, which a
            # fork leaves in order.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if not self._pid:
            _serve(theirs, self._pipe)
        theirs.close()
        self.close = weakref.finalize(self, _end, self._pid, self._pipe, self.owner)

    def ask(self, line: bytes) -> str:
        """The text that the child writes of a request."""
        said, until = bytearray(), time.monotonic() + PATIENCE
        try:
            self._pipe.settimeout(PATIENCE)
            self._pipe.sendall(line + _DONE)
            while not said.endswith(_DONE):
                if not select.select([self._pipe], [], [], max(0.0, until - time.monotonic()))[0]:
                    raise TimeoutError
                block = self._pipe.recv(_BLOCK)
                if not block:
                    raise EOFError
                said += block
        except TimeoutError:
            self.close()
            raise TemplateFault(f"it writes for more than {PATIENCE} seconds") from None
        except (OSError, EOFError):
            self.close()
            raise TemplateFault(f"it takes more than {SECONDS} seconds, or more memory than a text needs") from None
        except BaseException:  # half an answer is no answer to the next request
            self.close()
            raise
        answer = json.loads(said)
        if "fault" in answer:
            raise TemplateFault(answer["fault"])
        return str(answer["text"])


_lock = threading.Lock()
_running: list[_Child] = []


def _child() -> _Child:
    """The one of this process; another process's is not asked: its answers would go to the wrong one."""
    if _running and (_running[0].owner != os.getpid() or not _running[0].close.alive):
        _running.clear()
    if not _running:
        _running.append(_Child())
    return _running[0]


def _end(pid: int, pipe: socket.socket, owner: int) -> None:
    pipe.close()
    if os.getpid() == owner:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _ready() -> None:
    """Imports what rendering needs, here: a child that imports could wait for a lock that nobody gives back."""
    from transformers.utils.chat_template_utils import render_jinja_template

    render_jinja_template(conversations=[[]], chat_template="{{ bos_token }}{% for turn in messages %}{% endfor %}")


# ----------------------------------------------------------------------------------------------------- in the child


def _serve(pipe: socket.socket, other: socket.socket) -> None:
    """Answers until nobody asks any more; does not return."""
    status = 1
    try:
        gc.freeze()  # what the parent has is not ours to finish: folders to delete, processes to end
        other.close()
        pipe = _alone(pipe)
        for each in (signal.SIGINT, signal.SIGHUP):  # Ctrl-C is the parent's business, and it ends this one
            signal.signal(each, signal.SIG_IGN)
        for each in (signal.SIGTERM, signal.SIGXCPU):
            signal.signal(each, signal.SIG_DFL)
        _limit(resource.RLIMIT_CORE, 0)
        os.environ["TZ"] = "UTC"  # a time is given as the clock on the wall shows it; no format looks further
        time.tzset()
        held = _held()
        if held:
            _limit(resource.RLIMIT_AS, held + _MEMORY)
        with pipe, pipe.makefile("rb") as asked:
            while line := asked.readline():
                spent = resource.getrusage(resource.RUSAGE_SELF)
                _limit(resource.RLIMIT_CPU, int(spent.ru_utime + spent.ru_stime) + SECONDS)
                pipe.sendall(_answer(line) + _DONE)
        status = 0
    finally:
        os._exit(status)


def _alone(pipe: socket.socket) -> socket.socket:
    """The pipe, with every other file closed: a worker of the parent's waits for the end of one, a lock is another."""
    pipe = socket.socket(fileno=os.dup2(pipe.detach(), 3))
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    nothing = os.open(os.devnull, os.O_RDWR)
    for each in (0, 1, 2):
        os.dup2(nothing, each)
    os.close(nothing)
    return pipe


def _answer(line: bytes) -> bytes:
    from transformers.utils import chat_template_utils

    try:
        asked = json.loads(line)
        now = datetime.fromisoformat(asked.pop(_NOW))
        chat_template_utils.datetime = SimpleNamespace(now=lambda: now)  # of which its strftime_now asks the time
        random.seed(0)  # for Jinja's filter of that name
        text = str(chat_template_utils.render_jinja_template(**asked)[0][0])
        if _ADDRESS.search(text) and not _ADDRESS.search(json.dumps(asked["conversations"], ensure_ascii=False)):
            return json.dumps({"fault": "it writes an object's address in memory, another one in each run"}).encode()
        if len(text) > LARGEST + len(line):
            return json.dumps({"fault": f"it writes {len(text):,} letters, more than a prompt has"}).encode()
        return json.dumps({"text": text}).encode()
    except MemoryError:
        return json.dumps({"fault": "it takes more memory than a text needs"}).encode()
    except BaseException as error:  # Jinja's and Python's own, RecursionError too
        return json.dumps({"fault": _said(error)}).encode()


def _limit(kind: int, most: int) -> None:
    """Lowers a limit, as far as the one above it lets us; where there is none of the kind, the parent's clock stays."""
    with suppress(OSError, ValueError):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _held() -> int:
    """Bytes of addresses that this process has, which its parent's weights and libraries are among; 0 if unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        return 0


def _said(error: BaseException) -> str:
    return one_line(str(error)) or type(error).__name__
