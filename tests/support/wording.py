"""Snapshots of what people read: error messages, notes, tables, help. ``pytest --reword`` rewrites those that changed.

A test hands a text or an error to ``wording``, and asserts what it means elsewhere: the error's class, the flag it
names, a number. So a sentence can be improved without editing a test, and the difference shows in one file a
room, ``tests/wording/ROOM.json``.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from specbench.common import SpecbenchError

TESTS = Path(__file__).parents[1]
STORE = TESTS / "wording"
#: What differs from machine to machine and from run to run.
_VARIES = [
    (
        re.compile(
            rf"{re.escape(str(Path(tempfile.gettempdir()).resolve()))}/pytest-of-[^/]+/pytest-\d+(/popen-gw\d+)?/[\w-]+"
        ),
        "<tmp>",
    ),
    (re.compile(re.escape(str(TESTS.parent))), "<repo>"),
    (re.compile(re.escape(os.environ.get("SPECBENCH_DATA") or "<no data>")), "<data>"),
    (re.compile(re.escape(sys.prefix)), "<python>"),
    (re.compile(rf"{re.escape(tempfile.gettempdir())}/tmp\w{{8}}"), "<tmp>"),
    (re.compile(r"\n.*errors\.pydantic\.dev.*"), ""),
    (re.compile(r"\b0x[0-9a-f]{6,}\b"), "<address>"),
    (re.compile(re.escape(str(Path.home())) + "(?=/)"), "<home>"),
    (re.compile(r"(?:127\.0\.0\.1|\.invalid):\d+"), "<server>"),
    (re.compile(r"-[0-9a-f]{6}(?=/)"), "-<digest>"),
    (re.compile(r"(?:\d\n?){8}T(?:\d\n?){6}Z"), "<time>"),  # a long path is folded
    (re.compile(r"[\d.]+(?= free\b|; free space| GiB are free)"), "<free>"),
    (re.compile(r"(?<=\.py line )\d+"), "<line>"),
    (re.compile(r"(?<=relative error )(of )?[\d.]+(?:e-?\d+)?"), r"\1<error>"),
    (re.compile(r"\.\d+\.tmp\b"), ".<process>.tmp"),
    (re.compile(r"at most [\d.]+ GB of memory"), "at most <memory>"),
    (re.compile(r"(recursion depth exceeded) .*"), r"\1"),
    (re.compile(r"(?m)^.*\bs left$\n?"), ""),
]

#: What differs between processors, or with the settings that a run records; both sides of a comparison are without it.
_OF_THE_MACHINE = [
    (re.compile(r"(?<=no CUDA device \()[^)]*(?=\))"), "<processor>"),
    (re.compile(r"(?<=[a-z\d])-[0-9a-f]{8}(?![\w-])"), "-<digest>"),
    (re.compile(r"\b[0-9a-f]{12}\b"), "<fingerprint>"),
    (re.compile(r"<tmp>[^\s']*…"), "<tmp>…"),  # cut where the folder's name has it
]

#: How torch.compile names the rest of a function, with its line.
_RESUMED = re.compile(r"torch_dynamo_resume_in_(\w+)_at_\d+")
_SENTENCE = re.compile(r"(?<=\.) (?=[A-Z])")
_MEASURED = re.compile(r"\d|─|\b(faster|slower|unsure|best|disturbed|Found)\b|--verbose\)")


def plain(result: BaseException | str) -> str:
    """A text without what varies, or an error's class, code and text."""
    text = str(result)
    for pattern, name in _VARIES:
        text = pattern.sub(name, text)
    text = _own_folder().sub("<tmp>", text)
    if isinstance(result, str):
        return text
    code = " " + _RESUMED.sub(r"\1", result.code) if isinstance(result, SpecbenchError) else ""
    return f"{type(result).__name__}{code}: {text}"


def _steady(text: str) -> str:
    for pattern, name in _OF_THE_MACHINE:
        text = pattern.sub(name, text)
    return text


