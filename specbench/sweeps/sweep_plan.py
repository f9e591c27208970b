"""The options of ``specbench sweep``, in addition to those of all decoding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import field_validator

from specbench.common import UsageError, flag, flag_of, option_names, registry
from specbench.planning import DEFAULT_TASK, RESULTS, Decoding, Waiting, Wordy


class SweepPlan(Decoding, Waiting, Wordy):
    """A grid of settings of methods, the prompts to choose by, and how to search for the best."""

    task: str | None = flag(DEFAULT_TASK, "--task", help="The task.")
    grid: Sequence[str] = flag(
        (),
        "--grid",
        help="Values of an option, or of concurrency: n=8,16 or r=0.5:0.9:0.1; repeatable.",
        metavar="OPT=V,V",
    )
    grid_file: Path | None = flag(None, "--grid-file", help="The same as YAML: a mapping, grid.", exists="file")
    acceptance: str | None = flag(
        None,
        "--acceptance",
        help="Instead of a grid: accepted length over the draft length, for chains of LOW to HIGH tokens.",
        metavar="LOW:HIGH",
    )
    limit: int | None = flag(
        None, "--limit", help="Prompts to choose by, sampled at random.", shown="all not held out", ge=1
    )
    held_out: int = flag(0, "--held-out", help="Other prompts, to judge the best configuration by.", ge=0)
    search: Literal["grid", "halving"] = flag(
        "grid", "--search", help="grid: every configuration on every prompt; halving: drop slow ones."
    )
    until_ci: str | None = flag(
        None, "--until-ci", help="Stop a configuration when its speedup is known to ± this share.", metavar="PERCENT"
    )
    profile: Path | None = flag(
        None, "--profile", help="A folder of specbench profile, to predict with.", exists="folder", recorded=False
    )
    executor: Literal["local", "ray"] = flag(
        "local", "--executor", help="local: this machine; ray: a Ray cluster.", recorded=False
    )
    workers: int | None = flag(
        None,
        "--workers",
        help="Devices to use.",
        shown="all GPUs, or one worker on a CPU",
        recorded=False,
        ge=1,
        le=1024,
    )
    yes: bool = flag(False, "--yes", help="Run a grid however large it is.", recorded=False)
    out: Path = flag(RESULTS, "--out", help="Folder that receives the sweep's folder.", recorded=False)

    @field_validator("task")
    @classmethod
    def _one(cls, task: str | None) -> str | None:
        if task is not None and "," in task:
            raise UsageError("a sweep has one task; run it once for each")
        return task

    def settled(self) -> SweepPlan:
        """Return the plan; with ``acceptance`` nothing in it depends on measured times, and answers are not judged.

        Raises UsageError for options that acceptance has no use for.
        """
        if self.acceptance is None:
            return self
        unused = [
            name for name in ("grid", "grid_file", "search", "until_ci", "profile") if name in self.model_fields_set
        ]
        if unused:
            raise UsageError(f"{flag_of(SweepPlan, unused[0]).name} cannot be used with --acceptance; leave one out")
        if self.temperature:
            raise UsageError("--acceptance is exact at temperature 0 only; leave --temperature out")
        return self.model_copy(update={"deterministic": True, "no_score": True})

    @property
    def until(self) -> float | None:
        """The share of ``until_ci``."""
        if self.until_ci is None:
            return None
        try:
            share = float(self.until_ci.removesuffix("%")) / 100
        except ValueError:
            share = -1.0
        if not 0 < share < 1:
            raise UsageError(f"--until-ci {self.until_ci}: write a share in per cent, as in --until-ci 2%")
        return share


class TrainedSweepPlan(SweepPlan):
    """A sweep for each of several trainings, and for the untrained model."""

    train: str | None = flag(
        None, "--train", help="A method whose recipe makes the models to sweep.", metavar="METHOD", recorded=False
    )
    train_grid: Sequence[str] = flag(
        (),
        "--train-grid",
        help="Values of a recipe's option, of texts or block_size; repeatable.",
        metavar="OPT=V,V",
        recorded=False,
    )
    train_set: Sequence[str] = flag(
        (), "--train-set", help="An option of all trainings; repeatable.", metavar="OPT=V", recorded=False
    )
    train_prompts: str | None = flag(
        None, "--train-prompts", help="Training prompts: TASK-train or files.", metavar="SETS", recorded=False
    )
    train_given: bool = flag(
        False, "--train-given", help="Learn the answers in the --train-prompts files.", recorded=False
    )
    train_answers: Path | None = flag(
        None, "--train-answers", help="Folder of training answers.", shown="--trained", recorded=False
    )
    train_limit: int | None = flag(
        None, "--train-limit", help="N texts of each set, sampled at random.", ge=1, recorded=False
    )
    train_held_out: int = flag(
        16, "--train-held-out", help="Prompts that no training learns from.", ge=0, recorded=False
    )
    train_tokens: int | None = flag(
        None, "--train-tokens", help="Most tokens per training answer.", shown="512", ge=2, recorded=False
    )
    max_hours: float | None = flag(
        None,
        "--max-hours",
        help="Leave out trainings beyond H hours in all.",
        metavar="H",
        gt=0,
        allow_inf_nan=False,
        recorded=False,
    )
    trained: Path = flag(Path("trained"), "--trained", help="Folder that receives the trainings.", recorded=False)

    @property
    def only_trained(self) -> Sequence[str]:
        """Given options that need ``train``."""
        own = TrainedSweepPlan.model_fields.keys() - SweepPlan.model_fields.keys() - {"train"}
        given = [name for name in own if getattr(self, name) != TrainedSweepPlan.model_fields[name].default]
        return sorted(flag_of(TrainedSweepPlan, name).name for name in given)


class CampaignPlan(TrainedSweepPlan):
    """A sweep for each of several models, tasks and temperatures, and what a campaign measures in addition."""

    file: Path | None = flag(
        None, "--file", help="A campaign as YAML: these options by name, with lists.", exists="file", recorded=False
    )
    judge: str | None = flag(
        None, "--judge", help="Then rate the answers by this model.", metavar="MODEL", recorded=False
    )
    quality: str | None = flag(
        None, "--quality", help="Then measure the models on tasks of lm-eval.", metavar="NAMES", recorded=False
    )
    quality_limit: int | None = flag(
        None, "--quality-limit", help="First N documents of each task of --quality.", ge=1, recorded=False
    )

    @field_validator("task")
    @classmethod
    def _one(cls, task: str | None) -> str | None:
        return task


class TunePlan(SweepPlan):
    """A sweep of one method's important options, by successive halving."""

    method: str = flag(..., "--method", help="The method.")
    grid: Sequence[str] = flag(
        (), "--grid", help="Values to try, as for sweep, instead of the method's own list.", metavar="OPT=V,V"
    )
    limit: int = flag(24, "--limit", help="Prompts to choose by, sampled at random.", ge=1)
    held_out: int = flag(16, "--held-out", help="Other prompts, to judge the choice by.", ge=1)
    search: Literal["grid", "halving"] = flag("halving", "--search", help="As for sweep.")
    no_score: bool = flag(True, "--no-score", help="Do not judge the answers.", recorded=False)

    @field_validator("method")
    @classmethod
    def _single(cls, method: str) -> str:
        if "," in method:
            raise UsageError("--tune takes one method and one task; repeat the command for each")
        if method in registry.methods() and not registry.method(method).info.get("lossless", False):
            raise UsageError(
                f"cannot tune {method} by speed: its options change its text; sweep it with --grid and compare accuracy"
            )
        return method

    @property
    def tried(self) -> Sequence[str]:
        """The grid: the user's, otherwise the method's list without options that the user set."""
        if self.grid or self.grid_file is not None:
            return self.grid
        card = registry.method(self.method)
        lists = card.info.get("tune", {})
        if not lists:
            raise UsageError(f"method '{self.method}' has no list of values to try; give one with --grid OPTION=V,V,…")
        known = option_names(card.load().Options)
        taken = {known.get(setting.partition("=")[0].rpartition(".")[2].replace("-", "_")) for setting in self.settings}
        return [f"{option}={','.join(map(str, values))}" for option, values in lists.items() if option not in taken]
