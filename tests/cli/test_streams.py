"""Streams that are closed, full, not read, or have few letters: a sentence or an exit code, and nothing lost."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from support import runs

from specbench.cli.output import emit_json
from specbench.cli.streams import UNWRITTEN, Stream, closing

SCRIPT = "import sys; from specbench.cli import entry; sys.argv[0] = 'specbench'; entry()"
RUN = str(runs.GSM8K)
FULL = "error: cannot write to stdout: No space left on device; free space there. Finished work is kept\n"

#: A command of each family, and how it ends where nothing is wrong.
FAMILIES: Mapping[str, tuple[int, list[str]]] = {
    "table": (0, ["list", "gpus"]),
    "json": (0, ["list", "gpus", "--json"]),
    "help": (0, ["--help"]),
    "help of a command": (0, ["run", "--help"]),
    "version": (0, ["--version"]),
    "error": (2, ["list", "nothing"]),
    "show": (0, ["show", RUN]),
    "requests": (0, ["show", RUN, "--requests"]),
    "table of requests": (0, ["report", RUN, "--to", "csv"]),
    "claims": (0, ["claims"]),
    "compare": (0, ["compare", f"{RUN}:jetspec", f"{RUN}:jetspec#2"]),
    "run": (
        0,
        ["run", "--model", "config:tiny", "--limit", "1", "--max-new-tokens", "2", "--no-score", "--out", "OUT"],
    ),
}
#: Ends of the streams, as a shell makes them.
ENDS = {
    "stdout closed": ">&-", "stderr closed": "2>&-", "both closed": ">&- 2>&-", "all closed": "<&- >&- 2>&-",
    "stdin closed": "<&-", "stdout full": ">/dev/full", "stderr full": "2>/dev/full", "both full": ">/dev/full 2>&1",
    "no one reads": "| head -c 0", "no one reads either": "2>&1 | head -c 0",
}  # fmt: skip
LETTERS: Mapping[str, Mapping[str, str]] = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""},
    "dumb": {"TERM": "dumb"},
    "no colours": {"NO_COLOR": "1"},
    **{f"width {width}": {"COLUMNS": width} for width in ("0", "1", "20", "-3", "²", "9" * 30, "x")},
    "no height": {"LINES": "²"},
}


def shell(folder: Path, argv: list[str], end: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """A command in a shell that arranges its streams; the exit code is the command's own."""
    argv = [str(folder / "out") if word == "OUT" else word for word in argv]
    where = {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1", **env}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", f'"$@" {end}', "bash", sys.executable, "-c", SCRIPT, *argv],
        capture_output=True, text=True, errors="replace", timeout=200, env=where, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


def assert_ends(folder: Path, family: str, end: str) -> None:
    code, argv = FAMILIES[family]
    result = shell(folder, argv, ENDS[end])
    lost = end in ("stdout full", "both full") and code == 0
    assert result.returncode == (UNWRITTEN if lost else code), result.stderr
    assert "Traceback" not in result.stderr
    assert "Exception ignored" not in result.stderr
    if end == "stdout full":
        assert result.stderr.endswith(FULL) == lost
    if family == "run":  # a picture of it was not to be had, the measurement is
        (made,) = (folder / "out").iterdir()
        assert (made / "DONE").exists()


@pytest.mark.parametrize(
    ("family", "end"),
    [("table", "all closed"), ("table", "stdout full"), ("json", "no one reads"), ("error", "stderr full")],
)
def test_an_end(tmp_path: Path, family: str, end: str) -> None:
    assert_ends(tmp_path, family, end)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("end", ENDS)
def test_every_end(tmp_path: Path, family: str, end: str) -> None:
    assert_ends(tmp_path, family, end)


def assert_speaks(folder: Path, family: str, letters: str) -> None:
    code, argv = FAMILIES[family]
    result = shell(folder, argv, **LETTERS[letters])
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    if letters in ("ascii", "C"):
        assert (result.stdout + result.stderr).isascii()


@pytest.mark.parametrize(("family", "letters"), [("show", "ascii"), ("help", "width ²")])
def test_a_terminal(tmp_path: Path, family: str, letters: str) -> None:
    assert_speaks(tmp_path, family, letters)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("letters", LETTERS)
def test_every_terminal(tmp_path: Path, family: str, letters: str) -> None:
    assert_speaks(tmp_path, family, letters)


@pytest.fixture
def streams() -> Callable[[int], Stream]:
    """A stream as the script makes it, at a descriptor."""
    return lambda descriptor: Stream(open(descriptor, "w", encoding="utf-8", closefd=False))


def test_a_full_one_says_so_once_and_takes_the_rest(
    streams: Callable[[int], Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    err = io.StringIO()
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", streams(full.fileno()))
        monkeypatch.setattr("sys.stderr", err)
        for _ in range(3):
            emit_json(["x" * 50_000])
        assert closing(0) == UNWRITTEN
        assert err.getvalue() == FULL
        assert closing(5) == 5  # what went wrong before it says more


def test_a_reader_that_has_gone_had_enough(
    streams: Callable[[int], Stream], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with monkeypatch.context() as patched:
        patched.setattr("sys.stdout", streams(writing))
        emit_json(["x" * 50_000])
        assert closing(0) == 0
    assert capsys.readouterr() == ("", "")
    os.close(writing)


def test_a_reader_that_lets_wait_gets_everything(streams: Callable[[int], Stream]) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    found: list[bytes] = []
    with os.fdopen(reading, "rb") as pipe:
        reader = threading.Timer(0.1, lambda: found.append(pipe.read()))
        reader.start()
        made = streams(writing)
        made.write("é" * 500_000)
        made.flush()
        assert os.get_blocking(writing) is False  # it is another program's too
        os.close(writing)
        reader.join()
    assert found == ["é".encode() * 500_000]


def test_what_libraries_write_is_visible_but_for_their_bars(
    streams: Callable[[int], Stream], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars = "\r\x1b[1m50%\x1b[0m\x1b[A\x1b[K"
    for descriptor, expected in ((1, r"\r\x1b[1m50%\x1b[0m\x1b[A\x1b[K"), (2, bars)):
        with (tmp_path / "file").open("w+") as file:
            made = streams(file.fileno())
            monkeypatch.setattr(made.raw, "fileno", lambda descriptor=descriptor: descriptor)
            made.write(bars + "\x1b]0;x\x07\u202e\ud800\n")
            made.flush()
        assert (tmp_path / "file").read_bytes().decode() == expected + "\\x1b]0;x\\x07\\u202e\\ud800\n"


def test_json_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    emit_json({"a": [float("nan"), float("inf"), -1.5, "\x7f\x1b\u202e"], "b": (float("-inf"), 10**30, 1e308)})
    text = capsys.readouterr().out
    assert "".join(text.split()) == (
        '{"a":[null,null,-1.5,"\\u007f\\u001b\\u202e"],"b":[null,1000000000000000000000000000000,1e+308]}'
    )
