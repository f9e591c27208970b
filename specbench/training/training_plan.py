"""Plans of trainings: the options of ``specbench train`` and ``trajectories``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import field_validator

from specbench.common import UsageError, flag, temperature_fault
from specbench.planning import Drawing, Loading, Noting, split_names

#: Tokens of an answer of the target, where the user does not say.
BUDGET = 512


class _Answering(Noting, Loading, Drawing):
    """What answers of the target are learnt from, and how they are made."""

    prompts: str | None = flag(
        None,
        "--prompts",
        help="TASK-train or files (.jsonl, .json, .parquet), comma-separated.",
        metavar="SETS",
        shown="all of --answers",
    )
    answers: Path | None = flag(None, "--answers", help="Folder of answers; missing ones are made.", shown="--out")
    limit: int | None = flag(None, "--limit", help="N texts of each set, drawn by lot.", ge=1)
    temperature: float | None = flag(
        None, "--temperature", help="Of the target's answers; 0 is greedy.", shown="0", ge=0, allow_inf_nan=False
    )
    max_new_tokens: int | None = flag(
        None, "--max-new-tokens", help="Per answer of the target.", shown=str(BUDGET), ge=2
    )
    concurrency: int = flag(32, "--concurrency", help="Answers made together.", ge=1, le=4096)
    seed: int = flag(0, "--seed", help="Of answers, initial weights, noise and order.", ge=0, lt=1 << 63)

    @field_validator("temperature")
    @classmethod
    def _divides(cls, temperature: float | None) -> float | None:
        if fault := temperature_fault(temperature or 0.0):
            raise UsageError(f"--{fault}")
        return temperature

    @property
    def sets(self) -> list[str]:
        """Names of the sets of prompts."""
        found = split_names(self.prompts or "")
        if self.prompts is not None and not found:
            raise UsageError("--prompts names nothing; give gsm8k-train, for one")
        return found


class TrainPlan(_Answering):
    """A method with a recipe, what it learns from, and the recipe's options."""

    method: str = flag(..., "METHOD", help="A method that has a recipe; draft: the draft model of sps.")
    trajectories: Path | None = flag(None, "--trajectories", help="Folder of train --collect, for consistency.")
    given: bool = flag(False, "--given", help="Learn the answers in the --prompts files; nothing is made.")
    recipe: str | None = flag(
        None, "--recipe", help="A paper's options by name, or a .yaml file; a wrong name lists them."
    )
    settings: Sequence[str] = flag((), "--set", help="An option of the recipe; repeatable.", metavar="OPT=V")
    texts: int | None = flag(None, "--texts", help="Learn from N of the texts, whichever are held out.", ge=1)
    held_out: int = flag(64, "--held-out", help="Prompts that progress is measured on, not learnt.", ge=0)
    out: Path | None = flag(None, "--out", help="Folder of this training; goes on there.", shown="trained/METHOD-MODEL")

    @property
    def into(self) -> Path:
        """Folder that receives everything."""
        return self.out or Path("trained", f"{self.method}-{Path(self.model).name}")


class TrajectoriesPlan(_Answering):
    """Whose Jacobi states are collected, and which."""

    block_size: int = flag(16, "--block-size", help="Tokens of a block.", short="-n", ge=1, le=512)
    states: Literal["jacobi", "artificial"] = flag(
        "jacobi", "--states", help="jacobi runs the target; artificial is noise alone."
    )
    init: Literal["context", "uniform", "pad"] = flag(
        "context", "--init", help="Fresh guesses: context, uniform or pad."
    )
    augment: Literal["none", "cllm", "cllm-released"] = flag(
        "none", "--augment", help="Right tokens put into states: none, cllm, cllm-released."
    )
    keep_circles: int = flag(3, "--keep-circles", help="Rounds kept of a circle at the end; 0 is all.", ge=0)
    max_run: int = flag(0, "--max-run", help="No block from a run of N equal tokens on; CLLM has 10.", ge=0)
    max_repeats: int = flag(0, "--max-repeats", help="No block from the Nth time of one sentence on.", ge=0)
    shard: int = flag(64, "--shard", help="Answers of a shard: what a kill can lose.", ge=1)
    rows: int | None = flag(None, "--rows", help="Of a forward; bounds memory.", shown="256; 4096 on CUDA", ge=1)
    out: Path | None = flag(None, "--out", help="Folder of trajectories; goes on there.", shown="trajectories/MODEL")

    @field_validator("max_run")
    @classmethod
    def _leaves_some(cls, run: int) -> int:
        if run == 1:
            raise UsageError("--max-run 1 leaves nothing: every token is a run of 1; give 2 or more, or 0 for off")
        return run

    @field_validator("max_repeats")
    @classmethod
    def _says_something(cls, repeats: int) -> int:
        if repeats == 1:
            raise UsageError(
                "--max-repeats 1 leaves nothing: all is said for a first time; give 2 or more, or 0 for off"
            )
        return repeats

    @property
    def into(self) -> Path:
        """Folder that receives everything."""
        return self.out or Path("trajectories", Path(self.model).name)
