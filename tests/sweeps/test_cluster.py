"""Workers on a Ray cluster of this machine: what holds for processes holds for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.runs import answered, counts, crash, make
from support.wording import wording

from specbench.common.errors import SpecbenchError
from specbench.results.request_schema import RequestRecord
from specbench.sweeps.cluster import Cluster
from specbench.sweeps.executors import Here
from specbench.sweeps.messages import Task

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


def test_a_worker_that_cannot_begin_is_one_line() -> None:
    with pytest.raises(SpecbenchError, check=wording) as caught:
        Cluster(crash, 1)
    assert "boom" in str(caught.value)
    assert "\n" not in str(caught.value)
