"""Supervisor: it names what ended the measuring process, and the rest of the run continues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.wording import wording

from specbench.cli import app, console, supervisor
from specbench.common import heartbeat

# What a command does stands in for BODY; no torch, so that a case takes a moment.
SCRIPT = """
import ctypes, os, signal, sys, time
from specbench.cli import supervisor
from specbench.common import heartbeat, plugins
from specbench.common.heartbeat import Activity
supervisor._LOOK_S, supervisor._GRACE_S = 0.05, 0.1

def at(what, row="", who="method 'x' (from y)", folder="/runs/a", limit_s=0):
    heartbeat.record(who=who, row=row, folder=folder)
    heartbeat.SHARED[heartbeat.AT], heartbeat.SHARED[heartbeat.LIMIT_MS] = what, int(1000 * limit_s)

code = supervisor.supervise()
if code is None:
    gone = plugins.ended_rows("/runs/a")
BODY
    print("end", flush=True)
    heartbeat.ended(0)
    os._exit(0)
print("torch" in sys.modules, "typer" in sys.modules, file=sys.stderr)
sys.exit(code)
"""


def started(body: str) -> subprocess.Popen[str]:
    code = SCRIPT.replace("BODY", "\n".join(f"    {line}" for line in body.splitlines()))
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(body: str) -> tuple[int, str, list[str]]:
    """Exit code, stdout, and the lines on stderr but the one that says what was imported."""
    process = started(body)
    out, err = process.communicate(timeout=60)
    *lines, imported = err.splitlines()
    assert imported == "False False", "it waits, and does nothing that takes memory or time"
    return process.returncode, out, lines


def test_what_ends_by_itself_ends_as_ever() -> None:
    assert run("") == (0, "end\n", [])
    assert run("heartbeat.ended(4)\nos._exit(0)") == (4, "", [])
    assert run("heartbeat.ended(5)\nos.kill(os.getpid(), signal.SIGSEGV)") == (5, "", []), "on its way out"


SEGV = "os.kill(os.getpid(), signal.SIGSEGV)"
WAYS = {
    SEGV: "by SIGSEGV, in draft",
    "os.kill(os.getpid(), signal.SIGABRT)": "by SIGABRT, in draft",
    "os._exit(0)": "by exit code 0, bypassing Python, in draft",
    "os._exit(9)": "by exit code 9, bypassing Python, in draft",
    # The lock of the interpreter is held: no signal is looked at, and no thread of it runs.
    "at(Activity.DRAFT, 'x#2', limit_s=0.2)\nctypes.PyDLL(None).sleep(60)": (
        "more than 0.2 s, in draft, and no signal ended"
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_row_that_ends_the_process_is_left_out_and_the_rest_goes_on(way: str) -> None:
    again = "if gone:\n    print(gone)\nelse:\n    at(Activity.DRAFT, 'x#2')\n    " + way.replace("\n", "\n    ")
    code, out, lines = run(again)
    assert code == 0, "the command says itself what its rows came to"
    assert out.splitlines()[-1] == "end"
    assert f"{WAYS[way]}" in out
    (line,) = lines
    assert line.startswith(f"note: method 'x' (from y) ended the measuring process ({WAYS[way]}")
    assert line.endswith("; continuing without x#2")


def test_what_reported_its_end_and_does_not_end_is_ended() -> None:
    """A library holds the interpreter's lock, so that no thread and no signal of it runs any more."""
    started_at = time.monotonic()
    assert run("heartbeat.ended(6)\nctypes.PyDLL(None).sleep(60)") == (6, "", [])
    assert time.monotonic() - started_at < 20


LEAVING = """
import atexit, os, sys, threading, time
from specbench.cli import console
console._LEAVE_S = 0.5
BODY
console._run = lambda: CODE
console.entry()
"""


