"""Run a campaign: a sweep for each model, task and temperature, in one folder."""

from __future__ import annotations

import collections.abc
import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

from specbench.common import (
    Flags,
    SpecbenchError,
    UsageError,
    flag_of,
    make_folder,
    parse_flags,
    parse_number,
    safe_name,
    sole_use,
    unknown_name,
    write_json_atomic,
    yaml,
)
from specbench.planning import DEFAULT_TASK, split_names
from specbench.results import (
    CAMPAIGN,
    MODELS_QUALITY,
    Campaign,
    CampaignBlock,
    campaign_runs,
    is_campaign,
    read_campaign,
)
from specbench.runner import notes_of, printing_to
from specbench.sweeps.grid import CONCURRENCY, Axis, read_axes
from specbench.sweeps.running import expanded, run_sweep
from specbench.sweeps.sweep_plan import CampaignPlan, SweepPlan

#: The axis of ``--grid`` that belongs to a block of a campaign, not to a method.
TEMPERATURE = "temperature"

#: Key of a campaign's file: mappings of options, each of which makes its own blocks.
_RUNS = "runs"

_TODO = "write options of specbench sweep by name, as in model: [a, b]"

#: Options whose values do not change the folder of a block, because a wider grid joins the same sweep.
_WIDENED = {"grid", "grid_file", "search", "until_ci"}
_LISTED = {"model", "task", "method"}


@dataclass(frozen=True)
class Block:
    """One sweep of a campaign: a model on a task at a temperature."""

    plan: SweepPlan

    @property
    def label(self) -> str:
        """Model, task and temperature in words."""
        return f"{self.plan.model} on {self.plan.task}, temperature {self.plan.temperature or 0:g}"

    @property
    def folder(self) -> str:
        """Folder that receives the sweep; blocks with other settings never share one."""
        return f"{safe_name(f'{self.plan.model}-{self.plan.task}')}-{_digest(self.plan, _WIDENED)[:6]}"

    def entry(self) -> CampaignBlock:
        """The block as it is recorded."""
        plan = self.plan
        return CampaignBlock(
            model=plan.model, task=str(plan.task), temperature=plan.temperature or 0.0, methods=plan.method or ""
        )


def is_several(plan: CampaignPlan) -> bool:
    """Whether a plan needs a campaign: several models, tasks or temperatures, a file, or further columns."""
    if plan.file or plan.judge or plan.quality:
        return True
    return "," in plan.model or "," in str(plan.task) or any(_is_temperature(text) for text in plan.grid)


def campaign_plans(plan: CampaignPlan, written: Sequence[Mapping[str, Any]] | None = None) -> list[CampaignPlan]:
    """The options of each run of a campaign; those given by the user replace those of the file.

    ``written``: options of each run, in place of the file's.
    """
    given = {name: getattr(plan, name) for name in plan.model_fields_set}
    if written is None:
        written = _of_file(plan.file) if plan.file else [{}]
    found = [parse_flags(CampaignPlan, {**values, **given}) for values in written]
    if any(each.train is not None or each.only_trained for each in found):
        raise UsageError("cannot train in a campaign: --train sweeps the models of one training; leave it out")
    return found


def campaign_blocks(plans: Sequence[CampaignPlan]) -> list[Block]:
    """The sweeps of a campaign."""
    made: dict[str, Block] = {}
    for block in [block for plan in plans for block in _product(plan)]:
        if made.setdefault(block.folder, block) != block:
            raise UsageError(f"cannot run {block.label} twice with other grids; write both in one --grid")
    return list(made.values())


