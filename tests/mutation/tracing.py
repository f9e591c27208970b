"""A pytest plug-in that records which test runs which lines of the mutated files.

Two environment variables control it: ``MUTATION_TARGETS``, paths joined by ``:``, and ``MUTATION_TRACE``, the output
file. Each new pair is written at once with one short write, so that children forked by a test add their own.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest


class Tracer:
    """Lines of the targets by who runs them: a test, or a fixture that several tests share.

    Records are lists, a line of JSON each: ``["ran", owner, file, line]``, ``["test", node id, seconds, passed,
    owners]`` and, at the end, ``["modules", names]``, what a process that has run these tests has imported.
    """

    def __init__(self, targets: list[str], out: str) -> None:
        self._targets = {os.path.realpath(path): path for path in targets}
        self._file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._ours: dict[CodeType, str | None] = {}
        self._seen: set[tuple[str, str, int]] = set()
        self.owner = ""

    def write(self, *record: object) -> None:
        os.write(self._file, (json.dumps(record) + "\n").encode())

    def called(self, frame: FrameType, event: str, arg: Any) -> Any:
        """What ``sys.settrace`` calls with every call: only those of the targets are looked into."""
        code = frame.f_code
        try:
            target = self._ours[code]
        except KeyError:
            target = self._ours[code] = self._targets.get(os.path.realpath(code.co_filename))
        if target is None:
            return None
        seen, owner = self._seen, self.owner

        def ran(frame: FrameType, event: str, arg: Any) -> Any:
            key = (owner, target, frame.f_lineno)
            if key not in seen:
                seen.add(key)
                self.write("ran", *key)
            return ran

        return ran(frame, event, arg)

    def start(self) -> None:
        threading.settrace(self.called)
        sys.settrace(self.called)

    def stop(self) -> None:
        sys.settrace(None)
        threading.settrace(None)


def _named(fixture: Any) -> str:
    return f"fixture {fixture.baseid}::{fixture.argname}"


class Plugin:
    """The tracer around every test and every shared fixture."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._passed = True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._passed = True
        known = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009  # pytest has no public way to ask
        shared = {_named(one) for found in known.values() for one in found if one.scope != "function"}
        self._tracer.owner, before = item.nodeid, time.perf_counter()
        self._tracer.start()
        try:
            return (yield)
        finally:
            self._tracer.stop()
            seconds = round(time.perf_counter() - before, 3)
            self._tracer.write("test", item.nodeid, seconds, self._passed, sorted(shared))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, object, object]:
        """What a fixture runs for several tests is run by each of them, not by the first one alone."""
        if fixturedef.scope == "function":
            return (yield)
        before, self._tracer.owner = self._tracer.owner, _named(fixturedef)
        try:
            return (yield)
        finally:
            self._tracer.owner = before

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._passed = self._passed and report.outcome == "passed"

    def pytest_sessionfinish(self) -> None:
        places = (os.path.dirname(os.__file__), *(path for path in sys.path if path.endswith("site-packages")))
        found = [
            name
            for name, module in list(sys.modules.items())
            if str(getattr(module, "__file__", None) or "").startswith(places) and name != "__main__"
        ]
        self._tracer.write("modules", found)


def basetemp(number: int) -> Path:
    """A folder for the files of tests, with a name that pytest would give it: snapshots of wording leave that out."""
    folder = Path(tempfile.gettempdir(), "pytest-of-mutants", f"pytest-{number}")
    folder.parent.mkdir(exist_ok=True)
    return folder


def without_limits(config: pytest.Config) -> None:
    """A test that is slow here, traced or on a full machine, is no failure."""
    for plugin in config.pluginmanager.get_plugins():
        if hasattr(plugin, "LONGEST"):
            plugin.LONGEST = math.inf


def pytest_configure(config: pytest.Config) -> None:
    if out := os.environ.get("MUTATION_TRACE"):
        config.pluginmanager.register(Plugin(Tracer(os.environ["MUTATION_TARGETS"].split(":"), out)))


def pytest_collection_finish(session: pytest.Session) -> None:
    without_limits(session.config)
