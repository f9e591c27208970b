"""Workers on a Ray cluster of this machine: what holds for processes holds for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.asserting import refusal
from support.runs import Death, answered, counts, crash, make, refuse
from support.wording import wording

from specbench.common.errors import EnvironmentRefused, SpecbenchError, UsageError
from specbench.results.schema import RequestRecord
from specbench.sweeps.cluster import Cluster
from specbench.sweeps.executors import RETRIES, Here
from specbench.sweeps.task import Failed, Task

CELLS = ["toy n=2", "toy n=4"]
PROMPTS = tuple(f"p{at}" for at in range(6))
TURNS = dict.fromkeys(PROMPTS[::2], 2)


@pytest.fixture(scope="module", autouse=True)
def _two_cores() -> Iterator[None]:
    """A cluster with room for two workers, who find the modules of the tests."""
    ray = pytest.importorskip("ray")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), *([before] if before else [])])
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init(num_cpus=2, num_gpus=0, log_to_driver=False, include_dashboard=False, logging_level="error")
    yield
    ray.shutdown()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@contextmanager
def cluster(count: int | None, made: Callable[[], Any]) -> Iterator[Cluster]:
    executor = Cluster(made, count)
    try:
        yield executor
    finally:
        executor.close()


def tasks(labels: Sequence[str] = CELLS) -> list[Task]:
    return [Task(1, ("ar", *labels), (prompt,), segment=10 * at) for at, prompt in enumerate(PROMPTS)]


def check(records: Sequence[RequestRecord]) -> None:
    assert counts(records) == counts(answered(Here(partial(make, CELLS, of_turns=TURNS)).run(tasks())))
    assert len({record.segment for record in records}) == len(records), "two stretches have one number"


def test_two_workers_give_the_records_of_one() -> None:
    import ray

    with cluster(2, partial(make, CELLS, of_turns=TURNS)) as executor:
        assert executor.describe() == make(CELLS, of_turns=TURNS).describe()
        records = answered(executor.run(tasks()))
        check(records)
        assert answered(executor.run([])) == []
        assert executor.grade(records) == make(CELLS).grade(records)
        assert executor.report()["process"] != os.getpid()
    assert ray.is_initialized(), "a cluster that was there stays"


@pytest.mark.slow  # as with processes, whose tests are quick
def test_a_worker_that_dies_in_the_middle_of_a_task_is_replaced(tmp_path: Path) -> None:
    with cluster(2, partial(make, CELLS, of_turns=TURNS, death=Death(tmp_path, after=2))) as executor:
        check(answered(executor.run(tasks())))
    assert [path.name for path in tmp_path.iterdir()] == ["died-0"]


@pytest.mark.slow  # as with processes, whose tests are quick
def test_a_task_that_no_worker_survives_ends_in_one_line(tmp_path: Path) -> None:
    with cluster(1, partial(make, CELLS, death=Death(tmp_path, times=1000, after=0))) as executor:
        text = refusal(SpecbenchError, list, executor.run(tasks()[:1]))
        assert f"{RETRIES + 1}" in text


def test_errors_of_the_users_reach_the_driver_as_they_are() -> None:
    with (
        cluster(1, partial(make, [*CELLS, "bad n=2"])) as executor,
        pytest.raises(UsageError, check=wording),
    ):
        answered(executor.run(tasks([*CELLS, "bad n=2"])))
    with pytest.raises(EnvironmentRefused, check=wording):
        Cluster(refuse, 1)


def test_a_worker_that_cannot_begin_is_one_line() -> None:
    with pytest.raises(SpecbenchError, check=wording) as caught:
        Cluster(crash, 1)
    assert "boom" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_more_workers_than_there_is_room_for_are_refused() -> None:
    with pytest.raises(EnvironmentRefused, check=wording):
        Cluster(partial(make, CELLS), 3)
    with cluster(None, partial(make, CELLS)) as executor:
        assert len(executor._actors) == 1


def test_a_cluster_that_does_not_start_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def init(**given: Any) -> None:
        raise Exception("The current node timed out during startup.\nThis could happen because it is busy.")

    ended = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append(True))
    said = refusal(EnvironmentRefused, Cluster, partial(make, CELLS), 2)
    assert said.startswith("the Ray cluster cannot be had (The current node timed out during startup.")
    assert ended


def test_a_cell_that_fails_in_a_worker_is_said_and_the_others_go_on() -> None:
    with cluster(1, partial(make, CELLS, failing={"toy n=4": PROMPTS[1]})) as executor:
        found = list(executor.run(tasks()[:3]))
    failed = [each for each in found if isinstance(each, Failed)]
    assert failed == [Failed("toy n=4", "method of toy n=4 failed in draft")]
    assert len({each.request_id for each in found if isinstance(each, RequestRecord)}) == 8
