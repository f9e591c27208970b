"""Every program here tries to pass without being right, or to harm the machine. None may, under any confinement."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import processes
from support.processes import BARE, FILES, NETWORK, PROCESSES, SIGNALS, TIGHT
from support.wording import wording

from specbench.common.errors import EnvironmentRefused
from specbench.evals.sandbox import sandbox, seccomp
from specbench.evals.sandbox.sandbox import Confinement, Limits, Program, Sandbox
from specbench.evals.task import Verdict

pytestmark = pytest.mark.usefixtures("nothing_left")

# For what the confinement does not decide: the reading of values and of answers.
under_the_strongest = pytest.mark.parametrize("box", ["strongest"], indirect=True)


def _sleeper_of(scorer: int) -> int:
    """The program's pid, found by its depth below the scorer and by its seccomp filter; 0 when there is none yet."""
    parents = processes.processes()
    for pid, (parent, filtered) in parents.items():
        while parent in parents and parent != scorer:
            parent = parents[parent][0]
        if parent == scorer and filtered:
            return pid
    return 0


def run(box: Sandbox, source: str, tests: str = "assert f() == 918273", lenient: bool = False) -> Verdict:
    return box.run(Program((source,), "f", "", tests, lenient))


def test_right_and_wrong(box: Sandbox) -> None:
    assert run(box, "def f(x): return x + 1", "assert f(1) == 2\nassert f(-1) == 0") == Verdict(True, "pass")
    wrong = run(box, "def f(x): return 2", "assert f(1) == 2\nassert f(-1) == 0")
    assert wrong == Verdict(False, "fail", "assert f(-1) == 0")


@under_the_strongest
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def f(: pass", "SyntaxError"),
        ("def g(): pass", "NameError"),
        ("f = 918273", "NameError"),
        ("def f(): return 1 / 0", "ZeroDivisionError"),
        ("class E(KeyError): pass\ndef f(): raise E('x')", "KeyError"),
        ("class E(Exception): pass\nE.__name__ = 'pass'\ndef f(): raise E('pass')", "Exception"),
        ("def f(): return f()", "RecursionError"),
        ("def f(): return input()", "EOFError"),
        ("raise SystemExit(0)", "SystemExit"),
        ("def f(): raise SystemExit(0)", "SystemExit"),
        ("def f():\n  x = []\n  x.append(x)\n  return x", "RecursionError"),
        ("def f(): pass", "TypeError"),  # of the test that chokes on the value
    ],
)
def test_reason_is_the_builtin_exception(box: Sandbox, source: str, reason: str) -> None:
    verdict = run(box, source, "assert abs(f() - 918273) < 1" if reason == "TypeError" else "assert f() == 918273")
    assert (verdict.passed, verdict.reason) == (False, reason)


@under_the_strongest
def test_lenient_forgives_what_follows_the_function(box: Sandbox) -> None:
    source = "def f(): return 918273\nassert f() == 0"
    assert run(box, source, lenient=True).passed
    assert run(box, source).reason == "AssertionError"
    assert run(box, "assert False\ndef f(): return 918273", lenient=True).reason == "AssertionError"
    stub = Program(("def f(): return 918273", "1 / 0"), "f", "", "assert f() == 918273", lenient=True)
    assert box.run(stub).reason == "ZeroDivisionError"  # the last source defined nothing


@under_the_strongest
def test_values_arrive_as_they_were(box: Sandbox) -> None:
    source = """
import collections, decimal, enum, fractions
Point = collections.namedtuple("Point", "x y")
class Colour(enum.IntEnum): RED = 1
def f(kind):
    return {
        "plain": [None, True, 1, -2.5, "é\\ud800", b"x", (1, [2]), {1, 2}, frozenset((3,)), {"a": {1: ()}}, 1j],
        "big": 7 ** 9000, "nan": float("nan"), "inf": [float("-inf")],
        "number": [fractions.Fraction(1, 3), decimal.Decimal("0.1"), Colour.RED],
        "subclass": [collections.Counter("aab"), collections.OrderedDict(z=1), Point(1, 2)],
        "lazy": map(str, range(3)), "range": range(3), "keys": {"k": 1}.keys(),
    }[kind]
def echo(*args, **kwargs): return [args, kwargs]
"""
    plain = "[None, True, 1, -2.5, 'é\\ud800', b'x', (1, [2]), {1, 2}, frozenset((3,)), {'a': {1: ()}}, 1j]"
    tests = f"""
from fractions import Fraction
from decimal import Decimal
assert f("plain") == {plain}
assert [type(v) for v in f("plain")] == [type(v) for v in {plain}]
assert f("big") == 7 ** 9000
assert f("nan") != f("nan") and f("inf") == [float("-inf")]
assert f("number") == [Fraction(1, 3), Decimal("0.1"), 1]
assert f("subclass") == [{{"a": 2, "b": 1}}, {{"z": 1}}, (1, 2)]
assert list(f("lazy")) == ["0", "1", "2"] and tuple(f("range")) == (0, 1, 2) and f("range") != [0, 1, 2]
assert sorted(f("keys")) == ["k"]
"""
    assert run(box, source, tests) == Verdict(True, "pass")
    assert box.run(Program((source,), "echo", "", f"assert echo({plain}, k=1) == [({plain},), {{'k': 1}}]")).passed


