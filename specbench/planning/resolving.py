"""Look up the methods and tasks that a plan names, and apply the settings of its model alias and preset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specbench.backends import Row, is_row
from specbench.common import UsageError, registry
from specbench.decoding import Method
from specbench.models import names
from specbench.planning.auto_size import auto_tree_size
from specbench.planning.load import Arrivals, plan_load
from specbench.planning.methods import (
    Settings,
    assign_labels,
    base_row,
    default_settings,
    make_methods,
    merged,
    parse_settings,
    plan_rows,
    plan_simulated,
    settings_of_all,
    written,
)
from specbench.planning.plan import DEFAULT_METHODS, DEFAULT_TASK, Plan, split_names
from specbench.planning.presets import preset
from specbench.planning.tasks import TaskPlan, file_settings, plan_tasks, prompt_style
from specbench.results import BASE, BASELINE, MethodSpec, SamplingSpec, SimulatedAcceptance


@dataclass(frozen=True)
class Resolved:
    """A plan whose names have been looked up.

    Attributes:
        plan: the plan with the settings of alias and preset written out; resolving it again changes nothing.
        base: base model of the run's model; AR of it is an additional row, :data:`BASE`.
        simulated: method label -> simulated acceptance.
        arrivals: when requests arrive under load; None for a closed loop.
        notes: what an alias and a preset set of all this, a line each for the user.
        warnings: those of the notes that a user should see without asking.
    """

    plan: Plan
    methods: tuple[Method, ...]
    tasks: tuple[TaskPlan, ...]
    rows: tuple[Row, ...] = ()
    base: str | None = None
    simulated: Mapping[str, SimulatedAcceptance] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    arrivals: Arrivals | None = None

    @property
    def passes(self) -> int:
        """How often each method decodes each prompt: once per repeat and rate."""
        return self.plan.repeats * (len(self.arrivals.load.points) if self.arrivals else 1)

    @property
    def sampling(self) -> SamplingSpec:
        """How tokens are chosen."""
        return self.plan.sampling

    @property
    def max_rows(self) -> int:
        """Number of rows of the largest tree of any method."""
        return max(method.max_rows for method in self.methods)

    @property
    def everyone(self) -> tuple[Method | Row, ...]:
        """The methods, then the rows of other engines."""
        return (*self.methods, *self.rows)

    def specs(self) -> list[MethodSpec]:
        """Return the methods and rows as they are recorded."""
        methods = [
            MethodSpec(
                label=m.label,
                name=m.name,
                options=m.options.model_dump(mode="json"),
                lossless=m.lossless,
                measures=dict(m.measures),
                weights={"model": self.base} if m.label == BASE and self.base else dict(m.weights),
                own_noise=m.own_noise,
                stateful=m.stateful,
            )
            for m in self.methods
        ]
        return [*methods, *(row.spec() for row in self.rows)]


#: Function that makes the methods from their labels and settings.
Expand = Callable[[Mapping[str, str], Settings], tuple[Method, ...]]


def resolve(plan: Plan, expand: Expand = make_methods, *, by_machine: bool = False) -> Resolved:
    """Look up the names of a plan. Every mistake in it is reported here, before torch is imported.

    ``expand`` makes the methods (default: a row for each name); ``by_machine`` chooses tree sizes from the stored
    profile, see :mod:`specbench.planning.auto_size`.
    """
    plan, notes = _by_preset(plan)
    _ = plan.drawn_by  # raises the error for a bad combination of --first and --prompt-seed
    chosen, labels, given, added, note = _by_alias(plan)
    notes = [note, *notes] if note else notes
    tasks = _some("--task", DEFAULT_TASK if plan.task is None else plan.task)
    asks = prompt_style(plan.model, tasks, plan.task_settings)
    if asks:
        notes.append(f"{plan.model} sets {' '.join(f'--task-set {setting}' for setting in asks)}")
    rows = plan_rows(labels, given, plan.backend_url)
    _check_rows(plan, rows, expand)
    if plan.grammar and plan.simulate:
        raise UsageError("cannot simulate acceptance under --grammar: random tokens break it; remove one of them")
    own = {label: name for label, name in labels.items() if not is_row(name)}
    bounds, why = auto_tree_size(plan, own, given) if by_machine else ({}, [])
    warnings = [*_untrained(plan.model, [*own.values()])]
    notes += [*warnings, *why]
    settings, task_settings = (*plan.settings, *added, *written(bounds)), (*plan.task_settings, *asks)
    methods = expand(own, merged(given, bounds))
    for each in methods:
        each.check(plan.model)
    _check_fills(plan, methods)
    arrivals = plan_load(plan)
    if arrivals and plan.keep_prefix:
        raise UsageError("cannot keep prefixes under load, where turns arrive apart; remove --keep-prefix or --rate")
    base = names.base_of(plan.model) if plan.base == "auto" else None if plan.base == "none" else plan.base
    if base is not None:
        names.resolve(base)
        methods = (methods[0], base_row(), *methods[1:])
    decided = {
        "method": ",".join(chosen),
        "task": ",".join(tasks),
        "settings": settings,
        "head": None,  # now part of the settings
        "task_settings": task_settings,
        "base": base or "none",
    }
    return Resolved(
        plan.model_copy(update=decided),
        methods,
        plan_tasks(tasks, [*task_settings, *file_settings(tasks, task_settings, plan.data_file)], plan.data_dir),
        rows,
        base,
        plan_simulated(methods, plan.simulate),
        tuple(notes),
        tuple(warnings),
        arrivals,
    )


def _check_fills(plan: Plan, methods: Sequence[Method]) -> None:
    """Raise UsageError for options that methods which fill masked blocks do not support."""
    label = next((method.label for method in methods if method.fills), None)
    if label is None:
        return
    if processors := plan.sampling.processors:
        flags = " ".join(f"--{name.replace('_', '-')}" for name in processors)
        raise UsageError(f"{label} cannot use {flags}: it fills gaps in a text; remove it or the method")
    if plan.keep_prefix:
        raise UsageError(f"{label} reads every prompt from its start; remove --keep-prefix or the method")


def _check_rows(plan: Plan, rows: Sequence[Row], expand: Expand) -> None:
    """Raise UsageError if rows of other engines cannot be part of this plan."""
    if not rows:
        return
    first = rows[0].label
    if expand is not make_methods:
        raise UsageError(
            f"{first} is a row of another engine, which this command does not support; remove it or use specbench run"
        )
    if processors := plan.sampling.processors:
        flags = " ".join(f"--{name.replace('_', '-')}" for name in processors)
        raise UsageError(f"{first} cannot use {flags}: other engines do not get it; remove it or the row")
    alone = next((row.label for row in rows if not row.backend.answers_several), None)
    if alone and (plan.concurrency > 1 or plan.loaded):
        flag = "--concurrency" if plan.concurrency > 1 else "--rate"
        raise UsageError(f"{alone} answers one request at a time; remove {flag} or the row")
    if plan.keep_prefix:
        raise UsageError(f"{first} has its own prefix cache; remove --keep-prefix or the row")
    if plan.simulate:
        raise UsageError(f"{first} cannot simulate acceptance; remove --simulate-acceptance or the row")
    if plan.dtype in ("int8", "packed"):
        raise UsageError(f"{first} cannot use our {plan.dtype} weights; set --dtype float32 or remove the row")
    if plan.quantize:
        raise UsageError(f"{first} cannot use weights of --quantize {plan.quantize}; remove it or the row")


def _by_alias(plan: Plan) -> tuple[list[str], dict[str, str], Settings, list[str], str]:
    """Apply ``--head`` and the settings of the model's alias, or trained folder, that the user did not set.

    Return the methods as named, their labels, all settings, the settings that the user did not write, and a note on
    them.
    """
    source = names.resolve(plan.model)
    own, options = names.trained(plan.model)
    suits, method = names.aliases().get(plan.model, {}).get("suits", {}), plan.method
    flags = []
    if method is None:
        method = f"{BASELINE},{own}" if own else DEFAULT_METHODS
        flags += [f"--method {method}"] if own else []
    methods = _some("--method", method)
    labels = assign_labels(methods)
    heads = settings_of_all(labels, "head", plan.head) if plan.head is not None else []
    given = parse_settings(labels, [*plan.settings, *heads])
    defaults = {**suits, **({own: options} if own else {})}
    more: Settings = {}
    for name, sets in defaults.items():
        if name == own or name in methods:
            more |= default_settings(labels, given, name, sets)
    flags += [f"--set {setting}" for setting in written(more)]
    parts = [" ".join(flags)] if flags else []
    parts += [f"chat template {source.template}"] if source.template else []
    parts += [f"tokenizer of {source.tokenizer}"] if source.tokenizer else []
    return (
        methods,
        labels,
        merged(given, more),
        [*heads, *written(more)],
        f"{plan.model} sets {', '.join(parts)}" if parts else "",
    )


def _by_preset(plan: Plan) -> tuple[Plan, list[str]]:
    """Apply the options of ``--preset`` that the user did not set; return the plan and a note on them."""
    if plan.preset is None:
        return plan, []
    chosen = preset(plan.preset)
    if plan.task not in (None, chosen.task):
        raise UsageError(f"--preset {plan.preset} is for task {chosen.task}, not {plan.task}; remove --task")
    given: dict[str, Any] = {
        "task": plan.task,
        "max_new_tokens": plan.max_new_tokens,
        "temperature": plan.temperature,
        "limit": plan.limit,
        "first": plan.first
        or (None if plan.prompt_seed is None else False),  # a user who sets a seed wants random prompts
    }
    mine = {name: getattr(chosen, name) for name in given if given[name] is None and getattr(chosen, name)}
    taken = {setting.partition("=")[0] for setting in plan.task_settings}
    more = [f"{chosen.task}.{k}={v}" for k, v in chosen.options.items() if f"{chosen.task}.{k}" not in taken]
    named = {f"--{name.replace('_', '-')}": value for name, value in mine.items()}
    flags = [flag if value is True else f"{flag} {value}" for flag, value in named.items()]
    line = " ".join([*flags, *(f"--task-set {setting}" for setting in more)])
    decided = {**mine, "preset": None, "task_settings": (*plan.task_settings, *more)}
    return plan.model_copy(update=decided), [f"{plan.preset} sets {line}"]


def _some(flag: str, text: str) -> list[str]:
    found = split_names(text)
    if not found:
        raise UsageError(f"{flag} is empty; see specbench list {flag.removeprefix('--')}s")
    return found


def _untrained(model: str, methods: Sequence[str]) -> Iterator[str]:
    """Yield a warning for each method that needs a model trained for it, if its ``method.toml`` has figures."""
    known = names.aliases()
    mine, _ = names.trained(model)
    for name in dict.fromkeys(methods):
        expected = registry.method(name).info.get("untrained")
        if expected is None or name == mine:
            continue
        line = (
            f"{name}: {model} is not known to be trained for it; without training it gave {expected['gave']} "
            f"({expected['run']})"
        )
        trained = {alias: entry for alias, entry in known.items() if entry.get("method") == name}
        of_model = [alias for alias, entry in trained.items() if entry.get("base") == model]
        shipped = [alias for alias, entry in trained.items() if "adapter" in entry]
        if found := of_model or shipped or list(trained):
            line += f"; trained for it: --model {' or '.join(found)}"
        yield line
