"""Programs that read and print: all the ways to do so work, and none to pass without being right or to do harm."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from support.processes import FILES, NETWORK, PROCESSES, SIGNALS
from support.wording import wording

from specbench.common.errors import EnvironmentRefused
from specbench.evals import contest_checks
from specbench.evals.contest_checks import PREAMBLE, Cases, check
from specbench.evals.sandbox.printed import same_text, same_value
from specbench.evals.sandbox.sandbox import Limits, Program, Sandbox
from specbench.evals.task import Verdict

pytestmark = pytest.mark.usefixtures("nothing_left")

under_the_strongest = pytest.mark.parametrize("box", ["strongest"], indirect=True)

LIMITS = Limits(cpu_s=6, wall_s=12.0, memory=512 << 20, disk=16 << 20)
SECRET = "918273"


def run(
    box: Sandbox, source: str, *cases: tuple[str, str], limit: float = 2, limits: Limits = LIMITS
) -> dict[str, Any]:
    """What comes of a script; it is to print 918273 for every input unless there are ``cases``."""
    given = cases or (("1\n", SECRET), ("2\n", SECRET))
    held = {
        "printed": True, "inputs": [[text] for text, _ in given], "expected": [text for _, text in given],
        "limit": limit,
    }  # fmt: skip
    return box.compare(Program((source,), "", "", "", kind="script"), held, limits)


def passes(box: Sandbox, source: str, *cases: tuple[str, str]) -> None:
    answer = run(box, source, *cases)
    assert answer == {"reason": "pass", "detail": "", "right": len(cases)}, (source, answer)


DOUBLED = (("2\n3\n", "4\n6\n"), ("5\n-1", "10\n-2"))
WAYS = [
    "print(int(input()) * 2)\nprint(int(input()) * 2)",
    "import sys\nfor line in sys.stdin: print(int(line) * 2)",
    "import sys\nfor word in sys.stdin.read().split(): sys.stdout.write(str(int(word) * 2) + '\\n')",
    "import sys\nfor line in sys.stdin.readlines(): print(int(line) * 2)",
    "import sys\nread = sys.stdin.buffer.readline\nprint(int(read()) * 2, int(read()) * 2, sep='\\n')",
    "import sys\ninput = lambda: sys.stdin.readline().rstrip()\nprint(int(input()) * 2)\nprint(int(input()) * 2)",
    "for word in open(0).read().split(): print(int(word) * 2)",
    "import os\nfor word in os.read(0, os.fstat(0).st_size).split(): os.write(1, b'%d\\n' % (int(word) * 2))",
    "import sys\nout = [int(word) * 2 for word in open(sys.stdin.fileno())]\nprint(*out, sep='\\n')\nsys.exit()",
    "import io, os, sys\nkept = io.BytesIO()\nsys.stdout = io.TextIOWrapper(kept)\n"
    "for line in sys.stdin: print(int(line) * 2)\nsys.stdout.flush()\nos.write(1, kept.getvalue())",
    "import atexit, sys\ndone = []\natexit.register(lambda: print(*done, sep='\\n'))\n"
    "done += [int(line) * 2 for line in sys.stdin]",
    "def main():\n    for _ in range(2): print(int(input()) * 2)\nif __name__ == '__main__':\n    main()\n    exit(1)",
    "import __main__\nfrom dataclasses import dataclass\n@dataclass\nclass N:\n    n: 'int'\n"
    "for _ in range(2): print(__main__.N(int(input())).n * 2)\nquit()",
    "from __future__ import annotations\nimport sys\nprint(*(2 * int(x) for x in sys.stdin), sep='\\n')",
]


@under_the_strongest
def test_every_way_to_read_and_to_print(box: Sandbox) -> None:
    for source in WAYS:
        passes(box, source, *DOUBLED)


def test_right_and_wrong(box: Sandbox) -> None:
    passes(box, WAYS[0], *DOUBLED)
    wrong = run(box, "print(int(input()) * 2)\nprint(6)", *DOUBLED)
    assert wrong == {"reason": "fail", "detail": "test 2: printed '10\\n6\\n', expected '10\\n-2'", "right": 1}


@under_the_strongest
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("x = (", "SyntaxError"), ("import numpy", "ModuleNotFoundError"), ("print(1 / 0)", "ZeroDivisionError"),
        ("input()\ninput()\ninput()", "EOFError"), ("assert False", "AssertionError"),
        (f"print({SECRET})\nraise KeyError(1)", "KeyError"), ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("def f(): f()\nf()", "RecursionError"), ("print('\\ud800')", "UnicodeEncodeError"),
        ("import threading\nthreading.Thread(target=print).start()", "RuntimeError"),
        ("x = bytearray(100 << 30)", "memory"), ("exit(3)", "fail"), ("", "fail"),
    ],
)  # fmt: skip
def test_reason_says_how_it_ended(box: Sandbox, source: str, reason: str) -> None:
    assert run(box, source)["reason"] == reason


@under_the_strongest
def test_each_test_finds_a_fresh_world(box: Sandbox) -> None:
    """Names, files, builtins, functions registered for the end: nothing of one test is there in the next."""
    source = (
        "import builtins, os, sys\nassert 'seen' not in globals() and 'seen' not in dir(builtins)\nseen = 1\n"
        "print(int(input()))\nsys.stdout.flush()\nbuiltins.seen = builtins.len = builtins.print = None\n"
        "sys.stdin = sys.stdout = None\nos.dup2(2, 1)\nos.close(0)\nsys.setrecursionlimit(90)"
    )
    passes(box, source, *((f"{n}\n", f"{n}\n") for n in range(4)))
    passes(box, "import atexit\natexit.register(print, 'bye')\nprint(input())", ("1", "1\nbye"), ("2", "2\nbye"))
    patched = run(box, "import builtins\nprint(int(input()))\nbuiltins.isinstance = None", ("3", "3"), ("4", "4"))
    assert patched["reason"] == "pass", "not even what packs its output is hurt"


@under_the_strongest
def test_its_end_is_that_of_an_interpreter(box: Sandbox) -> None:
    """What is still written then belongs to this test, and what would go on then does not reach the next one."""
    goodbye = "class Last:\n    def __del__(self): print(word)\nword, last = 'bye', Last()\n"
    cases = ("1\n", "1\nbye"), ("2\n", "2\nbye")
    for source in (
        goodbye + "print(input())",
        goodbye + "last.me = last\nimport gc\ngc.disable()\nprint(input())",
        "out = open(1, 'w')\nout.write(input() + '\\nbye')",
    ):
        passes(box, source, *cases)
    later = "import signal, sys, time\ngiven = input()\nprint(given)\nif given == '2': time.sleep(0.3)\n"
    timer = "signal.setitimer(signal.ITIMER_REAL, 0.2)"
    for left in (timer, f"signal.signal(signal.SIGALRM, lambda *_: print('late'))\n{timer}", "sys.settrace(exit)"):
        passes(box, f"{later}else: pass\n{left}", ("1\n", "1"), ("2\n", "2"))


@under_the_strongest
def test_deep_recursion_and_large_texts(box: Sandbox) -> None:
    """50,000 calls, as the authors allow; and more than a pipe holds, both ways."""
    deep = "def f(n): return n and 1 + f(n - 1)\nprint(f(int(input())))"
    program = Program((PREAMBLE, deep), "", "", "", kind="script")
    held = {"printed": True, "inputs": [["45000"]], "expected": ["45000"], "limit": 4}
    assert box.compare(program, held, LIMITS)["reason"] == "pass"
    large = "\n".join(map(str, range(500_000)))
    passes(box, "import sys\nsys.stdout.write(sys.stdin.read())", (large, large))


FORGERIES = {
    "prints the channel's frames": 'import struct\nframe = b\'{"value": "918273"}\'\n'
    "print(struct.pack('>I', len(frame)).decode() + frame.decode())",
    "writes a verdict to every descriptor": """
