"""Mutation testing: does the suite notice one changed expression where figures and answers are decided?

`make mutation` draws mutants of the areas below, as many of each, and runs for each the tests that reach its line.
Then it plants the faults of planted.toml, which no operator makes. It fails where less than nine of ten mutants or a
planted fault are noticed, or where a mutant that is not is missing in survivors.toml, which says why it may live. A
second run after a change draws nearly the same mutants: each has its own lot, drawn from the seed and its text.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from mutation.lines import CACHE, CHOSEN, Lines, lines
from mutation.operators import Mutant, another, mutants

from specbench.common import toml

ROOT = Path(__file__).parents[2]
#: What is mutated, and the folders of tests that are asked. Each area has the same share of a sample.
AREAS: dict[str, tuple[list[str], list[str]]] = {
    "acceptance": (
        ["engine/ops", "engine/program", "engine/pack", "engine/block_verification", "engine/teacher_forcing"],
        ["engine"],
    ),
    "sampler": (["engine/sampler"], ["engine"]),
    "engine": (
        ["engine/engine", "engine/slots", "engine/stepper", "engine/tuner", "engine/loading", "engine/graphs",
         "engine/layers/*", "engine/heads/*", "engine/layout", "engine/attention/*"],
        ["engine"],
    ),
    "kernels": (["engine/kernels/*"], []),
    "stop rule": (["runner/stop"], ["runner"]),
    "counting": (["runner/loop", "runner/record", "runner/trace", "analysis/figures", "analysis/speedup"],
                 ["runner", "analysis"]),
    "intervals": (["analysis/stats/*"], ["analysis"]),
    "grades": (
        ["runner/grades/lossless", "runner/grades/grade_run", "analysis/losslessness", "evals/mathematics",
         "evals/extract", "evals/grading/math_judge"],
        ["runner", "analysis", "tasks", "evals/test_*math*.py", "evals/test_extract.py"],
    ),
    "verdicts": (
        ["../tasks/*/*", "evals/plus_checks", "evals/judge/judge", "evals/sandbox/differential", "evals/sandbox/query",
         "evals/sandbox/seccomp"],
        ["tasks", "evals"],
    ),
    "resume": (
        ["results/folder", "results/request_log", "runner/order", "runner/setup/request_state", "runner/config",
         "common/files"],
        ["results", "runner", "common"],
    ),
    "backends": (["backends/*", "runner/external/external_row", "analysis/baseline", "analysis/other_engines"],
                 ["backends", "runner", "analysis", "cli/test_other_engines.py"]),
    "drafting": (["../methods/*/*", "decoding/*", "decoding/trees/*"], ["methods", "decoding"]),
    "training": (["training/*", "training/*/*", "../methods/*/learning/*"], ["training", "methods"]),
    "report": (
        ["analysis/frame", "analysis/pooling", "report/gathering", "report/tables/*", "report/render/*",
         "report/answers/*", "report/charts/*"],
        ["report", "analysis", "cli/test_quality.py", "cli/test_profile.py"],
    ),
    "machine": (["hardware/*", "analysis/noise", "common/native", "sweeps/search"],
                ["hardware", "analysis", "common", "sweeps"]),
}  # fmt: skip
#: Under the tracer the interpreter takes a quarter of an hour: what names a kernel's file is asked as a whole.
KERNELS, KERNEL_TESTS, KERNEL_S = "specbench/engine/kernels/", "tests/engine/kernels", 30.0
PLANTED = Path(__file__).with_name("planted.toml")
SURVIVORS = Path(__file__).with_name("survivors.toml")
NOTICED = 0.9
LONG, FIRST, ALL = 3.0, 5.0, 40.0  # seconds: of a test others stand in for, of the first lot of tests, and of all


@dataclass(frozen=True)
class Result:
    """What became of a mutant: "killed", "timed out", "survived", "not covered" or "not run", and by which test."""

    mutant: Mutant
    outcome: str
    test: str = ""


def copied(folder: Path) -> Path:
    """A copy of the project's files as they are in the working tree, without what git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    for name in listed.stdout.decode().split("\0"):
        source, target = ROOT / name, folder / name
        if name and (source.is_symlink() or source.exists()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return folder


def targets(area: str) -> list[str]:
    """The sources of an area."""
    found = (path for name in AREAS[area][0] for path in sorted((ROOT / "specbench").glob(f"{name}.py")))
    return [os.path.relpath(path.parent.resolve() / path.name, ROOT) for path in found]


def test_folders(areas: Sequence[str]) -> list[str]:
    """The tests that are asked about some areas: folders, or files."""
    names = dict.fromkeys(name for area in areas for name in AREAS[area][1])
    return [os.path.relpath(path, ROOT) for name in names for path in sorted((ROOT / "tests").glob(name))]


def lot(mutant: Mutant, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}/{mutant.key}".encode()).digest()


def drawn(root: Path, names: Sequence[str], seed: int, count: int) -> list[Mutant]:
    """A sample of all mutants: those with the lowest lots, so that an edit elsewhere leaves nearly all of them in."""
    sources = {name: (root / name).read_text() for name in names}
    every = [mutant for name, source in sources.items() for mutant in mutants(source, name)]
    every.sort(key=lambda mutant: lot(mutant, seed))
    return list(islice((mutant for mutant in every if another(mutant, sources[mutant.file])), count))


def lots_of_tests(mutant: Mutant, known: Lines) -> list[list[str]]:
    """The tests of a mutant, in the order of their use: a quick lot first, for most mutants die by that.

    The first lot are those in the file's own test file and the fastest others; together they take :data:`ALL` at most.
    """
    first, last = mutant.lines
    found = set().union(*(known.tests.get((mutant.file, line), set()) for line in range(first, last + 1)))
    if not mutant.inside or mutant.file.startswith(KERNELS):  # outside it ran when imported, before there was a test
        found = set(known.files.get(mutant.file, ()))
    quick = {test for test in found if known.seconds[test] <= LONG} or found
    own = f"/test_{Path(mutant.file).stem}.py"
    order = sorted(quick, key=lambda test: (own not in test, known.seconds[test], test))
    made: list[list[str]] = [[], []]
    seconds, files = 0.0, set[str]()
    for test in order:
        seconds += known.seconds[test]
        if seconds > ALL and made[0]:
            break
        file = test.split("::")[0]
        begins = seconds <= FIRST and (file in files or len(files) < 4) and not made[1]
        files |= {file} if begins else set()
        made[not begins].append(test)
    return [some for some in made if some]


class Worker:
    """A server, and the way to ask it."""

    def __init__(self, root: Path, modules: Sequence[str], **more: str) -> None:
        path = os.pathsep.join([str(root), str(root / "tests")])
        env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        # Some of the modules import triton, which asks for its interpreter then, before the tests could.
        env |= {"TRITON_INTERPRET": "1", **more}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mutation.server"],
            cwd=root,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._send(list(modules))

    def _send(self, what: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def ask(self, mutant: Mutant | None, tests: Sequence[str], seconds: float) -> dict[str, Any]:
        """Runs tests with a mutant, or with none."""
        order = {"file": mutant.file, "source": mutant.source} if mutant else {"file": "", "source": ""}
        # One seed: what dies today dies tomorrow.
        options = ["--hypothesis-seed=0", "-m", CHOSEN]
        self._send({**order, "tests": list(tests), "seconds": seconds, "options": options})
        assert self._process.stdout is not None
        reply: dict[str, Any] = json.loads(self._process.stdout.readline())
        return reply

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Judge:
    """Tells of a mutant what becomes of it; a test that fails without one, too, tells nothing, and is set aside.

    Attributes:
        sound: of each test that has killed, whether it passes alone and without a mutant.
    """

    def __init__(self, known: Lines) -> None:
        self._known = known
        self.sound: dict[str, bool] = {}

    def result(self, mutant: Mutant, worker: Worker) -> Result:
        reply: dict[str, Any] = {"outcome": "not covered", "test": ""}
        lots = lots_of_tests(mutant, self._known)
        while lots:
            if not (tests := [test for test in lots[0] if self.sound.get(test, True)]):
                lots.pop(0)
                continue
            reply = worker.ask(mutant, tests, self._seconds(tests))
            if reply["outcome"] == "killed" and not self._sound(reply["test"], tests, worker):
                continue
            if reply["outcome"] != "survived":
                break
            lots.pop(0)
        return Result(mutant, reply["outcome"], reply["test"])

    def _seconds(self, tests: Sequence[str]) -> float:
        return sum(self._known.seconds[test] for test in tests)

    def _sound(self, killer: str, tests: Sequence[str], worker: Worker) -> bool:
        """Whether what killed was the mutant. Where no test came to run, the first of them has to run without it."""
        killer = killer if killer in self._known.seconds else tests[0]
        if killer not in self.sound:
            self.sound[killer] = worker.ask(None, [killer], self._seconds([killer]))["outcome"] == "survived"
        return self.sound[killer]


def results(
    root: Path, chosen: Sequence[Mutant], judge: Judge, known: Lines, workers: int, until: float
) -> Iterator[Result]:
    """What becomes of each mutant, as they come; none is begun after ``until`` of the monotonic clock."""
    left, made = queue.SimpleQueue[Mutant](), queue.SimpleQueue[Result | None]()
    for mutant in chosen:
        left.put(mutant)

    def work() -> None:
        worker = Worker(root, known.modules)
        try:
            while time.monotonic() < until:
                made.put(judge.result(left.get_nowait(), worker))
        except queue.Empty:
            pass
        finally:
            worker.close()
            made.put(None)

    for _ in range(workers):
        threading.Thread(target=work, daemon=True).start()
    ended = 0
    while ended < workers:
        result = made.get()
        if result is None:
            ended += 1
        else:
            yield result


def kernel_tests(root: Path, file: str) -> set[str]:
    """The test files that name a kernel's module; they are asked as a whole."""
    found = sorted((root / KERNEL_TESTS).glob("test_*.py"))
    name = Path(file).stem
    named = [one for one in found if name.startswith(one.stem[5:]) or re.search(rf"\b{name}\b", one.read_text())]
    return {str(one.relative_to(root)) for one in named or found if "compile" not in one.name}


def planted(path: Path = PLANTED) -> list[dict[str, Any]]:
    """The faults that no operator makes."""
    found: list[dict[str, Any]] = toml.read(path, "mend it")["fault"]
    return found


def complaint(fault: dict[str, Any], root: Path, worker: Worker) -> str:
    """Why a planted fault counts as missed; empty where every file that it names fails with it, and passes without."""
    file = root / fault["file"]
    sound = file.read_text()
    if sound.count(fault["was"]) != 1:
        return f"{fault['file']} has its text {sound.count(fault['was'])} times"
    for test in fault["tests"]:
        if worker.ask(None, [test], 200.0)["outcome"] != "survived":
            return f"{test} does not pass without it"
        file.write_text(sound.replace(fault["was"], fault["is"]))
        try:
            outcome = worker.ask(None, [test], 200.0)["outcome"]
        finally:
            file.write_text(sound)
        if outcome not in ("killed", "timed out"):
            return f"{test} passes with it"
    return ""


def listed(path: Path = SURVIVORS) -> dict[tuple[str, str, str, int], str]:
    """The survivors that are known, each with its kind: "equivalent" or "accepted"."""
    found = {}
    for one in toml.read(path, "mend it").get("survivor", []):
        if one["kind"] not in ("equivalent", "accepted") or not one["reason"]:
            raise ValueError(f"{path.name}: {one['file']}:{one['line']} needs a kind and a reason")
        found[one["file"], one["before"], one["after"], one.get("nth", 0)] = str(one["kind"])
    return found


def entry(mutant: Mutant) -> str:
    """A survivor as survivors.toml has it, but for its reason."""
    fields = {"file": mutant.file, "line": mutant.lines[0], "before": mutant.before, "after": mutant.after}
    fields |= {"nth": mutant.nth} if mutant.nth else {}
    return "\n".join(["[[survivor]]", *(f"{name} = {json.dumps(value)}" for name, value in fields.items())])


def verdict(
    found: Sequence[Result], known: dict[tuple[str, str, str, int], str], wanted: int
) -> tuple[list[str], bool]:
    """The last lines of a run, and whether it is good."""
    counts = Counter(result.outcome for result in found)
    alive = [result for result in found if result.outcome in ("survived", "not covered")]
    noticed = counts["killed"] + counts["timed out"]
    same = sum(known.get(result.mutant.key) == "equivalent" for result in alive)
    new = [result for result in alive if result.mutant.key not in known]
    closing = [
        f"{len(found)} mutants: " + ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items())),
        f"noticed {noticed / max(1, len(found)):.1%}; without the {same} that change nothing "
        f"{noticed / max(1, len(found) - same):.1%}",
    ]
    if len(found) < wanted:
        closing.append(f"{wanted - len(found)} were not tried for lack of time: --minutes gives more")
    if new:
        closing.append(f"{len(new)} are not in {SURVIVORS.name}: kill them by a test, or say there why they may live")
    return closing, len(found) == wanted and not new and not counts["not run"] and noticed >= NOTICED * len(found)


