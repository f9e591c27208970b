"""The child's side of ``sandbox.py``: run one program and its tests in two processes, started fresh for every program.

    sandbox (the scorer) -- job, later the tests --> judge -- "call f(args)" --> program
                         <-------- verdict ---------       <---- the value ----

The *program* runs the model's code. It is confined before it reads a line of this code, and its only channel is a pair
of pipes, through which it can only return values. The *judge* runs our tests and never runs the model's code. So the
program cannot forge a verdict: no exit code, printed text, frame, fake object or early exit turns into a pass; only
values that satisfy every test do. The tests are read after the fork, so they are not even in the program's memory. A
program is a function to call, a script that reads and prints (``script.py``) or a query on a database (``query.py``);
all kinds are confined alike and answer the same calls.

Standard library only (-S): no site-packages, hence no torch. Prints nothing but the verdict.
"""

from __future__ import annotations

import builtins
import math
import os
import signal
import sys
import time
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from specbench.evals.sandbox import codec, confine, differential, fingerprint, table
else:  # other modules are imported where they are needed: they would cost other programs milliseconds
    import codec
    import confine
    import differential
    import fingerprint
    import table

LONG_FRAME = 40 << 20
"""Largest frame accepted from a script or a query, in bytes: the most output or result, with JSON's escapes."""

SETUP_FAILED = 3
"""Exit code when the requested confinement is not available; the reason is on stderr."""


class SetupError(Exception):
    """The confinement is not available. Says nothing about the program."""


class Raised(Exception):
    """The program raised. ``args`` are the name of a builtin exception and its text."""


def main() -> int:
    job = codec.receive(0, None)
    try:
        confine.die_with(job["parent"])
        confine.first_victim()
        if job["namespaces"]:
            confine.enter_namespaces()
            init = os.fork()  # pid 1 of the namespace: when it goes, the kernel kills whatever is left inside
            if init:
                code = os.waitstatus_to_exitcode(os.waitpid(init, 0)[1])
                return code if code >= 0 else 128 - code
            confine.die_with(0)
            confine.mount_scratch(job["box"], job["disk"])
        confine.hide_memory()
        verdict_fd = os.dup(1)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)  # a test that prints must not write into the verdict
        verdict = run(job)
    except (OSError, SetupError) as error:
        os.write(2, f"{error}\n".encode(errors="replace"))
        return SETUP_FAILED
    codec.send(verdict_fd, verdict)
    return 0


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Fork the program, judge it, and leave no process running."""
    judge_pid = os.getpid()
    program_reads, judge_writes = os.pipe()
    judge_reads, program_writes = os.pipe()
    program = os.fork()
    if not program:
        try:
            serve(job, program_reads, program_writes, judge_pid)
        finally:
            os._exit(0)
    os.close(program_reads)
    os.close(program_writes)
    # Decoding hostile answers must be bounded as well; the wall clock is the bound, so CPU time gets the same.
    confine.limit(math.ceil(job["wall_s"]) + 1, job["memory"], job["disk"])
    found: dict[str, Any] = {}
    try:
        reason, detail = judge(job, program, judge_reads, judge_writes, found)
        return {"reason": reason, "detail": detail, **found}
    finally:
        try:
            os.kill(program, signal.SIGKILL)
            os.waitpid(program, 0)
        except (ProcessLookupError, ChildProcessError):
            pass  # already waited for


def judge(job: dict[str, Any], program: int, rx: int, tx: int, found: dict[str, Any]) -> tuple[str, str]:
    """Run the tests against the program. Returns (reason, detail); the reason is "pass" when they all went through."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    watch = differential.Watch(program, job["wall_s"])
    try:
        try:
            watch.start(job["load_s"])
            run_tests(job, rx, tx, watch, found)
            return "pass", ""
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except SetupError:
        raise
    except differential.TimeUp as up:
        return "timeout", str(up)
    except Raised as raised:
        name, text = raised.args
        return ("memory", text) if name == "MemoryError" else (name, text)
    except (EOFError, BrokenPipeError):
        return cause_of_death(program, job["cpu_s"])
    except differential.Wrong as wrong:
        return "fail", str(wrong)
    except table.Failed as failed:
        reason, text = failed.args
        return reason, text
    except AssertionError as error:
        return "fail", failed_line(error) or str(error)
    except MemoryError:
        return "memory", "the answer is too large to compare"
    except Exception as error:  # a test that chokes on the value, such as abs(None - 1)
        return type(error).__name__, str(error)