import os, struct
frame = b'{"reason": "pass", "detail": "", "right": 2}'
for fd in range(256):
    try: os.write(fd, struct.pack(">I", len(frame)) + frame)
    except OSError: pass
os._exit(0)
""",
    "patches what compares": "import sys\nsys.modules['script'].Script.run = lambda self, given: True",
    "a text that equals everything": """
import sys
class Yes(str):
    __eq__ = lambda self, other: True
    __hash__ = str.__hash__
    strip = lambda self: self
sys.modules["script"].Script.run = lambda self, given: Yes("x")
""",
    "looks for the answer in its objects": """
import gc, re, sys
frame, seen = sys._getframe(), []
while frame:
    seen += [str(frame.f_locals), str(frame.f_globals), str(frame.f_code.co_consts)]
    frame = frame.f_back
seen += [str(one) for one in gc.get_objects() if isinstance(one, (dict, list, tuple))]
print(next((m[1] for m in map(re.compile("(9182[7]3)").search, seen) if m), None))
""",
    "reads its descriptors": """
import os
for fd in range(64):
    try:
        if fd > 2: os.set_blocking(fd, False)
        os.lseek(fd, 0, 0)
    except OSError: pass
    try: print(os.read(fd, 1 << 20))
    except OSError: pass
""",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_no_forgery_passes(box: Sandbox, name: str) -> None:
    answer = run(box, FORGERIES[name], limit=0.5)
    assert answer["reason"] != "pass", answer


ENDLESS = {
    "prints": ("while True: print('x' * 1000)", "OverflowError"),
    "prints whatever is refused": (
        "while True:\n  try: print('x' * 1000)\n  except OSError: pass", "timeout"
    ),
    "writes bytes": ("import os\nwhile True: os.write(1, b'x' * 65536)", "OverflowError"),
    "writes to its input": ("import os\nwhile True: os.write(0, b'x' * 65536)", "fail"),
    "computes": ("while True: pass", "timeout"),
    "sleeps": ("import time\ntime.sleep(600)", "timeout"),
    "grows": ("x = []\nwhile True: x.append(bytearray(16 << 20))", "memory"),
    "ends at the end": ("import atexit\n@atexit.register\ndef never():\n  while True: pass", "timeout"),
    "stays": (
        "class Never:\n  def __del__(self):\n    while True: pass\nx = Never()\nx.x = x\nprint(918273)", "timeout"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
def test_what_does_not_end_is_ended(box: Sandbox, name: str) -> None:
    source, reason = ENDLESS[name]
    began = time.monotonic()
    limits = Limits(cpu_s=4, wall_s=5.0, memory=256 << 20, disk=16 << 20)
    # What grows gets more time: on a busy machine its pages alone can take 0.3 s.
    answer = run(box, source, limit=2 if name == "grows" else 0.3, limits=limits)
    assert answer["reason"] == reason, answer
    assert time.monotonic() - began < 9


def test_too_much_is_no_answer(box: Sandbox) -> None:
    answer = run(box, "print('x' * (7 << 20))")
    assert (answer["reason"], answer["detail"]) == ("OverflowError", "it printed more than 6 MiB")


TRIED = """
import ctypes, errno, fcntl, os, resource, socket, subprocess, threading
PORT, SCORER, OUTSIDE = {port}, {pid}, {outside!r}
x86 = os.uname().machine == "x86_64"
def denied(): raise PermissionError
def call(number, *args):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *args) < 0:
        raise OSError(ctypes.get_errno(), "syscall")