@under_the_strongest
def test_the_preamble_is_for_the_tests_alone(box: Sandbox) -> None:
    helped = Program(("def f(): return 4",), "f", "def helper(): return 4", "assert f() == helper()")
    assert box.run(helped).passed
    assert box.run(Program(("def f(): return helper()",), "f", "def helper(): return 4", "f()")).reason == "NameError"


FORGERIES = {
    "prints a verdict": """
import struct
frame = b'{"reason": "pass", "detail": ""}'
print(struct.pack(">I", len(frame)).decode() + frame.decode(), flush=True)
def f(): print("pass", flush=True)
""",
    "writes a verdict to every descriptor": """
import os, struct
frame = b'{"reason": "pass", "detail": ""}'
for fd in range(256):
    try: os.write(fd, struct.pack(">I", len(frame)) + frame)
    except OSError: pass
os._exit(0)
""",
    "exits early with status 0": "import os\nos._exit(0)",
    "exits in the call": "import os\ndef f(): os._exit(0)",
    "exits at the end of the module": "import sys\ndef f(): return 1\nsys.exit(0)",
    "equal to everything": """
class Yes:
    __eq__ = __ne__ = __lt__ = __gt__ = lambda self, other: True
    __hash__ = object.__hash__
    __bool__ = lambda self: True
def f(): return Yes()
""",
    "an int that equals everything": """
class Yes(int):
    __eq__ = lambda self, other: True
    __hash__ = int.__hash__
def f(): return Yes()
""",
    "patches what compares": """
import builtins
builtins.AssertionError = None
def f(): return 1
""",
    "looks for the answer in its objects": """
import gc, re, sys
def f():
    frame, seen = sys._getframe(), []
    while frame:
        seen += [str(frame.f_locals), str(frame.f_globals), str(frame.f_code.co_consts)]
        frame = frame.f_back
    seen += [str(o) for o in gc.get_objects() if isinstance(o, (dict, list, tuple))]
    return next((int(m[1]) for m in map(re.compile("assert f[(][)] == ([0-9]+)").search, seen) if m), None)
""",
    "looks for the answer in all memory": """
import os, re
def f():
    for pid in dict.fromkeys((os.getpid(), os.getppid(), 1)):
        try:
            maps = open(f"/proc/{pid}/maps").read()
            memory = open(f"/proc/{pid}/mem", "rb", 0)
        except OSError: continue
        for line in maps.splitlines():
            start, stop = (int(part, 16) for part in line.split()[0].split("-"))
            try:
                memory.seek(start)
                found = re.search(b"assert f[(][)] == ([0-9]+)", memory.read(min(stop - start, 16 << 20)))
            except (OSError, ValueError, OverflowError): continue
            if found: return int(found[1])
""",
    "drives the channel itself": """
import json, os, struct
def say(message):
    body = json.dumps(message).encode()
    for fd in range(3, 64):
        try: os.write(fd, struct.pack(">I", len(body)) + body)
        except OSError: pass
say({"value": None})
say({"reason": "pass", "detail": ""})
say({"setup_done": True})
say({"error": ["pass", ""]})
def f(): return 1
""",
    "patches the channel": """
import codec, json
json.dumps = lambda message: '{"reason": "pass", "detail": "", "value": true}'
codec.pack = lambda value: True
def f(): return 1
""",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_no_forgery_passes(box: Sandbox, name: str) -> None:
    verdict = run(box, FORGERIES[name])
    assert not verdict.passed
    assert verdict.reason != "pass"


@under_the_strongest
@pytest.mark.parametrize(
    "body",
    ["b'{'", "b'[' * 200000", "b'{}'", "b'[1]'", "b'null'", "b'{\"value\": {\"tuple\": 3}}'",
     "b'{\"error\": [1, 2, 3]}'", "b'{\"value\": ' + b'9' * 100000 + b'}'", "b'{\"value\": {\"Fraction\": [1, 0]}}'",
     "b'{\"value\": {\"set\": [[1]]}}'", "b'\\xff'"],
)  # fmt: skip
def test_answers_that_cannot_be_read_fail(box: Sandbox, body: str) -> None:
    source = f"""
import os, struct
body = {body}
def f():
    for fd in range(3, 64):
        try: os.write(fd, struct.pack(">I", len(body)) + body)
        except OSError: pass
    import time; time.sleep(60)
"""
    verdict = run(box, source)
    assert (verdict.passed, verdict.reason) == (False, "fail"), verdict


@under_the_strongest
def test_too_large_an_answer_fails(box: Sandbox) -> None:
    box.limits = Limits(cpu_s=20, wall_s=30.0)
    assert run(box, "def f(): return 'x' * (64 << 20)").reason == "fail"


@under_the_strongest
def test_detail_is_one_printable_line(box: Sandbox) -> None:
    detail = run(box, "def f(): raise ValueError('a\\n\\x1b[31mb' * 1000)").detail
    assert len(detail) <= 200
    assert detail.isprintable()


HANGS = [
    "def f():\n  while True: pass",
    "while True: pass",
    "import itertools\ndef f(): return all(itertools.repeat(True))",  # in C, where no signal is looked at
    "import time\ndef f(): time.sleep(600)",
    "import signal\nfor s in range(1, 65):\n  try: signal.signal(s, signal.SIG_IGN)\n"
    "  except (OSError, ValueError): pass\ndef f():\n  while True: pass",
    "def f():\n  try:\n    while True: pass\n  except BaseException: return f()",
]


def test_hanging_ends(box: Sandbox) -> None:
    box.limits = Limits(cpu_s=1, wall_s=0.5, memory=512 << 20)
    start = time.monotonic()
    with ThreadPoolExecutor(len(HANGS)) as pool:  # at once, since each takes its full time
        assert [verdict.reason for verdict in pool.map(lambda source: run(box, source), HANGS)] == ["timeout"] * 6
    assert time.monotonic() - start < box.limits.wall_s + 5


@pytest.mark.parametrize("hang", [HANGS[0], HANGS[4]], ids=["heeds the warning", "ignores it"])
def test_cpu_time_ends_it_before_wall_time(hang: str) -> None:
    assert run(Sandbox(Limits(cpu_s=1, wall_s=60.0)), hang) == Verdict(False, "timeout", "more than 1 s of CPU time")


@pytest.mark.parametrize(
    ("source", "detail"),
    [
        ("import os\nos.closerange(0, 64)\nimport time\ntime.sleep(600)", "closed its channel"),
        ("import ctypes\ndef f(): ctypes.string_at(0)", "died of SIGSEGV"),
        ("import os\ndef f(): os._exit(7)", "exited with status 7"),
    ],
)
def test_leaving_is_a_failure(box: Sandbox, source: str, detail: str) -> None:
    verdict = run(box, source)
    assert (verdict.passed, verdict.reason) == (False, "fail")
    assert detail in verdict.detail


@pytest.mark.parametrize(
    "source",
    [
        "def f(): return bytearray(100 << 30)",
        "def f():\n  x = []\n  while True: x.append(bytearray(16 << 20))",
        "def f(): return [0] * (100 << 30)",
        "import mmap\ndef f():\n  try: return mmap.mmap(-1, 100 << 30)\n  except OSError: raise MemoryError",
    ],
)
def test_memory_ends(box: Sandbox, source: str) -> None:
    box.limits = Limits(memory=256 << 20)  # with time enough to reach it: a virtual machine's first touch is slow
    assert run(box, source).reason == "memory"


@under_the_strongest
def test_printing_a_gigabyte_neither_blocks_nor_matters(box: Sandbox) -> None:
    box.limits = Limits(cpu_s=20, wall_s=30.0)
    source = "import sys\ndef f():\n  for _ in range(1024): sys.stdout.write('x' * (1 << 20))\n  return 918273"
    assert run(box, source) == Verdict(True, "pass")


ATTEMPT = """
import ctypes, errno, fcntl, os, resource, socket, subprocess, threading
PORT, SCORER, OUTSIDE = {port}, {pid}, {outside!r}
x86 = os.uname().machine == "x86_64"
def denied(): raise PermissionError
def call(number, *args):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *args) < 0:
        raise OSError(ctypes.get_errno(), "syscall")
def tried(act):
    try:
        eval(act)
    except (OSError, RuntimeError) as error:
        # the kernel's own refusals (no such process, bad address) would be luck, not confinement
        ok = isinstance(error, RuntimeError) or error.errno in ({allowed}) or isinstance(error, PermissionError)
        return "refused" if ok else repr(error)
    return "possible"
def f(): return {{name: tried(act) for name, act in {acts!r}.items()}}
"""


@pytest.mark.parametrize("acts", [PROCESSES, NETWORK, SIGNALS, FILES], ids=["processes", "network", "signals", "files"])
def test_each_way_out_is_shut(box: Sandbox, tmp_path: Path, acts: dict[str, str]) -> None:
    """The program notes each refusal and returns them: a pass says that all were refused and that it lived on."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "old").write_text("old")
    before = (outside / "old").stat()
    delivered: list[int] = []
    old_handler = signal.signal(signal.SIGIO, lambda number, frame: delivered.append(number))
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            allowed = "errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EXDEV, errno.EROFS"
            there = {"port": server.getsockname()[1], "pid": os.getpid(), "outside": str(outside)}
            source = ATTEMPT.format(acts=acts, allowed=allowed, **there)
            tests = "\n".join(f"assert found[{act!r}] == 'refused'" for act in acts)
            assert run(box, source, f"found = f()\n{tests}") == Verdict(True, "pass")
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.accept()
    finally:
        signal.signal(signal.SIGIO, old_handler)
    assert not delivered
    assert os.listdir(outside) == ["old"]
    after = (outside / "old").stat()
    for name in ("st_size", "st_mode", "st_uid", "st_mtime_ns"):
        assert getattr(after, name) == getattr(before, name)


def test_its_world_is_an_empty_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, box: Sandbox) -> None:
    monkeypatch.setenv("A_SECRET", "918273")
    secret = tmp_path / "secret"
    secret.write_text("918273")
    source = f"""
import os, sys
def f(what):
    if what == "cwd": return os.listdir(".")
    if what == "env": return "A_SECRET" in os.environ
    if what == "fds":
        found = []
        for fd in range(3, 1024):
            try: os.fstat(fd); found.append(fd)
            except OSError: pass
        return len(found)
    if what == "modules":
        try: import pydantic
        except ImportError: return False
        return True
    if what == "read":
        try: return open({str(secret)!r}).read()
        except OSError: return "denied"
    if what == "write":
        try:
            with open("x", "w") as file: file.write("y")
            os.mkdir("d"); os.rename("x", "d/z")
            return open("d/z").read()
        except OSError: return "denied"
"""
    tests = f"""
assert f("cwd") == []
assert f("env") is False
assert f("fds") == 2, "the two ends of its channel"
assert f("modules") is False
assert f("read") == {"denied" if box.confinement.landlock else "918273"!r}
assert f("write") == {"y" if box.confinement.writable else "denied"!r}
"""
    assert run(box, source, tests) == Verdict(True, "pass")


def test_filling_the_disk_ends(box: Sandbox) -> None:
    source = """
def f():
    written = 0
    try:
        for name in range(10 ** 6):
            with open(str(name), "wb") as file: written += file.write(b"x" * (4 << 20))
    except OSError: return written <= 16 << 20
"""
    assert run(box, source, "assert f() is True").passed


def test_the_scorer_dying_takes_the_program_along(tmp_path: Path) -> None:
    others = processes.children()  # the resource tracker of a test before, which stays
    pid = os.fork()
    if not pid:
        try:
            tempfile.tempdir = str(tmp_path)  # a killed scorer cannot remove its empty folder
            Sandbox(Limits(cpu_s=60, wall_s=60.0)).run(Program(("import time\ntime.sleep(60)",), "f", "", "f()"))
        finally:
            os._exit(0)
    deadline = time.monotonic() + 10
    while not (inner := _sleeper_of(pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert inner, "the program did not start"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while processes.children() - others and time.monotonic() < deadline:  # orphans come here, see nothing_left
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        time.sleep(0.02)
    assert not Path(f"/proc/{inner}").exists()


def test_every_confinement_says_what_it_is() -> None:
    limits = Limits()
    assert any("network" in line for line in BARE.describe(limits))
    assert any("NOT ISOLATED" in line for line in Confinement(False, 0, False).describe(limits))
    assert not Confinement(True, 2, True).writable  # Landlock before 3 lets a reader truncate
    assert not Confinement(True, 7, False).writable  # a real disk has no bound


def test_a_weaker_confinement_fails_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = Confinement(seccomp=False, landlock=0, namespaces=False)
    assert sandbox._attempt(nothing, sandbox._SELF_TEST).reason == "fail"
    assert sandbox._attempt(BARE, sandbox._SELF_TEST).passed


def test_refused_without_seccomp_unless_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seccomp, "supported", lambda: False)
    sandbox.strongest.cache_clear()
    monkeypatch.delenv(sandbox.ALLOW_UNISOLATED, raising=False)
    try:
        with pytest.raises(EnvironmentRefused, check=wording):
            Sandbox()
        allowed = Sandbox(allow_unisolated=True)
        assert any("NOT ISOLATED" in line for line in allowed.isolation)
        assert allowed.run(Program(("def f(): return 1",), "f", "", "assert f() == 1")).passed
        monkeypatch.setenv(sandbox.ALLOW_UNISOLATED, "1")
        assert Sandbox().confinement == Confinement(False, 0, False)
    finally:
        sandbox.strongest.cache_clear()


@under_the_strongest
def test_a_sandbox_that_does_not_start_gives_no_verdict(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EnvironmentRefused, check=wording):
        run(box, "def f(): return 918273")


def test_confinement_that_is_promised_but_missing_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Sandbox(TIGHT)
    monkeypatch.setattr(seccomp, "build", lambda writable: b"\xff" * 8)  # the kernel refuses such a filter
    with pytest.raises(EnvironmentRefused, check=wording):
        run(made, "def f(): return 918273")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("writable", [False, True])
def test_the_filter_decides_as_written(machine: str, writable: bool) -> None:
    """Interprets the BPF program, so that the table of the other architecture is tested as well."""
    number = {
        "x86_64": {"read": 0, "openat": 257, "socket": 41, "fork": 57, "fcntl": 72, "prlimit64": 302, "mkdirat": 258},
        "aarch64": {"read": 63, "openat": 56, "socket": 198, "fork": 220, "fcntl": 25, "prlimit64": 261, "mkdirat": 34},
    }[machine]
    arch = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
    program = seccomp.build(writable, machine)

    def verdict(nr: int, *args: int, arch: int = arch) -> int:
        data = {0: nr, 4: arch} | {16 + 8 * index: value for index, value in enumerate(args)}
        position, register = 0, 0
        while True:
            code = int.from_bytes(program[position : position + 2], "little")
            jt, jf = program[position + 2], program[position + 3]
            k = int.from_bytes(program[position + 4 : position + 8], "little")
            position += 8
            if code == 0x20:
                register = data.get(k, 0)
            elif code == 0x06:
                return k
            else:
                hit = {0x15: register == k, 0x35: register >= k, 0x45: bool(register & k)}[code]
                position += 8 * (jt if hit else jf)

    allow, kill, error = 0x7FFF0000, 0x80000000, 0x00050000
    assert verdict(number["read"]) == allow
    assert verdict(number["read"], arch=0x40000003) == kill  # i386
    assert verdict(number["socket"]) == verdict(number["fork"]) == error | 1
    assert verdict(425) == verdict(435) == error | 38
    assert verdict(number["openat"], 0, 0, os.O_RDONLY) == allow
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_TRUNC, os.O_CREAT, os.O_TMPFILE | os.O_WRONLY):
        assert verdict(number["openat"], 0, 0, flags) == (allow if writable else error | 13)
    assert verdict(number["mkdirat"]) == (allow if writable else error | 1)
    assert verdict(number["fcntl"], 0, 1) == allow
    assert verdict(number["fcntl"], 0, 8) == verdict(number["fcntl"], 0, 15) == error | 1  # F_SETOWN, F_SETOWN_EX
    assert verdict(number["prlimit64"], 0) == allow
    assert verdict(number["prlimit64"], 1234) == error | 1