def run_tests(job: dict[str, Any], rx: int, tx: int, watch: differential.Watch, found: dict[str, Any]) -> None:
    """Return when every test has passed. The tests are Python code to execute, or inputs and outputs to compare.

    Raises:
        SetupError: the program could not be confined.
        Raised: the program raised, when loaded or when called.
        EOFError, BrokenPipeError: the program is gone.
        AssertionError, or whatever a test raises.
        differential.Wrong, differential.TimeUp, table.Failed: from a comparison.
    """
    entry_point, function = job["entry_point"], job["kind"] == "function"
    try:
        first = codec.receive(rx)  # sent by this file before the model's code is loaded, so it can be trusted
    except EOFError:
        raise SetupError("the program's process ended before it was confined") from None
    if "setup" in first:
        raise SetupError(first["setup"])

    def reply() -> dict[str, Any]:
        """What came back, {"value"} or {"digest"}, known to be readable."""
        try:
            message = codec.receive(rx, codec.MAX_FRAME if function else LONG_FRAME)
            if "digest" in message:
                return {"digest": str(message["digest"])}
            if "value" in message:
                codec.unpack(message["value"])
                return {"value": message["value"]}
            name, text = message["error"]
        except EOFError:
            raise
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise Raised("fail", f"the program's answer cannot be read: {error}") from None
        known = getattr(builtins, str(name), None)
        is_exception = isinstance(known, type) and issubclass(known, BaseException)
        raise Raised(str(name) if is_exception else "fail", str(text))

    def candidate(*args: Any, **kwargs: Any) -> Any:
        codec.send(tx, [codec.pack(args), codec.pack(kwargs)])
        return codec.unpack(reply()["value"])

    def ask(args: Any) -> dict[str, Any]:
        codec.send(tx, [args, {"dict": []}, *short])
        return reply()

    reply()
    watch.stop()
    try:
        tests = codec.receive(0, None)
    except MemoryError:  # our own limit, not a fault of the program
        raise SetupError("its tests need more memory than the judge may use") from None
    if "preamble" not in tests:
        compare = comparison(tests)
        # Only differential's values may be replaced by a hash; others are compared with a tolerance.
        short = [True] if compare in (differential.check, differential.record) else []
        compare(ask, tests, watch, found)
        return
    names: dict[str, Any] = {"__name__": "tests"}
    exec(compile(tests["preamble"], "<preamble>", "exec"), names)
    names[entry_point] = candidate
    names["__lines__"] = tests["tests"].splitlines()
    exec(compile(tests["tests"], "<tests>", "exec"), names)


def comparison(cases: dict[str, Any]) -> Callable[..., None]:
    """Choose the comparison for ``cases`` from the fields that they have."""
    if "query" in cases:
        return table.check if "expected" in cases else table.read
    if "printed" in cases:
        return cast(Callable[..., None], __import__("printed").check)
    return differential.check if "expected" in cases else differential.record


def failed_line(error: AssertionError) -> str:
    """The text of the test that failed, "" when the assertion is not in the tests."""
    found, step = "", error.__traceback__
    while step:
        if step.tb_frame.f_code.co_filename == "<tests>":
            lines = step.tb_frame.f_globals["__lines__"]
            found = lines[step.tb_lineno - 1].strip() if step.tb_lineno <= len(lines) else ""
        step = step.tb_next
    return found


def cause_of_death(program: int, cpu_s: int) -> tuple[str, str]:
    """Why the program closed its channel. It may still be alive, so the wait is limited."""
    for _ in range(50):
        pid, status, usage = os.wait4(program, os.WNOHANG)
        if pid:
            break
        time.sleep(0.01)
    else:
        return "fail", "the program closed its channel to the tests"
    code = os.waitstatus_to_exitcode(status)
    ignored = code == -signal.SIGKILL and usage.ru_utime + usage.ru_stime >= cpu_s  # it had switched SIGXCPU off
    if code == -signal.SIGXCPU or ignored:
        return "timeout", f"more than {cpu_s} s of CPU time"
    if code == -signal.SIGKILL:
        return "memory", "killed from outside, most likely by the kernel for want of memory"
    how = f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
    return "fail", f"the program {how} before the tests ended"


