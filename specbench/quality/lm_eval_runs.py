"""Evaluate models with lm-eval, one after the other, and write a file for each."""

from __future__ import annotations

import gc
import hashlib
import importlib.metadata
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.analysis import UNVERIFIED, GroupQuality, Metric, Quality, TaskQuality, read_quality
from specbench.common import SpecbenchError, UsageError, check_writable, one_line, safe_name, write_json_atomic
from specbench.evals import refusal
from specbench.models import LoadedModel
from specbench.quality.quality_plan import QualityPlan, is_file
from specbench.quality.tasks import find_tasks, quiet
from specbench.runner import load_model

_LARGEST = 1e15  # largest value of a document that is stored


@dataclass(frozen=True)
class Measured:
    """A model's results and their file."""

    quality: Quality
    file: Path


def measure_quality(plan: QualityPlan, say: Callable[[str], None]) -> list[Measured]:
    """Evaluate each model of a plan and write its results; results files among the models are only read."""
    plan.check()
    read = {model: read_quality(Path(model)) for model in plan.models if is_file(model)}
    manager = None
    if len(read) < len(set(plan.models)):
        check_writable(plan.out)
        try:
            import lm_eval  # noqa: F401  # fail early if it is missing
        except ModuleNotFoundError as error:
            raise refusal("specbench quality", "lm-eval") from error
        say("loading the tasks …")
        manager = find_tasks(plan.names, plan.include)
    found = {model: Measured(quality, Path(model)) for model, quality in read.items()}
    for model in plan.models:
        if model in found:  # a results file, or a repeated model
            continue
        loaded = load_model(plan.of(model), say)
        quality = ask(loaded, plan, manager, say)
        del loaded
        gc.collect()  # free the memory for the next model
        file = plan.out / file_name(quality)
        write_json_atomic(file, quality.model_dump(mode="json"))
        found[model] = Measured(quality, file)
    return [found[model] for model in plan.models]


def file_name(quality: Quality) -> str:
    """Return the name of the results file: from the model, its weights, and the tasks with their settings."""
    tasks = [[task.task, task.shots, task.documents_hash] for task in quality.tasks]
    about = [quality.limit, quality.chat, tasks, *([quality.max_length] if quality.max_length else [])]
    asked = hashlib.sha256(json.dumps(about).encode()).hexdigest()
    return f"{safe_name(quality.model.name)}-{quality.model.fingerprint[:8]}-{asked[:8]}.json"


