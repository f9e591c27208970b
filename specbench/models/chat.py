"""Render chat templates in a child process with limits on time and memory.

A template comes with the model's files and is a program: it can loop for ever or repeat a letter 10^10 times.
transformers' sandbox limits neither time nor memory, so templates are rendered in a fork of this process with kernel
limits, which is killed if it is too slow. The text depends only on template, turns and given time: the child's clock,
time zone and random seed are fixed, and a text that contains a memory address is refused.
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

#: Limits for one text: seconds of CPU time, and of wall-clock time.
SECONDS, PATIENCE = 5, 20
#: Most characters of one text, in addition to the length of the request.
LARGEST = 8 << 20

_MEMORY = 512 << 20  # bytes that the child may allocate in addition to those of the process at the fork
_BLOCK = 1 << 16
# Python's text for an object without a readable form, such as a generator: its address differs in every process.
_ADDRESS = re.compile(r"<[^<>]* at 0x[0-9a-f]{6,}>")
_NOW = "specbench_now"  # a field of a request
_DONE = b"\n"  # JSON writes no line break


class TemplateFault(Exception):
    """An error that a template raised, or the reason why it was stopped; one line."""


def asks_time(tokenizer: Any) -> bool:
    """Return whether a tokenizer's chat template may write the time into a text."""
    return "strftime_now" in str(getattr(tokenizer, "chat_template", None))


def render(tokenizer: Any, turns: Sequence[Mapping[str, Any]], now: datetime | None = None, **how: Any) -> str:
    """Render turns like ``apply_chat_template`` of the tokenizer, with its own chat template.

    Args:
        now: local time for templates that write it; default is the current time.
        how: ``add_generation_prompt`` or ``continue_final_message``.

    Raises:
        TemplateFault: the template refuses the turns, is missing or invalid, or exceeds a limit.
    """
    if getattr(type(tokenizer), "apply_chat_template", None) is not PreTrainedTokenizerBase.apply_chat_template:
        try:  # the tokenizer class renders turns itself: code of transformers, or allowed by --trust-remote-code
            return str(tokenizer.apply_chat_template([*turns], tokenize=False, **how))
        except Exception as error:
            raise TemplateFault(_reason(error)) from error
    try:
        asked = {
            "chat_template": tokenizer.get_chat_template(),
            "conversations": [[{key: value for key, value in turn.items() if value is not None} for turn in turns]],
            **tokenizer.special_tokens_map,
            **how,
            _NOW: (now or datetime.now()).isoformat(),
        }
        line = json.dumps(asked, default=str).encode()
    except Exception as error:  # the tokenizer's settings are untrusted
        raise TemplateFault(_reason(error)) from error
    with _lock:
        try:
            child = _child()
        except OSError as error:
            raise TemplateFault(f"cannot start a process to render it ({_reason(error)})") from error
        return child.ask(line)


def start() -> None:
    """Fork the child while this process is still small; if that fails, :func:`render` tries again."""
    with _lock, suppress(OSError):
        _child()


class _Child:
    """The process that renders. It ends when the parent ends or kills it."""

    def __init__(self) -> None:
        _ready()
        self.owner = os.getpid()
        self._pipe, theirs = socket.socketpair()
        with warnings.catch_warnings():
            # Python warns that other threads may hold locks. The child only takes the interpreter's own locks, which
            # are safe after a fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if not self._pid:
            _serve(theirs, self._pipe)
        theirs.close()
        self.close = weakref.finalize(self, _end, self._pid, self._pipe, self.owner)

    def ask(self, line: bytes) -> str:
        """Send a request to the child and return the text."""
        received, until = bytearray(), time.monotonic() + PATIENCE
        try:
            self._pipe.settimeout(PATIENCE)
            self._pipe.sendall(line + _DONE)
            while not received.endswith(_DONE):
                if not select.select([self._pipe], [], [], max(0.0, until - time.monotonic()))[0]:
                    raise TimeoutError
                block = self._pipe.recv(_BLOCK)
                if not block:
                    raise EOFError
                received += block
        except TimeoutError:
            self.close()
            raise TemplateFault(f"it takes more than {PATIENCE} seconds of wall-clock time") from None
        except (OSError, EOFError):
            self.close()
            raise TemplateFault(f"it takes more than {SECONDS} seconds of CPU time, or too much memory") from None
        except BaseException:  # otherwise the next request would read the rest of this answer
            self.close()
            raise
        answer = json.loads(received)
        if "fault" in answer:
            raise TemplateFault(answer["fault"])
        return str(answer["text"])


_lock = threading.Lock()
_running: list[_Child] = []


def _child() -> _Child:
    """Return this process's child; one inherited from a parent process is not used, as both would read its pipe."""
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
    """Import everything that rendering needs before the fork: the child could wait for an import lock for ever."""
    from transformers.utils.chat_template_utils import render_jinja_template

    render_jinja_template(conversations=[[]], chat_template="{{ bos_token }}{% for turn in messages %}{% endfor %}")


# ----------------------------------------------------------------------------------------------------- in the child


def _serve(pipe: socket.socket, other: socket.socket) -> None:
    """Answer requests until the parent closes the pipe, then exit the process."""
    status = 1
    try:
        gc.freeze()  # finalizers of the parent's objects must not run here: they delete folders and end processes
        other.close()
        pipe = _alone(pipe)
        for each in (signal.SIGINT, signal.SIGHUP):  # the parent handles Ctrl-C and then ends the child
            signal.signal(each, signal.SIG_IGN)
        for each in (signal.SIGTERM, signal.SIGXCPU):
            signal.signal(each, signal.SIG_DFL)
        _limit(resource.RLIMIT_CORE, 0)
        os.environ["TZ"] = "UTC"  # the given time is local time without a zone
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
    """Close every inherited file but the pipe: some are pipes whose end a worker waits for, others are locks."""
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
        chat_template_utils.datetime = SimpleNamespace(now=lambda: now)  # used by its strftime_now
        random.seed(0)  # used by Jinja's filter "random"
        text = str(chat_template_utils.render_jinja_template(**asked)[0][0])
        if _ADDRESS.search(text) and not _ADDRESS.search(json.dumps(asked["conversations"], ensure_ascii=False)):
            return json.dumps({"fault": "it writes a memory address, which differs in every run"}).encode()
        if len(text) > LARGEST + len(line):
            return json.dumps({"fault": f"it writes {len(text):,} characters, too many for a prompt"}).encode()
        return json.dumps({"text": text}).encode()
    except MemoryError:
        return json.dumps({"fault": "it takes too much memory"}).encode()
    except BaseException as error:  # errors of Jinja and Python, RecursionError included
        return json.dumps({"fault": _reason(error)}).encode()


def _limit(kind: int, most: int) -> None:
    """Lower a limit within its hard limit; without such a limit on this platform, only the parent's timeout applies."""
    with suppress(OSError, ValueError):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _held() -> int:
    """Return this process's address space in bytes, the parent's weights and libraries included; 0 if unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        return 0


def _reason(error: BaseException) -> str:
    return one_line(str(error)) or type(error).__name__