@pytest.mark.parametrize("code", [0, 6])
@pytest.mark.parametrize(
    "body",
    ["threading.Thread(target=time.sleep, args=(60,)).start()", "atexit.register(time.sleep, 60)", "sys.stdout = None"],
    ids=["a thread", "an exit function", "no stream"],
)
def test_leftovers_do_not_keep_a_command(body: str, code: int) -> None:
    script = LEAVING.replace("BODY", f"atexit.register(print, 'tidy', file=sys.stderr)\n{body}")
    done = subprocess.run(
        [sys.executable, "-c", script.replace("CODE", str(code))],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == code
    assert done.stderr == ("" if "atexit.register(time" in body else "tidy\n")


def test_two_rows_end_it_each_once() -> None:
    body = f"at(Activity.FORWARD, f'row {{len(gone)}}')\nif len(gone) < 2:\n    {SEGV}\nprint(sorted(gone))"
    code, out, lines = run(body)
    assert (code, out) == (0, "['row 0', 'row 1']\nend\n")
    assert [line.rpartition(" ")[2] for line in lines] == ["0", "1"]


@pytest.mark.parametrize(
    ("body", "code", "result"),
    [
        (f"at(Activity.DRAFT, 'x')\n{SEGV}", 6, "method 'x' (from y) ended the command (by SIGSEGV, in draft)"),
        (
            f"at(Activity.PLUGIN)\n{SEGV}",
            6,
            "method 'x' (from y) ended the command (by SIGSEGV, before anything is timed)",
        ),
        (
            f"at(Activity.FORWARD, 'ar')\n{SEGV}",
            3,
            "the measuring process was ended while ar was in the target's forward",
        ),
        (f"at(Activity.OURS, 'x')\n{SEGV}", 3, "the measuring process was ended while x was between two steps"),
        (SEGV, 3, "the measuring process was ended (by SIGSEGV, between two steps)"),
        (
            "at(Activity.DRAFT, 'x')\nos.kill(os.getpid(), signal.SIGKILL)",
            3,
            "the measuring process was ended while x was in draft (by SIGKILL; out of memory, or killed by hand, in",
        ),
    ],
    ids=["the same row again", "no row yet", "plain decoding", "none of its calls", "nothing known", "from outside"],
)
def test_what_cannot_go_on_ends_in_a_sentence(body: str, code: int, result: str) -> None:
    found, out, lines = run(body)
    assert (found, out) == (code, "")
    assert lines[-1].startswith(f"error: {result}")
    assert wording(lines[-1])


def test_what_was_stopped_has_not_taken_that_time() -> None:
    # Many short sleeps: the time of a long one would be over while it is stopped.
    nap = "for _ in range(25):\n    time.sleep(0.02)"
    process = started(f"at(Activity.DRAFT, 'x', limit_s=1.5)\nprint('in', flush=True)\n{nap}\nat(Activity.OURS)")
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    (child,) = psutil.Process(process.pid).children()
    time.sleep(0.2)  # it has looked at it once or more
    for pid in (child.pid, process.pid):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2)
    for pid in (process.pid, child.pid):
        os.kill(pid, signal.SIGCONT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "False False\n"), "and nothing was begun anew"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_passed_on(number: signal.Signals) -> None:
    body = (
        "def came(number, frame):\n    print('came', int(number), flush=True)\n"
        "    heartbeat.ended(130)\n    os._exit(130)\n"
        f"signal.signal({int(number)}, came)\nprint('in', flush=True)\ntime.sleep(60)"
    )
    process = started(body)
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    os.kill(process.pid, number)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, f"came {int(number)}\n")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells a child that its parent has gone")
def test_nothing_is_left_over(tmp_path: Path) -> None:
    process = started("print('in', flush=True)\ntime.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    (child,) = psutil.Process(process.pid).children()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    psutil.wait_procs([child], timeout=30)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_what_is_watched() -> None:
    assert supervisor.watched(["run", "--method", "ar"])
    for argv in ([], ["run", "--help"], ["sweep", "-h"], ["train", "--help-all"], ["list", "methods"], ["--version"]):
        assert not supervisor.watched(argv)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_anything_is_begun_is_a_sentence(number: signal.Signals) -> None:
    process = started(f"signal.signal({int(number)}, signal.SIG_DFL)\nprint('in', flush=True)\ntime.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert wording(err.splitlines()[0])


def test_a_fault_of_ours_is_the_end_and_not_a_killed_process(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def odd() -> int:
        raise KeyError(2)

    heartbeat.clear()
    monkeypatch.setattr(app, "main", odd)
    monkeypatch.setattr(console, "_last_word", lambda: None)
    monkeypatch.setattr(sys, "argv", ["specbench", "list"])
    assert console._run() == 3
    assert heartbeat.read().ended == 3, "the process that watches has nothing to explain"
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ")
    assert "KeyError: 2" in last