def ask(loaded: LoadedModel, plan: QualityPlan, manager: Any, say: Callable[[str], None]) -> Quality:
    """Evaluate a model with lm-eval's runner; raise a UsageError if a task cannot be run on it."""
    if plan.chat and not loaded.has_chat_template:
        raise UsageError(f"cannot use --chat with {loaded.spec.name}: it has no chat template; remove --chat")
    if plan.max_length and loaded.context and plan.max_length > loaded.context:
        raise UsageError(
            f"cannot use --max-length {plan.max_length}: the context of {loaded.spec.name} has {loaded.context} "
            "tokens; lower it"
        )
    import lm_eval

    from specbench.quality.engine_lm import EngineLM

    asked = EngineLM(loaded, say, plan.max_length, plan.concurrency)
    try:
        with quiet():
            found = lm_eval.simple_evaluate(
                model=asked,
                tasks=plan.names,
                num_fewshot=plan.shots,
                limit=plan.limit,
                apply_chat_template=plan.chat,
                task_manager=manager,
                log_samples=True,
            )
    except (SpecbenchError, MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:  # code in a task's file may raise any error
        if type(error).__name__ == "OutOfMemoryError":
            raise
        reason = one_line(str(error), 160) or type(error).__name__
        names = ", ".join(plan.names)
        raise UsageError(f"cannot evaluate {names} with lm-eval: {reason}; correct the task's file") from error
    assert found is not None, "lm-eval returns None only in further processes"
    return Quality(
        model=loaded.spec,
        lm_eval=importlib.metadata.version("lm-eval"),
        limit=plan.limit,
        chat=plan.chat,
        max_length=plan.max_length,
        dated=loaded.now.isoformat() if plan.chat and loaded.asks_time else None,
        tasks=[_task(name, found) for name in sorted(found["samples"])],
        groups=[
            GroupQuality(group=name, metrics=_metrics(values, {}, found["higher_is_better"].get(name, {})))
            for name, values in sorted(found.get("groups", {}).items())
        ],
    )


def _task(name: str, found: Mapping[str, Any]) -> TaskQuality:
    config, samples = found["configs"][name], found["samples"][name]
    filters = list(dict.fromkeys(sample["filter"] for sample in samples))
    answered = {kind: [sample for sample in samples if sample["filter"] == kind] for kind in filters}
    first = answered[filters[0]]
    kwargs = config.get("dataset_kwargs") or {}
    return TaskQuality(
        task=name,
        version=str(found["versions"][name]),
        shots=int(found["n-shot"][name]),
        documents=len(first),
        of=int(found["n-samples"][name]["original"]),
        data=_data(config),
        revision=str(kwargs.get("revision") or UNVERIFIED),
        documents_hash=_sum(sample["doc_hash"] for sample in first),
        task_hash=_sum(s["doc_hash"] + s["prompt_hash"] + s["target_hash"] for s in samples),
        metrics=_metrics(found["results"][name], answered, found["higher_is_better"].get(name, {})),
    )


def _data(config: Mapping[str, Any]) -> str:
    """Return the data set's name; of a local file or folder only its own name."""
    path = str(config.get("dataset_path") or "the task's own")
    place = Path(path)
    shown = place.name if place.is_absolute() or place.exists() else path
    name = config.get("dataset_name")
    return f"{shown}/{name}" if name else shown


def _metrics(
    values: Mapping[str, Any], answered: Mapping[str, Sequence[Mapping[str, Any]]], better: Mapping[str, Any]
) -> list[Metric]:
    """Parse lm-eval's metrics, which it writes as ``acc,none`` and ``acc_stderr,none``."""
    made = []
    for key, value in values.items():
        name, comma, kind = key.partition(",")
        if not comma or name.endswith("_stderr"):
            continue
        items, weights = _items([sample.get(name) for sample in answered.get(kind, ())])
        made.append(
            Metric(
                metric=name,
                filter=kind,
                value=_number(value),
                stderr=_number(values.get(f"{name}_stderr,{kind}")),
                higher_is_better=better.get(name),
                items=items,
                weights=weights,
            )
        )
    return made


def _items(found: Sequence[Any]) -> tuple[list[float] | None, list[float] | None]:
    """Return the documents' values, and their weights if they are (value, weight) pairs; None for other types."""
    if not found:
        return None, None
    values = [_figure(each) for each in found]
    if all(value is not None for value in values):
        return [value for value in values if value is not None], None
    if all(isinstance(each, (tuple, list)) and len(each) == 2 for each in found):
        pairs = [(_figure(value), _figure(weight)) for value, weight in found]
        if all(value is not None and weight is not None for value, weight in pairs):
            return [value or 0.0 for value, _ in pairs], [weight or 0.0 for _, weight in pairs]
    return None, None


def _number(value: Any) -> float | None:
    """Return a finite number, or None for anything else, such as lm-eval's "N/A"."""
    try:
        found = None if isinstance(value, (str, tuple, list)) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if found is not None and math.isfinite(found) else None


def _figure(value: Any) -> float | None:
    """Return a document's value, or None if it is not finite or too large for sums."""
    found = _number(value)
    return found if found is not None and abs(found) <= _LARGEST else None


def _sum(hashes: Any) -> str:
    """Combine hashes of documents as lm-eval does."""
    return hashlib.sha256("".join(hashes).encode("utf-8")).hexdigest()