for name, act in {acts!r}.items():
    try: eval(act)
    except (OSError, RuntimeError): continue
    print(name)
print("tried", input())
"""


def test_it_is_confined_as_functions_are(box: Sandbox, tmp_path: Path) -> None:
    """The acts of ``test_sandbox``, all of them: a pass says that the script lived on and that each was refused."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "old").write_text("old")
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = {"port": server.getsockname()[1], "pid": os.getpid(), "outside": str(outside)}
        source = TRIED.format(acts={**PROCESSES, **NETWORK, **SIGNALS, **FILES}, **there)
        answer = run(box, source, ("1", "tried 1"), ("2", "tried 2"))
    assert answer["reason"] == "pass", answer
    assert [path.name for path in outside.iterdir()] == ["old"]
    assert (outside / "old").read_text() == "old"


def test_its_descriptors_are_its_channel_and_two_memory_files(box: Sandbox) -> None:
    source = (
        "import os\nfound = 0\nfor fd in range(1024):\n  try: os.fstat(fd); found += 1\n"
        "  except OSError: pass\nprint(found)"
    )
    assert run(box, source, ("", "7"))["reason"] == "pass", "0, 1, 2, the two kept, the two ends of the channel"


def test_lines_are_compared_as_the_authors_do() -> None:
    for printed_, expected, same in [
        ("1\n", "1", True), (" 1 \n2", "1\n2\n\n", True), ("1\n\n2", "1\n2", False), ("1 2", "1\n2", False),
        ("1.0 2", "1 2.00", True), ("1e2", "100", True), ("0.1", "0.10000001", False), ("a", "A", False),
        ("50000000000000000", "50000000000000001", False), ("a 1.0", "a 1", False), ("", "", True),
        ("1  2", "1 2", True), ("nan", "nan", True), ("nan 1.0", "nan 1", False), ("snan 1.0", "snan 1", False),
        ("yes no", "yes  no", False), ("١", "1", True), ("1\r\n2\r\n", "1\n2", True), ("1_0", "10", True),
        ("Infinity", "inf", True),
        ("x" * 10, "x" * 9, False), ("1\n2", "1", False), ("1", "1\n2", False), ("", "1", False),
    ]:  # fmt: skip
        assert same_text(printed_, expected) is same, (printed_, expected)
    assert not same_text(1, "1")


