"""Workers in processes of their own: as many as there are places; no death of theirs loses or doubles anything."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.runs import Death, ToyWorker, answered, counts, crash, grid, make, refuse
from support.wording import wording

from specbench.common.errors import EnvironmentRefused, SpecbenchError, UsageError
from specbench.results.folder import RunFolder
from specbench.results.request_schema import RequestRecord
from specbench.sweeps.driver import Asked, Silent, drive
from specbench.sweeps.executors import RETRIES, Here, left
from specbench.sweeps.messages import Task
from specbench.sweeps.processes import Place, Processes, places

CELLS = ["toy n=2", "toy n=4"]
PROMPTS = tuple(f"p{at}" for at in range(8))
CORE = Place(tuple(sorted(os.sched_getaffinity(0)))[:1])  # shared by all: what is tested is not speed


@contextmanager
def processes(count: int, made: Callable[[], Any]) -> Iterator[Processes]:
    executor = Processes(made, [CORE] * count)
    try:
        yield executor
    finally:
        executor.close()


def tasks(prompts: Sequence[str] = PROMPTS, labels: Sequence[str] = CELLS) -> list[Task]:
    together = ("ar", *labels)
    return [Task(1, together, (prompt,), segment=10 * at) for at, prompt in enumerate(prompts)]


def alone(**more: Any) -> list[RequestRecord]:
    """What one worker in this process makes of all tasks."""
    return answered(Here(partial(make, CELLS, **more)).run(tasks()))


def check(records: Sequence[RequestRecord], **more: Any) -> None:
    assert counts(records) == counts(alone(**more))
    assert len({record.segment for record in records}) == len(records), "two stretches have one number"


def test_two_workers_give_the_records_of_one() -> None:
    turns = dict.fromkeys(PROMPTS[::2], 3)
    with processes(2, partial(make, CELLS, of_turns=turns)) as executor:
        assert executor.describe() == ToyWorker(CELLS, of_turns=turns).describe()
        check(answered(executor.run(tasks())), of_turns=turns)
        check(answered(executor.run(tasks())), of_turns=turns)  # and once more: rounds follow each other
        assert answered(executor.run([])) == []
        records = alone()
        graded = {"verdict": "exact", "exact": 8}
        assert executor.grade(records) == {"ar": graded, "toy n=2": graded, "toy n=4": graded}
        assert executor.report()["process"] not in (os.getpid(), None)


@pytest.mark.parametrize(("workers", "after"), [(2, 0), (1, 1), (2, 4)])
def test_a_worker_that_dies_in_the_middle_of_a_task_is_replaced(tmp_path: Path, workers: int, after: int) -> None:
    turns = dict.fromkeys(PROMPTS, 2)
    with processes(workers, partial(make, CELLS, of_turns=turns, death=Death(tmp_path, after=after))) as executor:
        check(answered(executor.run(tasks())), of_turns=turns)
    assert [path.name for path in tmp_path.iterdir()] == ["died-0"]


def test_a_worker_that_dies_between_tasks_is_replaced_and_cannot_be_asked_anything(tmp_path: Path) -> None:
    with processes(1, partial(make, CELLS, death=Death(tmp_path, idle=True))) as executor:
        first = answered(executor.run(tasks()[:1]))
        executor._workers[0].process.join(20)
        with pytest.raises(SpecbenchError, check=wording):
            executor.report()
        check([*first, *answered(executor.run(tasks()[1:]))])


def test_a_task_that_no_worker_survives_ends_in_one_line(tmp_path: Path) -> None:
    made = partial(make, CELLS, death=Death(tmp_path, times=1000, after=0))
    with processes(1, made) as executor, pytest.raises(SpecbenchError) as caught:
        answered(executor.run(tasks(PROMPTS[:1])))
    text = str(caught.value)
    assert f"{RETRIES + 1}" in text
    assert wording(text)
    assert "\n" not in text
    assert len(list(tmp_path.iterdir())) == RETRIES + 1


def test_a_sweep_whose_workers_die_keeps_what_is_finished_and_goes_on(tmp_path: Path) -> None:
    flags, out = tmp_path / "flags", tmp_path / "out"
    flags.mkdir()
    asked, turns = Asked(grid(CELLS), out), dict.fromkeys(PROMPTS, 3)  # a task is nine requests, three lives are six
    with (
        processes(1, partial(make, CELLS, of_turns=turns, death=Death(flags, times=1000, after=2))) as executor,
        pytest.raises(SpecbenchError, check=wording),
    ):
        drive(asked, executor, Silent())
    (path,) = out.iterdir()
    with RunFolder.load(path / "c1") as folder:
        kept = list(folder.records())
    assert kept
    with processes(1, partial(make, CELLS, of_turns=turns)) as executor:
        assert drive(asked, executor, Silent()) == path
    with RunFolder.load(path / "c1") as folder:
        everything = list(folder.records())
    assert everything[: len(kept)] == kept
    assert counts(everything) == counts(alone(of_turns=turns))


def test_an_error_of_the_users_reaches_the_parent_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    with processes(1, partial(make, [*CELLS, "bad n=2"])) as executor, pytest.raises(UsageError, check=wording):
        answered(executor.run(tasks(labels=[*CELLS, "bad n=2"])))
    assert "Traceback" not in capfd.readouterr().err


def test_a_worker_that_cannot_begin_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(EnvironmentRefused, check=wording):
        Processes(refuse, [CORE, Place(CORE.cores, {"LATE": "0.7"})])  # no one listens to the second one any more
    assert "Traceback" not in capfd.readouterr().err
    with pytest.raises(SpecbenchError, check=wording):
        Processes(crash, [CORE])


def test_workers_that_differ_are_refused_and_a_place_has_its_own_environment() -> None:
    here = dict(os.environ)
    first, second = (Place(CORE.cores, {"PLACE": name}) for name in "ab")
    executor = Processes(partial(make, CELLS), [first])
    executor.close()
    assert executor.describe().config.identity == {"place": "a"}
    with pytest.raises(SpecbenchError, check=wording):
        Processes(partial(make, CELLS), [first, second])
    assert dict(os.environ) == here


@pytest.mark.parametrize(
    ("cores", "count", "shares"),
    [
        ({0, 1, 2, 3}, 2, [(0, 1), (2, 3)]),
        ({1, 5, 9}, 3, [(1,), (5,), (9,)]),
        ({0, 1, 2, 3, 4}, 2, [(0, 1), (2, 3)]),  # even shares: the odd one out stays idle
        ({7}, 1, [(7,)]),
    ],
)
def test_places_share_the_cores(
    monkeypatch: pytest.MonkeyPatch, cores: set[int], count: int, shares: list[tuple[int, ...]]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores)
    assert [place.cores for place in places(count)] == shares
    assert all(place.env == {} for place in places(count))
    found = places(count, [f"GPU-{at}" for at in range(count)])
    assert [place.env for place in found] == [{"CUDA_VISIBLE_DEVICES": f"GPU-{at}"} for at in range(count)]
    with pytest.raises(SpecbenchError, check=wording):
        places(len(cores) + 1)


def test_what_is_left_of_a_task_has_new_stretches() -> None:
    task = Task(1, ("ar", "toy n=2"), ("p0", "p1"), repeat=3, segment=40, done={"a": "x"})
    rest = left(task, {"b": "y", "c": "z"})
    assert (rest.concurrency, rest.labels, rest.prompts, rest.repeat) == (1, task.labels, task.prompts, 3)
    assert rest.done == {"a": "x", "b": "y", "c": "z"}
    assert rest.segment == 42
    assert left(rest, {}).segment == 42
