from __future__ import annotations

import gc
import os
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.wording import wording

from specbench.common.errors import EnvironmentRefused
from specbench.evals.grading.workers import DiedError, TimedOutError, Workers, _Worker
from specbench.evals.sandbox import sandbox


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    return Workers("answering")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_one_process_answers_one_job_after_the_other(workers: Workers) -> None:
    answers = [workers.ask({"do": text}, 10) for text in ("a", "ü\n\ud800", "x" * 10**6)]
    assert [answer["echo"] for answer in answers] == ["a", "ü\n\ud800", "x" * 10**6]
    assert len({answer["pid"] for answer in answers}) == 1
    assert {answer["seed"] for answer in answers} == {"0"}


@pytest.mark.parametrize("job", ["hang", "spin"])
def test_a_job_that_takes_too_long_is_killed_and_the_next_is_answered(workers: Workers, job: str) -> None:
    before = workers.ask({"do": "a"}, 10)["pid"]
    start = time.monotonic()
    with pytest.raises(TimedOutError, check=wording):
        workers.ask({"do": job}, 0.5)
    assert time.monotonic() - start < 5
    assert not alive(before)
    after = workers.ask({"do": "b"}, 10)
    assert (after["echo"], after["pid"] != before) == ("b", True)


def test_a_worker_that_dies_is_replaced(workers: Workers) -> None:
    before = workers.ask({"do": "a"}, 10)["pid"]
    with pytest.raises(DiedError):
        workers.ask({"do": "die"}, 10)
    assert workers.ask({"do": "b"}, 10)["pid"] != before


@pytest.mark.parametrize("text", ["noise", "[1]", "[" * 100_000, "1" * 5000, "\xff"])
def test_what_is_no_answer_ends_the_worker(workers: Workers, text: str) -> None:
    with pytest.raises(DiedError, check=wording):
        workers.ask({"do": f"write {text}"}, 10)
    assert workers.ask({"do": "b"}, 10)["echo"] == "b"


def test_memory_has_a_limit(workers: Workers) -> None:
    assert workers.ask({"do": "fill"}, 30) == {"error": "MemoryError"}


def test_a_hard_limit_of_cpu_time_is_no_obstacle(workers: Workers) -> None:
    """``ulimit -t`` sets one, and so do login nodes of clusters: less than the time that a job may take."""
    worker = _Worker(workers.module)
    resource.prlimit(worker.process.pid, resource.RLIMIT_CPU, (50, 50))
    assert worker.ask({"do": "a", "wall_s": 100}, 100)["echo"] == "a"
    assert resource.prlimit(worker.process.pid, resource.RLIMIT_CPU) == (50, 50)
    worker.kill()


def test_stopping_all_ends_a_job_and_idle_workers(workers: Workers) -> None:
    idle = workers.ask({"do": "a"}, 10)["pid"]
    sandbox.stop_all()
    assert workers.ask({"do": "b"}, 10)["pid"] != idle
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(workers.ask, {"do": "hang"}, 60)
        time.sleep(0.3)
        while not job.done():  # as the scorer does: the job is tried once more, in a process of its own
            sandbox.stop_all()
            time.sleep(0.02)
        assert isinstance(job.exception(), (DiedError, EnvironmentRefused))


def test_nothing_is_left_when_the_pool_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    pool = Workers("answering")
    pid = pool.ask({"do": "a"}, 10)["pid"]
    assert alive(pid)
    del pool
    gc.collect()
    assert not alive(pid)


def test_a_hung_worker_does_not_outlive_a_parent_that_was_killed(workers: Workers) -> None:
    """The kernel's limit of CPU time is what ends it: no one is left to kill it, and it does not read its pipe."""
    worker = _Worker(workers.module)
    assert worker.process.stdin is not None
    worker.process.stdin.write(b'{"do": "spin", "wall_s": 0.5}\n')
    worker.process.stdin.flush()
    assert worker.process.wait(timeout=60) < 0
    worker.kill()


def test_a_worker_that_cannot_start_says_why_in_one_line(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSWERING", "broken")
    with pytest.raises(EnvironmentRefused, check=wording):
        workers.ask({"do": "a"}, 10)
    with pytest.raises(EnvironmentRefused, check=wording):
        Workers("nowhere").ask({"do": "a"}, 10)