def _plant(say: Callable[[str], None]) -> bool:
    """Plants each fault; whether all were noticed."""
    with tempfile.TemporaryDirectory(prefix="specbench-planted-") as base:
        root = copied(Path(base, "copy"))
        # Without bytecode: it is matched by a file's second and size, which a fault may keep. Changed wording is not a
        # failure.
        more = {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": "--reword"}
        worker, good = Worker(root, ["torch", "transformers"], **more), True
        for fault in planted():
            wrong = complaint(fault, root, worker)
            say(f"planted {'missed' if wrong else 'noticed'} {fault['name']}{f': {wrong}' if wrong else ''}")
            good &= not wrong
        worker.close()
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description="draw mutants, and see whether the tests notice them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=300, help="mutants to draw")
    parser.add_argument("--minutes", type=float, default=60, help="begin no mutant after so many")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="mutants tried at once")
    parser.add_argument("--area", default="", choices=["", *AREAS], help="of one area alone; default is all")
    parser.add_argument("--no-planted", action="store_true", help="without the faults of planted.toml")
    parser.add_argument("--only", default="", help="of those drawn, the ones of files whose path has this in it")
    parser.add_argument("--again", action="store_true", help="of those drawn, the ones that survived the last time")
    options = parser.parse_args()
    start, last, found = time.monotonic(), CACHE / "last.json", list[Result]()

    def say(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    with tempfile.TemporaryDirectory(prefix="specbench-mutation-") as base:
        root = copied(Path(base, "copy"))
        areas = [area for area in AREAS if options.area in ("", area)]
        each = math.ceil(options.count / len(areas))
        chosen = [mutant for area in areas for mutant in drawn(root, targets(area), options.seed, each)]
        chosen = sorted((one for one in chosen if options.only in one.file), key=lambda one: lot(one, options.seed))
        if options.again:
            before = {tuple(key) for key in json.loads(last.read_text())}
            chosen = [mutant for mutant in chosen if mutant.key in before]
        every = [file for area in areas for file in targets(area) if not file.startswith(KERNELS)]
        known = lines(root, every, test_folders(areas), options.workers, (KERNEL_TESTS,))
        for file in {mutant.file for mutant in chosen if mutant.file.startswith(KERNELS)}:
            known.files[file] = kernel_tests(root, file)
            known.seconds |= dict.fromkeys(known.files[file], KERNEL_S)
        say(f"{len(known.seconds)} tests run {len(known.tests)} lines; known after {time.monotonic() - start:.0f} s")
        judge = Judge(known)
        for result in results(root, chosen, judge, known, options.workers, start + 60 * options.minutes):
            found.append(result)
            noticed = result.outcome in ("killed", "timed out")
            line = f"{len(found):>3} {result.outcome:<11} {result.mutant.file}:{result.mutant.lines[0]}"
            say(f"{line} {result.mutant.operator}: {result.test}" if noticed else f"{line}\n{entry(result.mutant)}")
    dead = {result.mutant.key for result in found if result.outcome in ("killed", "timed out")}
    alive = [mutant.key for mutant in chosen if mutant.key not in dead]  # those that were not tried are among them
    CACHE.mkdir(parents=True, exist_ok=True)
    last.write_text(json.dumps(alive))
    closing, good = verdict(found, listed(), len(chosen))
    good &= options.no_planted or _plant(say)
    closing += [f"set aside, for it fails without a mutant: {test}" for test, sound in judge.sound.items() if not sound]
    say("\n".join(closing))
    say(f"{(time.monotonic() - start) / 60:.1f} min")
    return 0 if good and chosen else 1


if __name__ == "__main__":
    sys.exit(main())
