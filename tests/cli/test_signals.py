"""SIGTERM ends a command as Ctrl-C does, with an exit code of its own; what is finished is kept."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specbench.cli import app, output
from specbench.cli.signals import termination
from specbench.evals.grading.interrupts import Interrupts

INTERRUPTED, KEPT = "error: interrupted", "finished requests are kept"


@pytest.fixture(autouse=True)
def _usual_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("ignored", [False, True])
def test_signals_end_a_command(
    number: int, code: int, ignored: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended() -> None:
        signal.raise_signal(number)
        time.sleep(0)
        raise AssertionError("it went on")

    if ignored:  # in the background of a shell
        if number == signal.SIGINT:
            return
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    monkeypatch.setattr(output, "stdout", ended)
    assert app.main(["list", "methods"]) == code
    assert capsys.readouterr().err.strip() == INTERRUPTED
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_who_has_a_handler_of_his_own_keeps_it() -> None:
    seen: list[int] = []
    mine = lambda number, frame: seen.append(number)  # noqa: E731
    signal.signal(signal.SIGTERM, mine)
    with termination() as ended:
        signal.raise_signal(signal.SIGTERM)
    assert (seen, ended.came) == ([signal.SIGTERM], False)
    assert signal.getsignal(signal.SIGTERM) is mine


def test_who_holds_ctrl_c_back_holds_it_back_too() -> None:
    with termination() as ended, Interrupts() as interrupts:
        signal.raise_signal(signal.SIGTERM)
        assert not ended.came
        with pytest.raises(KeyboardInterrupt):
            interrupts.look()
        assert ended.came
    with termination() as ended, pytest.raises(KeyboardInterrupt), Interrupts():
        signal.raise_signal(signal.SIGTERM)  # no one looks: it comes at the end
    assert ended.came
    with termination() as ended, Interrupts():
        pass
    assert not ended.came


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_one_that_comes_while_a_finalizer_runs_is_not_lost(
    number: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Released:
        def __del__(self) -> None:
            signal.raise_signal(number)
            time.sleep(0)
            raise AssertionError("nothing was raised in it")

    def ended() -> None:
        Released()
        time.sleep(5)
        raise AssertionError("it went on")

    hook = sys.unraisablehook
    monkeypatch.setattr(output, "stdout", ended)
    assert app.main(["list", "methods"]) == code
    assert capsys.readouterr().err.strip() == INTERRUPTED
    assert sys.unraisablehook is hook


@pytest.mark.slow
def test_a_run_that_is_terminated_keeps_its_records_and_goes_on(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Count to {number} and on."}) + "\n" for number in range(6)))
    command = [
        sys.executable, "-m", "specbench", "run", "--method", "ar", "--model", "smollm2-135m", "--task", "prompts",
        "--data-file", str(prompts), "--max-new-tokens", "40", "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    for _ in range(600):
        found = [*tmp_path.glob("out/*/requests.jsonl")]
        if found and found[0].read_text().count("\n"):
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, result = process.communicate(timeout=60)
    assert process.returncode == 143, result
    assert KEPT in result
    kept = found[0].read_text().splitlines()
    assert 1 <= len(kept) < 6
    assert subprocess.run(command, capture_output=True, timeout=120).returncode in (0, 1)
    assert len([*tmp_path.glob("out/*")]) == 1
    records = found[0].read_text().splitlines()
    assert len(records) == 6
    assert records[: len(kept)] == kept
