"""Command-line options of ``specbench train``, with and without ``--collect``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import field_validator

from specbench.common import UsageError, flag, temperature_fault
from specbench.planning import Drawing, Loading, Noting, split_names

#: Token budget of an answer of the target, by default.
BUDGET = 512


class _Answering(Noting, Loading, Drawing):
    """Options of the target's answers: the prompts, and how they are decoded."""

    prompts: str | None = flag(
        None,
        "--prompts",
        help="TASK-train or files (.jsonl, .json, .parquet), comma-separated.",
        metavar="SETS",
        shown="all of --answers",
    )
    answers: Path | None = flag(
        None, "--answers", help="Folder of the target's answers; missing ones are decoded.", shown="--out"
    )
    limit: int | None = flag(None, "--limit", help="Use N texts of each set, sampled at random.", ge=1)
    temperature: float | None = flag(
        None,
        "--temperature",
        help="Temperature of the target's answers; 0 is greedy.",
        shown="0",
        ge=0,
        allow_inf_nan=False,
    )
    max_new_tokens: int | None = flag(
        None, "--max-new-tokens", help="Token budget per answer of the target.", shown=str(BUDGET), ge=2
    )
    concurrency: int = flag(32, "--concurrency", help="Number of answers decoded together.", ge=1, le=4096)
    seed: int = flag(0, "--seed", help="Random seed for answers, initial weights, noise and order.", ge=0, lt=1 << 63)

    @field_validator("temperature")
    @classmethod
    def _divides(cls, temperature: float | None) -> float | None:
        if fault := temperature_fault(temperature or 0.0):
            raise UsageError(f"--{fault}")
        return temperature

    @property
    def sets(self) -> list[str]:
        """Names of the prompt sets."""
        found = split_names(self.prompts or "")
        if self.prompts is not None and not found:
            raise UsageError("cannot read --prompts: it is empty; give gsm8k-train, for example")
        return found


class TrainPlan(_Answering):
    """Options of a training: the method, its training data, and the recipe's options."""

    method: str = flag(..., "METHOD", help="A method that has a recipe; draft: the draft model of sps.")
    trajectories: Path | None = flag(
        None, "--trajectories", help="Folder of train --collect, for consistency training."
    )
    given: bool = flag(False, "--given", help="Learn the answers in the --prompts files; generate none.")
    recipe: str | None = flag(
        None, "--recipe", help="A paper's options by name, or a .yaml file; a wrong name lists them."
    )
    settings: Sequence[str] = flag((), "--set", help="Set an option of the recipe; repeatable.", metavar="OPT=V")
    texts: int | None = flag(None, "--texts", help="Learn from N of the texts that are not held out.", ge=1)
    held_out: int = flag(64, "--held-out", help="Number of prompts held out for evaluation.", ge=0)
    out: Path | None = flag(
        None, "--out", help="Output folder; resumes a training there.", shown="trained/METHOD-MODEL"
    )

    @property
    def into(self) -> Path:
        """Output folder."""
        return self.out or Path("trained", f"{self.method}-{Path(self.model).name}")


class TrajectoriesPlan(_Answering):
    """Options of a collection of Jacobi states."""

    block_size: int = flag(16, "--block-size", help="Tokens per block.", short="-n", ge=1, le=512)
    states: Literal["jacobi", "artificial"] = flag(
        "jacobi", "--states", help="jacobi decodes with the target; artificial adds noise only."
    )
    init: Literal["context", "uniform", "pad"] = flag(
        "context", "--init", help="Source of initial guesses: context, uniform or pad."
    )
    augment: Literal["none", "cllm", "cllm-released"] = flag(
        "none", "--augment", help="Correct some wrong tokens: none, cllm, cllm-released."
    )
    keep_circles: int = flag(3, "--keep-circles", help="Copies kept of a segment repeated at the end; 0: all.", ge=0)
    max_run: int = flag(0, "--max-run", help="Drop blocks from N equal tokens in a row on; CLLM: 10.", ge=0)
    max_repeats: int = flag(0, "--max-repeats", help="Drop blocks from the Nth copy of a sentence on.", ge=0)
    shard: int = flag(64, "--shard", help="Answers per shard; a kill loses at most one shard.", ge=1)
    rows: int | None = flag(
        None, "--rows", help="Most rows per forward; bounds memory.", shown="256; 4096 on CUDA", ge=1
    )
    out: Path | None = flag(
        None, "--out", help="Output folder; resumes a collection there.", shown="trajectories/MODEL"
    )

    @field_validator("max_run")
    @classmethod
    def _leaves_some(cls, run: int) -> int:
        if run == 1:
            raise UsageError(
                "cannot use --max-run 1: every token is a run of 1, so all blocks would be dropped; give 2 or more, or "
                "0 for off"
            )
        return run

    @field_validator("max_repeats")
    @classmethod
    def _says_something(cls, repeats: int) -> int:
        if repeats == 1:
            raise UsageError(
                "cannot use --max-repeats 1: every sentence comes up once, so all blocks would be dropped; give 2 or "
                "more, or 0 for off"
            )
        return repeats

    @property
    def into(self) -> Path:
        """Output folder."""
        return self.out or Path("trajectories", Path(self.model).name)
