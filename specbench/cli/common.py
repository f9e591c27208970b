"""Options that several commands share, and the way from them to a plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from specbench.errors import EnvironmentRefused, UsageError
from specbench.names import DEFAULT_MODEL

if TYPE_CHECKING:
    from rich.console import Console

    from specbench.models import LoadedModel
    from specbench.plan import Plan

DEFAULT_METHODS = "ar,jacobi"

METHOD = typer.Option(
    None,
    "--method",
    help="Methods, comma-separated; ar is always added.",
    show_default=f"{DEFAULT_METHODS}, or the alias's",
)
TASK = typer.Option("humaneval", "--task", help="Tasks, comma-separated.")
MODEL = typer.Option(DEFAULT_MODEL, "--model", help="Alias, hub id, folder, .gguf file or config:NAME.")
SET = typer.Option([], "--set", help="A method's option, as jacobi.n=16; repeatable.", metavar="METHOD.OPT=VALUE")
TASK_SET = typer.Option([], "--task-set", help="A task's option; repeatable.", metavar="TASK.OPT=VALUE")
LIMIT = typer.Option(None, "--limit", min=1, help="First N prompts only.")
BUDGET = typer.Option(None, "--max-new-tokens", min=1, help="Per answer; default is the task's.")
SEED = typer.Option(0, "--seed", min=0, help="Of sampling, drafts and order.")
TOP_K = typer.Option(0, "--top-k", min=0, help="Keep the k most probable tokens; 0 is off.")
TOP_P = typer.Option(1.0, "--top-p", help="Keep the most probable mass; 1 is off.")
DTYPE = typer.Option("auto", "--dtype", help="float32, bfloat16, float16; auto: fp32 on CPU, else bf16.")
DEVICE = typer.Option("auto", "--device", help="cpu, cuda, cuda:N or auto.")
REVISION = typer.Option(None, "--revision", help="Hub revision of the model.")
DATA_DIR = typer.Option(None, "--data-dir", help="Folder with task data files.", exists=True, file_okay=False)
DATA_FILE = typer.Option(None, "--data-file", help="Your prompts, for --task prompts.", exists=True, dir_okay=False)
JSON = typer.Option(False, "--json", help="JSON to stdout.")


def make_plan(
    *,
    method: str | None,
    task: str,
    model: str,
    settings: Sequence[str],
    task_settings: Sequence[str],
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    limit: int | None,
    max_new_tokens: int | None,
    repeats: int,
    concurrency: int,
    dtype: str,
    device: str,
    revision: str | None,
    data_dir: Path | None,
    out: Path,
    data_file: Path | None = None,
    trace: bool = False,
) -> Plan:
    """A plan from command-line values; every mistake is found before torch is imported.

    Raises:
        UsageError: an unknown name or a bad option.
    """
    from specbench.plan import Plan, plan_methods, plan_sampling, plan_tasks

    chosen, more, said = _by_alias(model, method, settings)
    tasks = _some("--task", task)
    return Plan(
        methods=plan_methods(chosen, [*settings, *more]),
        tasks=plan_tasks(tasks, [*task_settings, *_by_data_file(tasks, task_settings, data_file)]),
        model=model,
        dtype=dtype,
        device=device,
        revision=revision,
        sampling=plan_sampling(temperature, top_k, top_p, seed),
        max_new_tokens=max_new_tokens,
        limit=limit,
        repeats=repeats,
        concurrency=concurrency,
        data_dir=data_dir,
        out=out,
        trace=trace,
        alias_sets=said,
    )


def _by_alias(model: str, method: str | None, settings: Sequence[str]) -> tuple[list[str], list[str], str]:
    """What ``--model`` decides where the user did not.

    Returns:
        The methods, the settings to add to the user's, and the line that says so: the user could have typed it.
    """
    from specbench import names
    from specbench.plan import default_settings
    from specbench.records import BASELINE

    source = names.resolve(model)
    alias = names.aliases().get(model, {})
    own = alias.get("method")
    flags = []
    if method is None:
        method = f"{BASELINE},{own}" if own else DEFAULT_METHODS
        flags += [f"--method {method}"] if own else []
    methods = _some("--method", method)
    more = default_settings(methods, settings, own, alias.get("options", {})) if own else []
    flags += [f"--set {setting}" for setting in more]
    parts = [" ".join(flags)] if flags else []
    parts += [f"chat template {source.template}"] if source.template else []
    parts += [f"tokenizer of {source.tokenizer}"] if source.tokenizer else []
    return methods, more, f"{model} sets {', '.join(parts)}" if parts else ""


def _by_data_file(tasks: Sequence[str], settings: Sequence[str], file: Path | None) -> list[str]:
    """The settings that ``--data-file`` stands for, for the tasks whose ``task.toml`` says that they take one."""
    from specbench import registry

    takers = [name for name, card in registry.tasks().items() if card.info.get("data_file")]
    chosen = [name for name in takers if name in tasks]
    if file is not None and not chosen:
        raise UsageError(f"--data-file goes with --task {' or '.join(takers)}; {','.join(tasks)} has its own data")
    for name in chosen:
        if file is None and not any(setting.startswith(f"{name}.file=") for setting in settings):
            raise UsageError(f"--task {name} needs --data-file FILE, a .jsonl file of prompts")
    return [f"{name}.file={file}" for name in chosen] if file is not None else []


def split(names: str) -> list[str]:
    """Comma-separated names."""
    return [name.strip() for name in names.split(",") if name.strip()]


def _some(flag: str, names: str) -> list[str]:
    found = split(names)
    if not found:
        raise UsageError(f"{flag} names nothing; see specbench list {flag.removeprefix('--')}s")
    return found


def load_model(plan: Plan, notes: Console) -> LoadedModel:
    """Says what the model's alias set, imports torch and loads the model."""
    if plan.alias_sets:
        notes.print(plan.alias_sets, soft_wrap=True, markup=False)
    notes.print(f"loading {plan.model} …")
    from specbench.models import load

    return load(plan.model, dtype=plan.dtype, device=plan.device, revision=plan.revision)


def assert_gpu(wanted: str) -> None:
    """``--gpu NAME``: refuses to run on any other device.

    Raises:
        UsageError: no such GPU is known.
        EnvironmentRefused: another device is present.
    """
    from specbench import gpus

    if wanted == "auto":
        return
    gpus.find(wanted)
    try:
        import torch
    except ImportError as error:
        raise EnvironmentRefused("torch is not installed; pip install specbench-llm brings it") from error
    if torch.cuda.is_available():
        gpus.require(wanted, torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory)
    else:
        gpus.require(wanted, None, None)