def run_campaign(plans: Sequence[CampaignPlan], name: str = "") -> Path:
    """Run the sweeps of a campaign one after the other; return its folder, which the same command continues.

    A block that fails is recorded with the reason, and the others go on. Mistakes in any block are found before the
    first one starts. ``name``: of its folder, by default the file's, else a hash of the options that all runs share.
    """
    blocks, plan = campaign_blocks(plans), plans[0].anchored("out", "data_dir", "profile", "grammar")
    say = printing_to(notes_of(plan))
    for block in blocks:
        expanded(block.plan.settled(), insist=plan.yes)
    name = name or (plan.file.stem if plan.file else _digest(plan, _WIDENED | _LISTED)[:8])
    folder = plan.out / f"campaign-{safe_name(name)}"
    make_folder(folder)
    with sole_use(folder):
        entries = [_known(folder, block) for block in blocks]
        if not plan.file:  # the blocks of a command with other models, tasks or methods stay
            swept = {entry.sweep for entry in entries}
            entries += [each for each in _recorded(folder) if each.sweep and each.sweep not in swept]
        _write(folder, entries)
        for at, block in enumerate(blocks):
            say(f"{at + 1} of {len(blocks)}: {block.label}")
            try:
                place = run_sweep(block.plan.model_copy(update={"out": folder / block.folder}))
            except SpecbenchError as error:
                entries[at] = entries[at].model_copy(update={"failed": str(error)})
                say(f"{block.label} failed: {error}")
            else:
                entries[at] = entries[at].model_copy(update={"sweep": str(place.relative_to(folder))})
            _write(folder, entries)
        _add_columns(plan, blocks, folder, say)
    return folder


def _recorded(folder: Path) -> Sequence[CampaignBlock]:
    return read_campaign(folder).blocks if is_campaign(folder) else ()


def _known(folder: Path, block: Block) -> CampaignBlock:
    """The block as recorded, with the sweep that an earlier command has made of it."""
    swept = [each.sweep for each in _recorded(folder) if each.sweep.startswith(f"{block.folder}/")]
    return block.entry().model_copy(update={"sweep": swept[0] if swept else ""})


def _add_columns(plan: CampaignPlan, blocks: Sequence[Block], folder: Path, say: Callable[[str], None]) -> None:
    """Rate the answers and measure the models, as far as an earlier command has not."""
    if plan.judge is not None:
        from specbench.runner import judge_runs

        loading = {name: getattr(plan, name) for name in ("dtype", "device")}
        judge_runs([place for _, place in campaign_runs(folder)], plan.judge, say, plan.data_dir, **loading)
    if plan.quality is not None:
        from specbench.analysis import read_quality
        from specbench.quality import QualityPlan, measure_quality

        asked = {*split_names(plan.quality)}
        files = [*(folder / MODELS_QUALITY).glob("*.json")]
        read = [
            (q, {*(task.task for task in q.tasks), *(group.group for group in q.groups)})
            for q in map(read_quality, files)
        ]
        known = {q.model.name for q, names in read if asked <= names and q.limit == plan.quality_limit}
        models = [model for model in dict.fromkeys(block.plan.model for block in blocks) if model not in known]
        if models:
            loading = {name: getattr(plan, name) for name in ("dtype", "device", "trust_remote_code", "quiet")}
            values = {"models": models, "tasks": plan.quality, "limit": plan.quality_limit}
            measure_quality(parse_flags(QualityPlan, {**values, "out": folder / MODELS_QUALITY, **loading}), say)


def _write(folder: Path, entries: Sequence[CampaignBlock]) -> None:
    write_json_atomic(folder / CAMPAIGN, Campaign(blocks=list(entries)).model_dump(mode="json"))


def _product(plan: CampaignPlan) -> list[Block]:
    models, tasks = split_names(plan.model), split_names(plan.task or DEFAULT_TASK)
    axes = [*read_axes([text for text in plan.grid if _is_temperature(text)])] if _has_temperature(plan) else []
    temperatures = _temperatures(axes[0]) if axes else [plan.temperature]
    # Without options to vary, each method is one configuration.
    grid = [text for text in plan.grid if not _is_temperature(text)]
    if not grid and plan.grid_file is None and plan.acceptance is None:
        grid = [f"{CONCURRENCY}=1"]
    for setting in plan.task_settings:
        if (task := setting.partition(".")[0]) not in tasks:
            raise unknown_name("task", task, tasks, "in --task-set", choose="name one of --task")
    own = {name: getattr(plan, name) for name in SweepPlan.model_fields if name in plan.model_fields_set}
    return [
        Block(
            parse_flags(
                SweepPlan,
                {
                    **own,
                    "model": model,
                    "task": task,
                    "grid": grid,
                    "task_settings": [each for each in plan.task_settings if each.partition(".")[0] == task],
                    **({} if temperature is None else {TEMPERATURE: temperature}),
                },
            )
        )
        for model, task, temperature in itertools.product(models, tasks, temperatures)
    ]


