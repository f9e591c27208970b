"""Options that several commands share, and the way from them to a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from specbench.common import EnvironmentRefused, UsageError
from specbench.models.names import DEFAULT_MODEL

if TYPE_CHECKING:
    from rich.console import Console

    from specbench.decoding import Method
    from specbench.hardware.gpus import Gpu
    from specbench.models import LoadedModel
    from specbench.runner import Plan


DEFAULT_METHODS = "ar,jacobi"

METHOD = typer.Option(
    None,
    "--method",
    help="Methods, comma-separated; ar is always added.",
    show_default=f"{DEFAULT_METHODS}, or the alias's",
)
DEFAULT_TASK = "humaneval"
TASK = typer.Option(None, "--task", help="Tasks, comma-separated.", show_default=f"{DEFAULT_TASK}, or the preset's")
PRESET = typer.Option(None, "--preset", help="A published protocol: task, prompt, budget; see list presets.")
BASE = typer.Option(
    "auto", "--base", help="What the model was made from, to run AR of too; none. auto: an adapter's.", metavar="MODEL"
)
MODEL = typer.Option(DEFAULT_MODEL, "--model", help="Alias, hub id, folder, .gguf file or config:NAME.")
SET = typer.Option([], "--set", help="A method's option, as jacobi.n=16; repeatable.", metavar="METHOD.OPT=VALUE")
HEAD = typer.Option(None, "--head", help="Draft head: folder or hub id; stands for --set METHOD.head=.", metavar="HEAD")
TASK_SET = typer.Option([], "--task-set", help="A task's option; repeatable.", metavar="TASK.OPT=VALUE")
LIMIT = typer.Option(None, "--limit", min=1, help="N prompts of each task, drawn by lot; a larger N extends a smaller.")
PROMPT_SEED = typer.Option(None, "--prompt-seed", min=0, help="Of the draw of prompts.", show_default="0")
FIRST = typer.Option(False, "--first", help="--limit takes the first N of the data instead.")
BUDGET = typer.Option(None, "--max-new-tokens", min=1, help="Per answer; default is the task's.")
SEED = typer.Option(0, "--seed", min=0, help="Of sampling, drafts and order.")
TOP_K = typer.Option(0, "--top-k", min=0, help="Keep the k most probable tokens; 0 is off.")
TOP_P = typer.Option(1.0, "--top-p", help="Keep the most probable mass; 1 is off.")
DTYPE = typer.Option("auto", "--dtype", help="float32, bfloat16, float16; auto: fp32 on CPU, else bf16.")
DEVICE = typer.Option("auto", "--device", help="cpu, cuda, cuda:N or auto.")
ATTENTION = typer.Option("auto", "--attention", help="auto, reference, triton or flash.")
GRAPHS = typer.Option("auto", "--graphs", help="CUDA graphs: on, off; auto: on for CUDA.")
COMPILE = typer.Option(False, "--compile", help="torch.compile on the model's layers.")
REVISION = typer.Option(None, "--revision", help="Hub revision of the model.")
TRUST_REMOTE_CODE = typer.Option(False, "--trust-remote-code", help="Run Python code that comes with a model.")
DATA_DIR = typer.Option(None, "--data-dir", help="Folder with task data files.", exists=True, file_okay=False)
DATA_FILE = typer.Option(None, "--data-file", help="Your prompts, for --task prompts.", exists=True, dir_okay=False)
JSON = typer.Option(False, "--json", help="JSON to stdout.")

#: Where runs and sweeps go, and reports of them; in a clone git ignores what is put there.
RESULTS, REPORTS, PROFILES = Path("results"), Path("reports"), Path("profiles")

#: Instead of a folder's name: the newest run, sweep or profile.
LATEST = "latest"

# Where it is looked for: where commands write by default, and where those of older versions did.
_LOOKED_THROUGH = (RESULTS, PROFILES, Path("runs"), Path("sweeps"))


def folders(help: str, metavar: str) -> Any:
    """The argument of a command that reads folders: one, or several, which may be FOLDER:METHOD. It takes LATEST."""
    return typer.Argument(help=f"{help} Or {LATEST}, the newest.", metavar=metavar, callback=_with_latest)


def _with_latest(given: Any) -> Any:
    """What was given, as paths or as texts, with the folder's name for LATEST.

    Raises:
        UsageError: there is none.
    """
    if isinstance(given, (list, tuple)):
        return [_with_latest(each) for each in given]
    name, colon, method = str(given).partition(":")
    if name != LATEST or Path(name).exists() or Path(str(given)).exists():  # a folder that is called so is that folder
        return given
    from specbench.report import newest

    if (found := newest(_LOOKED_THROUGH)) is None:
        *others, last = (f"{folder}/" for folder in _LOOKED_THROUGH)
        raise UsageError(f"no run, sweep or profile in {', '.join(others)} or {last} here; name its folder")
    from specbench.cli import output

    output.stderr().print(f"latest: {found}", soft_wrap=True, markup=False)
    return type(given)(f"{found}{colon}{method}")


def make_plan(
    *,
    method: str | None,
    task: str | None,
    model: str,
    settings: Sequence[str],
    task_settings: Sequence[str],
    temperature: float | None,
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
    attention: str = "auto",
    graphs: str = "auto",
    compile: bool = False,
    simulate: Sequence[str] = (),
    preset: str | None = None,
    head: str | None = None,
    base: str = "none",
    trust_remote_code: bool = False,
    prompt_seed: int | None = None,
    first: bool = False,
    again: bool = False,
    expand: Callable[[Sequence[str], Sequence[str]], tuple[Method, ...]] | None = None,
) -> Plan:
    """A plan from command-line values; every mistake is found before torch is imported.

    Args:
        base: what the model was made from, "none", or "auto": what an adapter is laid on.
        prompt_seed, first: as :func:`drawn_by` takes them; a preset may set the latter.
        expand: makes the methods from names and settings; default is a row for each name.

    Raises:
        UsageError: an unknown name or a bad option.
    """
    from specbench.models import names
    from specbench.runner import Plan
    from specbench.runner.plan import (
        base_row,
        plan_attention,
        plan_graphs,
        plan_methods,
        plan_sampling,
        plan_simulated,
        plan_tasks,
    )

    chosen, more, said = _by_alias(model, method, settings, head)
    lines = [said] if said else []
    if preset is not None:
        chosen_preset, task_settings, line = _by_preset(
            preset,
            {
                "task": task,
                "max_new_tokens": max_new_tokens,
                "temperature": temperature,
                "limit": limit,
                "first": first or (None if prompt_seed is None else False),  # whoever names a seed wants a draw
            },
            task_settings,
        )
        task, max_new_tokens = chosen_preset["task"], chosen_preset["max_new_tokens"]
        temperature, limit, first = (chosen_preset[name] for name in ("temperature", "limit", "first"))
        lines.append(line)
    tasks = _some("--task", task or DEFAULT_TASK)
    asks = _by_prompt_style(model, tasks, task_settings)
    if asks:
        lines.append(f"{model} sets {' '.join(f'--task-set {setting}' for setting in asks)}")
    task_settings = [*task_settings, *asks]
    methods = (expand or plan_methods)(chosen, [*settings, *more])
    for each in methods:
        each.check(model)
    base_model = names.base_of(model) if base == "auto" else None if base == "none" else base
    if base_model is not None:
        names.resolve(base_model)
        methods = (methods[0], base_row(), *methods[1:])
    return Plan(
        methods=methods,
        tasks=plan_tasks(tasks, [*task_settings, *_by_data_file(tasks, task_settings, data_file)]),
        model=model,
        base=base_model,
        dtype=dtype,
        device=device,
        revision=revision,
        sampling=plan_sampling(temperature or 0.0, top_k, top_p, seed),
        max_new_tokens=max_new_tokens,
        limit=limit,
        prompt_seed=drawn_by(limit, prompt_seed, bool(first)),
        repeats=repeats,
        concurrency=concurrency,
        data_dir=data_dir,
        out=out,
        attention=plan_attention(attention),
        graphs=plan_graphs(graphs),
        compile=compile,
        trace=trace,
        simulated=plan_simulated(methods, simulate),
        said=tuple(lines),
        trust_remote_code=trust_remote_code,
        again=again,
    )


def _by_alias(
    model: str, method: str | None, settings: Sequence[str], head: str | None = None
) -> tuple[list[str], list[str], str]:
    """What ``--head`` stands for, and what ``--model`` decides where the user did not.

    Returns:
        The methods, the settings to add to the user's, and the line that says so: the user could have typed it.
    """
    from specbench.models import names
    from specbench.results import BASELINE
    from specbench.runner.plan import default_settings, settings_of_all

    source = names.resolve(model)
    alias = names.aliases().get(model, {})
    own = alias.get("method")
    flags = []
    if method is None:
        method = f"{BASELINE},{own}" if own else DEFAULT_METHODS
        flags += [f"--method {method}"] if own else []
    methods = _some("--method", method)
    heads = settings_of_all(methods, "head", head) if head is not None else []
    defaults = {**alias.get("suits", {}), **({own: alias.get("options", {})} if own else {})}
    more = [
        setting
        for name, options in defaults.items()
        if name == own or name in methods
        for setting in default_settings(methods, [*settings, *heads], name, options)
    ]
    flags += [f"--set {setting}" for setting in more]
    parts = [" ".join(flags)] if flags else []
    parts += [f"chat template {source.template}"] if source.template else []
    parts += [f"tokenizer of {source.tokenizer}"] if source.tokenizer else []
    return methods, [*heads, *more], f"{model} sets {', '.join(parts)}" if parts else ""


def _by_prompt_style(model: str, tasks: Sequence[str], settings: Sequence[str]) -> list[str]:
    """The options with which a checkpoint's tasks are asked as it was trained, as ``--task-set`` would take them.

    What the user or a preset has set, of a task, stays.
    """
    from specbench.models import names

    taken = {setting.partition("=")[0] for setting in settings}
    asks = names.aliases().get(model, {}).get("asks", {})
    wanted = [f"{task}.{option}={value}" for task in tasks for option, value in asks.get(task, {}).items()]
    return [setting for setting in wanted if setting.partition("=")[0] not in taken]


def _by_preset(name: str, given: dict[str, Any], settings: Sequence[str]) -> tuple[dict[str, Any], list[str], str]:
    """What ``--preset`` decides where the user did not.

    Args:
        name: of the preset.
        given: task, max_new_tokens, temperature, limit and first as the user gave them; None where he did not.
        settings: the user's ``--task-set``.

    Returns:
        ``given`` and ``settings`` with the preset's beside them, and the line that says what it set.
    """
    from specbench.runner.presets import preset

    chosen = preset(name)
    if given["task"] not in (None, chosen.task):
        raise UsageError(f"--preset {name} is of task {chosen.task}, not {given['task']}; leave --task out")
    mine = {field: getattr(chosen, field) for field in given if given[field] is None and getattr(chosen, field)}
    taken = {setting.partition("=")[0] for setting in settings}
    more = [f"{chosen.task}.{k}={v}" for k, v in chosen.options.items() if f"{chosen.task}.{k}" not in taken]
    named = {f"--{field.replace('_', '-')}": value for field, value in mine.items()}
    flags = [flag if value is True else f"{flag} {value}" for flag, value in named.items()]
    said = " ".join([*flags, *(f"--task-set {setting}" for setting in more)])
    return {**given, **mine}, [*settings, *more], f"{name} sets {said}"


def drawn_by(limit: int | None, prompt_seed: int | None, first: bool) -> int | None:
    """The seed by which ``--limit`` draws; None takes the first of the data.

    Raises:
        UsageError: ``--first`` without what it is of, or beside a seed.
    """
    if first and prompt_seed is not None:
        raise UsageError(
            "--first takes prompts in the order of the data, by no seed; leave one of --first, --prompt-seed out"
        )
    if first and limit is None:
        raise UsageError("--first says which prompts --limit takes; give --limit N, or leave --first out for all")
    return None if first else prompt_seed or 0


def _by_data_file(tasks: Sequence[str], settings: Sequence[str], file: Path | None) -> list[str]:
    """The settings that ``--data-file`` stands for, for the tasks whose ``task.toml`` says that they take one."""
    from specbench.common import registry

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
    """Says what the model's alias set, imports torch and loads the model.

    Raises:
        EnvironmentRefused: ``--graphs on`` without a CUDA device.
    """
    assert_graphs(plan.graphs, plan.device)
    for line in plan.said:
        notes.print(line, soft_wrap=True, markup=False)
    notes.print(f"loading {plan.model} …")
    from specbench.models import load

    return load(
        plan.model,
        dtype=plan.dtype,
        device=plan.device,
        revision=plan.revision,
        trust_remote_code=plan.trust_remote_code,
    )


def load_base(plan: Plan, loaded: LoadedModel, notes: Console) -> LoadedModel | None:
    """Loads what the model was made from, in its precision; None where the plan has none.

    Raises:
        UsageError: it writes text in other tokens, so that its answers are to other prompts.
    """
    if plan.base is None:
        return None
    notes.print(f"loading {plan.base}, which {plan.model} was made from …", soft_wrap=True, markup=False)
    from specbench.models import load

    base = load(plan.base, dtype=loaded.spec.dtype, device=plan.device, trust_remote_code=plan.trust_remote_code)
    sample = "def f(x):  # 3 quick brown foxes, naïve\n\treturn x ** 2\n"
    alike = base.tokenizer(sample)["input_ids"] == loaded.tokenizer(sample)["input_ids"]
    if base.vocab_size != loaded.vocab_size or not alike:
        raise UsageError(f"{plan.base} has other tokens than {plan.model}, so it was not made from it; use --base none")
    return base


def assert_graphs(graphs: str, device: str) -> None:
    """``--graphs on`` is refused on a CPU before minutes are spent on loading a model.

    Raises:
        EnvironmentRefused: no CUDA device.
    """
    if graphs != "on":
        return
    import torch

    if device == "cpu" or not torch.cuda.is_available():
        raise EnvironmentRefused("CUDA graphs need a CUDA device; use --graphs auto")


def assert_answers(run: Mapping[str, Any]) -> None:
    """Refuses to judge what a lottery wrote; ``run`` is the content of ``run.json``."""
    if run.get("simulated"):
        raise UsageError("acceptance was simulated in this run, so its text answers nothing; run it without")


def other_gpu(name: str | None, profile: Path | None) -> Gpu | None:
    """``--project``: the GPU of that name.

    Raises:
        UsageError: no such GPU is known, or there is a profile and nothing to project onto.
    """
    from specbench.hardware import gpus

    if name is None and profile is not None:
        raise UsageError("--profile has the step times for --project; name the GPU with --project GPU")
    return None if name is None else gpus.find(name)


def assert_gpu(wanted: str) -> None:
    """``--gpu NAME``: refuses to run on any other device.

    Raises:
        UsageError: no such GPU is known.
        EnvironmentRefused: another device is present.
    """
    from specbench.hardware import gpus

    if wanted == "auto":
        return
    asked, names = gpus.find(wanted), gpus.seen()
    if names is not None and asked not in [gpus.identify(name, None) for name in names]:
        gpus.require(wanted, names[0] if names else None, None)
    try:
        import torch
    except ImportError as error:
        raise EnvironmentRefused("torch is not installed; pip install specbench-llm brings it") from error
    if torch.cuda.is_available():
        gpus.require(wanted, torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory)
    else:
        gpus.require(wanted, None, None)