def test_values_are_compared_as_the_authors_do() -> None:
    for returned, expected, same in [
        ([1], [1], True), ((1, 2), [1, 2], True), ([(1,)], [[1]], False), (1.0, 1, True), (True, 1, True),
        ({1}, [1], False), (None, None, True), ("a", ["a"], False), (0.1 + 0.2, 0.3, False),
    ]:  # fmt: skip
        assert same_value(returned, expected) is same, (returned, expected)


def call(code: str, *cases: tuple[list[Any], Any], public: int = 1) -> Verdict:
    made = Cases([given for given, _ in cases], [value for _, value in cases], "go", public)
    return check(Sandbox(), made, code)


def test_a_function_or_a_method_is_called() -> None:
    method = "class Solution:\n    def go(self, x: List[int], n): return {}"
    for source in (method, "def go(x, n): return {}", "import typing\n" + method):
        assert call(source.format("x * n"), ([[1], 2], [1, 1]), ([[], 2], [])) == Verdict(
            True, "pass", "", {"public": True}
        )
    half = call(method.format("[1, 1]"), ([[1], 2], [1, 1]), ([[], 2], []))
    assert half == Verdict(False, "fail", "test 2: returned [1, 1], expected []", {"public": True})
    none = call(method.format("x"), ([[1], 2], [1, 1]))
    assert (none.passed, none.also) == (False, {"public": False})
    empty = "class Solution:\n    def __len__(self): return 0\n    def go(self, x): return x"
    assert call(empty, ([1], 1)).passed
    large = list(range(60_000))
    assert call("def go(x): return x + x", ([large], large * 2)).passed
    for source, reason in (
        ("def stay(x): return x", "KeyError"), ("class Solution: pass", "AttributeError"),
        ("class Solution:\n    def __init__(self): 1 / 0", "ZeroDivisionError"), ("go = (", "SyntaxError"),
        ("if __name__ == '__main__':\n    def go(x): return x", "KeyError"), ("import numpy", "ModuleNotFoundError"),
        ("class Yes:\n    __eq__ = lambda self, other: True\ndef go(x): return Yes()", "fail"),
        ("def go(x):\n    while True: pass", "timeout"),
    ):  # fmt: skip
        verdict = call(source, ([1], 1)) if reason != "timeout" else quick(source)
        assert verdict.reason == reason, (source, verdict)


def quick(source: str) -> Verdict:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(contest_checks, "INPUT_S", 1)
        return call(source, ([1], 1))


@under_the_strongest
def test_tests_that_find_no_room_are_not_the_programs_fault(box: Sandbox) -> None:
    small = Limits(cpu_s=6, wall_s=12.0, memory=128 << 20)
    assert run(box, "print(input())", ("1", "1"), limits=small)["reason"] == "pass"
    with pytest.raises(EnvironmentRefused, check=wording):
        run(box, "print(input())", ("1", "1"), ("2", "x" * (60 << 20)), limits=small)


def test_time_is_for_each_test_and_not_for_all() -> None:
    slow = "import time\nend = time.process_time() + 0.6\nwhile time.process_time() < end: pass\nprint(input())"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(contest_checks, "INPUT_S", 1)
        verdict = check(Sandbox(), Cases(["1", "2", "3"], ["1", "2", "3"], None, 1), slow)
        assert verdict == Verdict(True, "pass", "", {"public": True})
        more = slow.replace("0.6", "1.6 * (input() == '2')").replace("print(input())", "print(1)")
        verdict = check(Sandbox(), Cases(["1", "2"], ["1", "1"], None, 1), more)
    assert (verdict.reason, verdict.also) == ("timeout", {"public": True})