def _own_folder() -> re.Pattern[str]:
    """The name of pytest's folder for this test, whose number depends on which tests ran before."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0].rpartition("::")[2]
    return re.compile(rf"\b{re.escape(re.sub(r'[^a-zA-Z0-9_]', '_', test)[:30])}\d+\b")


class Wording:
    """Compares texts of the test that runs with its snapshots, in the order of the calls; ``--reword`` records them."""

    def __init__(self) -> None:
        self.recording = False
        self.recorded: dict[str, list[str]] = {}
        self._calls: Counter[str] = Counter()

    def __call__(self, result: BaseException | str) -> bool:
        """Compare a text, or an error with its class and code. As ``check=wording`` it serves ``pytest.raises``."""
        return self._compare(plain(result))

    def sentences(self, result: str) -> bool:
        """Compare the sentences without figures and verdicts, of an output whose figures are measured."""
        sentences = (sentence for line in _unfolded(plain(result)) for sentence in _SENTENCE.split(line))
        return self._compare("\n".join(sentence for sentence in sentences if not _MEASURED.search(sentence)))

    def _compare(self, text: str) -> bool:
        test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0].removeprefix("tests/")
        number = self._calls[test]
        self._calls[test] += 1
        if self.recording:
            self.recorded.setdefault(test, []).append(text)
            return True
        known = snapshots(room(test)).get(test, [])
        wanted, text = _steady(known[number]) if number < len(known) else "", _steady(text)
        if wanted != text:
            lines = difflib.unified_diff(wanted.splitlines(), text.splitlines(), "snapshot", "now", lineterm="")
            raise AssertionError("other words than the snapshot; pytest --reword takes them over\n" + "\n".join(lines))
        return True


wording = Wording()


def _unfolded(text: str) -> list[str]:
    """The lines of a text, joined again where a terminal's width broke them: where that is depends on figures."""
    lines: list[str] = []
    folded = False
    for raw in text.splitlines():
        row = "  " in raw.strip() or raw.startswith("|")
        line = " ".join(raw.split())
        if folded and line and not row:
            lines[-1] += f" {line}"
        elif line:
            lines.append(line)
        folded = len(raw) > 55 and not row and not line.endswith((".", ":", "…"))
    return lines


def room(test: str) -> str:
    """The folder below ``tests/`` that a test is in; ``top`` for none."""
    first, slash, _ = test.partition("::")[0].partition("/")
    return first if slash else "top"


@cache
def snapshots(name: str) -> dict[str, list[str]]:
    path = STORE / f"{name}.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def save(recorded: dict[str, list[str]], collected: set[str], ran: set[str]) -> None:
    """Write what was recorded; drop the snapshots of tests that compare nothing any more, or are gone."""
    STORE.mkdir(exist_ok=True)
    functions = {test.partition("[")[0] for test in collected}
    for name in {room(test) for test in collected}:
        others = {test: texts for test, texts in snapshots(name).items() if test not in ran}
        kept = {test: texts for test, texts in others.items() if test in collected or _there(test, functions)}
        kept |= {test: texts for test, texts in recorded.items() if room(test) == name}
        if kept:
            text = json.dumps(dict(sorted(kept.items())), indent=1, ensure_ascii=False)
            (STORE / f"{name}.json").write_text(f"{text}\n")
        else:
            (STORE / f"{name}.json").unlink(missing_ok=True)


def _there(test: str, functions: set[str]) -> bool:
    """Whether a test that was not collected may still exist: its function does, and none of its cases was collected."""
    function = test.partition("[")[0]
    path = TESTS / function.partition("::")[0]
    return function not in functions and path.exists() and f"def {function.rpartition('::')[2]}(" in path.read_text()


class Recorder:
    """With ``--reword``: gathers what the processes of a test run recorded, and writes it at the end."""

    def __init__(self) -> None:
        wording.recording = True
        self.recorded: dict[str, list[str]] = {}
        self.collected: set[str] = set()
        self.ran: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.collected |= {item.nodeid.removeprefix("tests/") for item in items}

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.ran.add(item.nodeid.removeprefix("tests/"))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.recorded |= node.workeroutput.get("recorded", {})
        self.collected |= set(node.workeroutput.get("collected", ()))
        self.ran |= set(node.workeroutput.get("ran", ()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            found = {"recorded": wording.recorded, "collected": sorted(self.collected), "ran": sorted(self.ran)}
            session.config.workeroutput.update(found)
        else:
            save(self.recorded | wording.recorded, self.collected, self.ran)