def serve(job: dict[str, Any], rx: int, tx: int, judge_pid: int) -> None:
    """The program's process: confine, load the model's code, answer calls until killed."""
    try:
        confine.die_with(judge_pid)
        for fd in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), fd)  # what it prints is dropped, however much it is
        low, high = sorted((rx, tx))
        for start, stop in ((3, low), (low + 1, high), (high + 1, 4096)):
            os.closerange(start, stop)
        prepared = KINDS[job["kind"]](job)
        own = job["box"] if job["writable"] else None
        confine.limit(job["cpu_s"], job["memory"], job["disk"])
        confine.drop_privileges()
        if job["landlock"]:
            confine.restrict_files(job["landlock"], own)
        if job["filter"]:
            confine.filter_calls(bytes.fromhex(job["filter"]))
    except Exception as error:
        codec.send(tx, {"setup": f"{type(error).__name__}: {error}"})
        return
    codec.send(tx, {"setup_done": True})

    sys.path[:] = sys.path[1:]  # this folder
    sys.argv = ["solution"]
    message: dict[str, Any]
    try:
        call = prepared()
        message = {"value": None}
    except BaseException as error:  # SystemExit and KeyboardInterrupt count as results, too
        message = {"error": describe(error)}
    while True:
        codec.send(tx, message)
        args, kwargs, *short = codec.unpack(codec.receive(rx, None))  # short: the hash of a large value is enough
        try:
            value = call(*args, **kwargs)
            if short and fingerprint.large(value):
                message = {"digest": fingerprint.fingerprint(value)}
            else:
                message = {"value": codec.pack(value)}
            del value  # it may be large, and the next value may need the memory
        except BaseException as error:
            message = {"error": describe(error)}


def function_of(job: dict[str, Any]) -> Callable[[], Callable[..., Any]]:
    """A function to call: (preparation before the process is confined, which is empty here; loader)."""

    def load_it() -> Callable[..., Any]:
        module = types.ModuleType("solution")  # not "__main__": code under that guard is not part of the answer
        sys.modules["solution"] = module
        entry_point = job["entry_point"]
        load(module.__dict__, job["sources"], entry_point, job["lenient"])
        return lambda *args, **kwargs: module.__dict__[entry_point](*args, **kwargs)

    return load_it


def script_of(job: dict[str, Any]) -> Callable[[], Callable[..., Any]]:
    """A script to run: as :func:`function_of`."""
    made = __import__("script").Script()

    def load_it() -> Callable[..., Any]:
        made.load(job["sources"])
        return made.run

    return load_it


def query_of(job: dict[str, Any]) -> Callable[[], Callable[..., Any]]:
    """A database to query: as :func:`function_of`."""
    made = __import__("query").Query(job["database"])
    return lambda: made.run


KINDS = {"function": function_of, "script": script_of, "query": query_of}
"""Kinds of programs, and what prepares each."""


def load(names: dict[str, Any], sources: list[str], entry_point: str, lenient: bool) -> None:
    """Execute ``sources`` in order in one namespace, each a unit of its own (so ``from __future__`` works in each).

    Args:
        lenient: ignore an exception after the last source has defined the entry point: chat models add examples
            that may fail, and the verdict is about the function.
    """
    for index, source in enumerate(sources):
        before = names.get(entry_point)
        code = compile(source, "<solution>", "exec", dont_inherit=True)
        try:
            exec(code, names)
        except BaseException:
            if not (lenient and index == len(sources) - 1 and names.get(entry_point) is not before):
                raise
    if not callable(names.get(entry_point)):
        raise NameError(f"{entry_point} is not defined")


def describe(error: BaseException) -> list[str]:
    """[name of the nearest builtin class, text], so that tables can group errors of a program's own classes."""
    name = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
    try:
        return [name, str(error)[:500]]
    except Exception:
        return [name, ""]


if __name__ == "__main__":
    os._exit(main())  # not sys.exit: the interpreter's shutdown is not needed and takes milliseconds
