"""The selection of a run's prompts is recorded and described, and is not part of the run's digest."""

from __future__ import annotations

import pytest
from support import decoders

from specbench.results.schema import PromptDraw, RunConfig

# Digest of a run from before the selection was recorded. If this fails, unfinished runs cannot be resumed.
DIGEST = "c8da90f7ea0f152ba4cff2ddfcdcda0bad9a864b183bfc57821503b6da3f5eed"


def config(taken: PromptDraw | None, prompts: int = 3) -> RunConfig:
    made = decoders.config(["ar", "jacobi"], prompts)
    return made.model_copy(update={"task": made.task.model_copy(update={"taken": taken})})


@pytest.mark.parametrize("taken", [None, PromptDraw(of=164, seed=None), PromptDraw(of=164, seed=0)])
def test_the_digest_is_of_the_prompts_and_not_of_how_they_were_chosen(taken: PromptDraw | None) -> None:
    assert config(taken).digest() == DIGEST


def test_a_row_without_a_state_is_no_part_of_the_digest_and_one_with_a_state_is() -> None:
    made = config(None)
    specs = [spec.model_copy(update={"stateful": spec.name == "jacobi"}) for spec in made.methods]
    stateful = made.model_copy(update={"methods": specs})
    assert stateful.digest() != DIGEST == made.digest()
    assert [spec.model_dump().get("stateful") for spec in stateful.methods] == [None, True]
    assert all(name not in spec.model_dump() for spec in made.methods for name in ("stateful", "engine"))
    for each in (made, stateful):
        assert RunConfig.model_validate_json(each.model_dump_json()) == each


def test_all_prompts_are_written_as_ever_and_some_say_so() -> None:
    assert "taken" not in config(None).model_dump(mode="json")["task"]
    written = config(PromptDraw(of=164, seed=0)).model_dump(mode="json")
    assert written["task"]["taken"] == {"of": 164, "seed": 0, "held_out": 0}
    for made in (config(None), config(PromptDraw(of=164, seed=None)), config(PromptDraw(of=164, seed=0))):
        assert RunConfig.model_validate_json(made.model_dump_json()) == made
