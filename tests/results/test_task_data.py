"""The data files of a run's task are recorded, are not part of its digest, and unverified ones are reported."""

from __future__ import annotations

import pytest
from support import runs
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.evals.grading import scoring
from specbench.results.schema import RunConfig, TaskData

KNOWN = TaskData(name="known.jsonl", sha256="a" * 64, bytes=10, revision=None, verified=True)
UNKNOWN = TaskData(name="aime25.jsonl", sha256="b" * 64, bytes=20, revision="c" * 40, verified=False)


def config(*files: TaskData) -> RunConfig:
    made = runs.run_config(["jf"], 8)
    return made.model_copy(update={"task": made.task.model_copy(update={"data": [*files]})})


def test_data_are_no_part_of_the_digest_and_absent_where_there_are_none() -> None:
    assert config(KNOWN, UNKNOWN).digest() == config().digest()
    assert "data" not in config().model_dump(mode="json")["task"]
    assert config(UNKNOWN).model_dump(mode="json")["task"]["data"] == [
        {"name": "aime25.jsonl", "sha256": "b" * 64, "bytes": 20, "revision": "c" * 40, "verified": False}
    ]
    for made in (config(), config(KNOWN, UNKNOWN)):
        assert RunConfig.model_validate_json(made.model_dump_json()) == made


def test_a_run_is_scored_by_the_data_that_it_was_asked_from() -> None:
    other = UNKNOWN.model_copy(update={"sha256": "d" * 64})
    renamed = other.model_copy(update={"name": "aime25.parquet"})
    scoring._check_same([KNOWN, UNKNOWN], {KNOWN.name: KNOWN, UNKNOWN.name: UNKNOWN})
    scoring._check_same([KNOWN, UNKNOWN], {KNOWN.name: KNOWN})  # a file that is read later cannot be checked yet
    scoring._check_same([UNKNOWN], {renamed.name: renamed.model_copy(update={"sha256": UNKNOWN.sha256})})
    scoring._check_same([], {UNKNOWN.name: UNKNOWN})
    scoring._check_same([UNKNOWN, renamed], {UNKNOWN.name: UNKNOWN})  # of two the second is read later
    for found in (other, renamed):
        with pytest.raises(UsageError, check=wording):
            scoring._check_same([KNOWN, UNKNOWN], {KNOWN.name: KNOWN, found.name: found})
