"""Disturb commands while they work and check that no finished result is lost: `make chaos`, with a random seed.

Each trial runs a real command on a tiny model in its own folder, disturbs it at a random moment, checks the files, and
resumes the command. The results have to equal those of an undisturbed command. A failed trial prints the seed that
repeats it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))  # support takes from benchmarks
sys.path.insert(0, str(Path(__file__).parents[1]))

from support import engines

from chaos import checks, plugins
from chaos.commands import ROOT, Command, Content, Stage, commands

_SLOW_S = 0.04  # a judgment takes
_FAULT, _REFUSED = 6, 3


@dataclass
class Trials:
    """The trials of a seed.

    Attributes:
        stage: where commands are executed.
        known: the commands, by name.
        draw: decides what happens when.
        clean: results and seconds of each undisturbed command.
    """

    stage: Stage
    known: dict[str, Command]
    draw: random.Random
    clean: dict[str, tuple[Content, float]] = field(default_factory=dict)

    def undisturbed(self, name: str) -> tuple[Content, float]:
        """What a command comes to, and how long it takes."""
        if name not in self.clean:
            command = self.known[name]
            out = self.stage.prepared(command, f"clean-{name}")
            ended = self.stage.run(command, out)
            assert ended.code == 0, f"{name} by itself: exit code {ended.code}: {ended.err[-900:]}"
            checks.whole(out)
            self.clean[name] = command.results(out), ended.seconds
        return self.clean[name]

    def goes_on(self, name: str, out: Path, before: dict[str, list[str]]) -> str:
        """Whether a command goes on where it was ended, and comes to what it comes to otherwise."""
        command, (wanted, _) = self.known[name], self.undisturbed(name)
        ended = self.stage.run(command, out)
        checks.ended_with(ended, {0})
        checks.whole(out)
        count = checks.kept(before, checks.finished(out))
        _same(command.results(out), wanted)
        return f"{count} lines kept"

    # ------------------------------------------------------------------ what happens

    def signalled(self, name: str, number: signal.Signals) -> str:
        """A signal at any moment, to the command or to all of its processes, once or twice."""
        command, (_, seconds) = self.known[name], self.undisturbed(name)
        out = self.stage.prepared(command, f"{name}-{number.name}")
        process, began = self.stage.start(command, out), time.monotonic()
        wait = self.draw.uniform(0.05, 1.05) * seconds
        to_all, twice = self.draw.random() < 0.5, self.draw.random() < 0.3
        time.sleep(wait)
        for _ in range(1 + twice):
            with suppress(ProcessLookupError):
                (os.killpg if to_all else os.kill)(process.pid, number)
            time.sleep(self.draw.uniform(0, 0.3))
        ended = self.stage.end(process, began)
        # It may have been through already.
        checks.ended_with(ended, {0, 128 + number})
        _gone(out)
        checks.whole(out)
        found = self.goes_on(name, out, checks.finished(out))
        how = f"{' to all' if to_all else ''}{' twice' if twice else ''}"
        return f"at {wait:.1f} of {seconds:.1f} s{how}, {ended.code}, {found}"

    def full_disk(self, name: str) -> str:
        """No file may grow beyond a size that is drawn, as on a disk that fills up."""
        command, _ = self.known[name], self.undisturbed(name)
        out = self.stage.prepared(command, f"{name}-full")
        largest = max((file.stat().st_size for file in out.rglob("*") if file.is_file()), default=0)
        limit = largest + self.draw.choice([0, 100, 1000, 4000, 16000])

        def limited() -> None:
            import resource

            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

        ended = self.stage.run(command, out, preexec_fn=limited)
        checks.ended_with(ended, {0, _REFUSED, 2})
        checks.whole(out)
        return f"files of {limit} bytes at most, {ended.code}, " + self.goes_on(name, out, checks.finished(out))

    def two_at_once(self, name: str) -> str:
        """Two processes on one folder."""
        command, (wanted, seconds) = self.known[name], self.undisturbed(name)
        out = self.stage.prepared(command, f"{name}-two")
        began = time.monotonic()
        first = self.stage.start(command, out)
        time.sleep(self.draw.uniform(0, 0.6) * seconds)
        second = self.stage.start(command, out)
        codes = []
        for process in (first, second):
            ended = self.stage.end(process, began)
            checks.ended_with(ended, {0, 2, _REFUSED})
            codes.append(ended.code)
        checks.whole(out)
        assert 0 in codes, f"neither came to its end: {codes}"
        # Runs that began together may have a folder each; what each came to is the same.
        _same(command.results(out), wanted)
        return f"{codes[0]} and {codes[1]}"

    def plugin(self, way: str, what: str) -> str:
        """A failing plug-in method in a run with methods that work."""
        command, site = self.known["run"], self.stage.folder / "site"
        plugins.install(site, way)
        out = self.stage.prepared(command, "run-plugin")
        env = {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
        methods = ("--method", "pld,chaos,jacobi", "--step-timeout", "2")
        ended = self.stage.run(command, out, *methods, env=env)
        checks.ended_with(ended, {_FAULT}, what)
        assert "method 'chaos' (from specbench-chaos)" in ended.err, ended.err[-600:]
        checks.whole(out)
        theirs = {key: ids for key, ids in command.results(out).items() if not key.startswith("chaos|")}
        _same(theirs, self.undisturbed("run")[0])
        return f"{ended.code}"

    def worker(self, kind: str) -> str:
        """A worker of a sweep is killed, one of this machine or one of a Ray cluster; with Ray, a whole node too."""
        command, (wanted, seconds) = self.known["sweep"], self.undisturbed("sweep")
        out = self.stage.prepared(command, f"sweep-{kind}")
        more = ("--workers", "2") if kind == "processes" else ("--workers", "2", "--executor", "ray")
        names = {"processes": "spawn_main", "ray": "ray::", "node": "raylet"}[kind]
        process, began = self.stage.start(command, out, more), time.monotonic()
        killed, wait = 0, self.draw.uniform(0.6, 1.6) * seconds
        while process.poll() is None and not killed:
            time.sleep(0.05)
            if time.monotonic() - began < wait:
                continue
            for child in _children(process.pid):
                with suppress(psutil.Error):
                    if names in " ".join(child.cmdline()) or names in child.name():
                        child.kill()
                        killed += 1
                        break
        ended = self.stage.end(process, began, 300)
        checks.ended_with(ended, {0, 1, _REFUSED})
        checks.whole(out)
        before = checks.finished(out)
        if ended.code:
            again = self.stage.run(command, out, *more)
            checks.ended_with(again, {0})
        checks.kept(before, checks.finished(out))
        _same(command.results(out), wanted)
        return f"{killed} killed, {ended.code}"


def _same(found: Content, wanted: Content) -> None:
    """Whether a command came to what it comes to undisturbed.

    Raises:
        AssertionError: names the first difference.
    """
    for key in {**wanted, **found}:
        here, there = found.get(key, "nothing"), wanted.get(key, "nothing")
        assert here == there, f"it came to something else: {key} is {str(here)[:300]}, undisturbed {str(there)[:300]}"


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def _gone(out: Path) -> None:
    """Nothing of a command that has ended works on in its folder.

    Raises:
        AssertionError: names the process.
    """
    until = time.monotonic() + 20
    while time.monotonic() < until:
        left = [
            process.info["cmdline"]
            for process in psutil.process_iter(["cmdline"])
            if any(str(out) in part for part in process.info["cmdline"] or ())
        ]
        if not left:
            return
        time.sleep(0.1)
    raise AssertionError(f"still running: {left[0]}")


def trials(of: Trials, wanted: str) -> Iterator[tuple[str, Callable[[], str]]]:
    """Every trial of a seed by name: each command with each signal, and the others each once or a few of each kind."""
    draw, names = of.draw, list(of.known)
    found: dict[str, Callable[[], str]] = {
        f"{number.name} {name}": partial(of.signalled, name, number)
        for name in names
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
    }
    found |= {f"disk {name}": partial(of.full_disk, name) for name in draw.sample(names, 2)}
    found |= {f"two {name}": partial(of.two_at_once, name) for name in draw.sample(names, 1)}
    found |= {f"plugin {way}": partial(of.plugin, way, what) for way, what in draw.sample(plugins.WAYS, 4)}
    found |= {f"worker {kind}": partial(of.worker, kind) for kind in ("processes", "ray", "node")}
    return ((name, trial) for name, trial in found.items() if wanted in name)


def main() -> int:
    """Runs the trials of some seeds; the exit code says whether all held."""
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parse.add_argument("--times", type=int, default=1, help="seeds, one after the other")
    parse.add_argument("--only", default="", help="trials whose name has this in it")
    given = parse.parse_args()
    # A shell ignores it for what it runs in the background, and so would the commands: they have it as in a terminal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    failed = []
    for seed in range(given.seed, given.seed + given.times):
        with tempfile.TemporaryDirectory(prefix="chaos-") as folder, engines.serving() as server:
            server.answer = _late
            prompts = Path(folder, "prompts.jsonl")
            prompts.write_text("".join(json.dumps({"prompt": f"Count to {at} and on."}) + "\n" for at in range(20)))
            of = Trials(Stage(Path(folder), server.url), commands(prompts), random.Random(seed))
            for name, trial in trials(of, given.only):
                began = time.monotonic()
                of.draw = random.Random(f"{seed} {name}")  # so that it is the same one when it is tried alone
                try:
                    outcome = trial()
                except AssertionError as error:
                    failed.append(f"--seed {seed} --only {name!r}")
                    outcome = f"FAILED: {error}"
                print(f"{seed} {name}: {outcome} ({time.monotonic() - began:.0f} s)", flush=True)
    for each in failed:
        print(f"failed: {each}")
    return 1 if failed else 0


def _late(handler: object, body: object) -> None:
    time.sleep(_SLOW_S)
    engines.says("[[7]]")(handler, body)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