def _is_temperature(text: str) -> bool:
    return text.partition("=")[0].strip() == TEMPERATURE


def _has_temperature(plan: CampaignPlan) -> bool:
    found = any(_is_temperature(text) for text in plan.grid)
    if found and plan.temperature is not None:
        raise UsageError("--temperature is both set and swept; leave one out")
    return found


def _temperatures(axis: Axis) -> list[float]:
    try:
        return [float(value) for value in axis.values]
    except ValueError:
        raise UsageError(f"--grid {TEMPERATURE} takes numbers, not {', '.join(axis.values)}") from None


def _of_file(file: Path) -> list[dict[str, Any]]:
    """The options of each of the ``runs`` of a campaign's file, or of the whole file if it has none."""
    content = yaml.read(file, _TODO, texts=True)
    if not isinstance(content, dict):
        raise UsageError(f"cannot use {file}: it is not a mapping; {_TODO}")
    return parse_campaign(content, file)


def parse_campaign(content: Mapping[str, Any], file: Path) -> list[dict[str, Any]]:
    """The options of each run of a campaign, from the texts of a YAML file."""
    runs = content.get(_RUNS, [{}])
    if not isinstance(runs, list) or not runs or not all(isinstance(run, dict) for run in runs):
        raise UsageError(f"cannot use {file}: runs must be a list of mappings; {_TODO}")
    shared = {key: value for key, value in content.items() if key != _RUNS}
    return [parse_written({**shared, **run}, file, CampaignPlan) for run in runs]


def parse_written(written: Mapping[str, Any], file: Path, owner: type[Flags]) -> dict[str, Any]:
    """Options of a command from a mapping of a YAML file, by the names of its fields."""
    fields = owner.model_fields
    names = {field.replace("_", "-"): field for field in fields}
    names |= {flag_of(owner, field).name.lstrip("-"): field for field in fields}
    names.pop("file", None)
    found: dict[str, Any] = {}
    for key, value in written.items():
        field = names.get(str(key).replace("_", "-"))
        if field is None:
            raise unknown_name("option", str(key), names, f"in {file}")
        if field == TEMPERATURE and isinstance(value, list):
            field, value = "grid", {TEMPERATURE: value}
        typed = _typed(owner, field, value, f"{file}: {key}")
        found[field] = (*found.get(field, ()), *typed) if field == "grid" else typed
    return found


def _typed(owner: type[Flags], field: str, value: Any, where: str) -> Any:
    """A value of the file as the option takes it: lists of names, mappings of settings, numbers and switches."""
    annotation = owner.model_fields[field].annotation
    kinds = {annotation, *get_args(annotation)}
    if get_origin(annotation) is collections.abc.Sequence:
        if isinstance(value, dict):
            value = [f"{name}={','.join(each) if isinstance(each, list) else each}" for name, each in value.items()]
        return tuple(value) if isinstance(value, list) else (str(value),)
    if isinstance(value, list) and field in _LISTED:
        return ",".join(map(str, value))
    if not isinstance(value, str):
        raise UsageError(f"cannot use {where}: it takes one value; write it as on the command line")
    if bool in kinds:
        if value not in ("true", "false"):
            raise UsageError(f"cannot use {where} {value}: it is a switch; write true or false")
        return value == "true"
    return parse_number(owner, field, value) if {int, float} & kinds else value


def _digest(plan: SweepPlan, without: set[str]) -> str:
    recorded = {name for name in SweepPlan.model_fields if flag_of(SweepPlan, name).recorded}
    deciding = plan.model_dump(mode="json", include=recorded - without, exclude_defaults=True)
    return hashlib.sha256(json.dumps(deciding, sort_keys=True, default=str).encode()).hexdigest()
