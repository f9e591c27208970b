"""Fine-tuning of the target itself, a LoRA adapter or all weights, so that a method finds more of its guesses right."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from specbench.common import UsageError, read_json_object, validate, write_json_atomic
from specbench.models import fingerprints
from specbench.training.card import write_card
from specbench.training.evaluation.held_out import Figures, Held, held_out, method_of
from specbench.training.loop import checkpoints
from specbench.training.loop.cost import Cost
from specbench.training.loop.on_policy import OnPolicy, OnPolicyOptions
from specbench.training.loop.order import Batches
from specbench.training.loop.stopping import Look, unsound
from specbench.training.loop.trainer import Course, Done, fit, in_bf16
from specbench.training.objectives.distillation import DistillationLesson
from specbench.training.objectives.frozen import Frozen, LabelOptions
from specbench.training.recipe import FREE, LOOKS, Job, WeightOptions, digest

_BEFORE = "before.json"


@dataclass(frozen=True)
class Teaching:
    """What a method brings to its training.

    Attributes:
        lesson: (model, frozen) -> a module called as ``lesson(**batch)`` that returns ``loss``, and figures to show;
            ``frozen`` is the target before training where ``labels`` ask for it, else None.
        collator: texts -> batch; told by its attribute ``visit`` how often the texts were gone through before.
    """

    method: str
    lesson: Callable[[Any, Frozen | None], nn.Module]
    collator: Any
    masked: bool
    size: Callable[[Any], int]
    decoding: Mapping[str, Any]


def finetune(teaching: Teaching, options: WeightOptions, job: Job) -> Mapping[str, Any]:
    """Trains, and leaves ``adapter`` or ``checkpoint`` in ``job.out``, which ``--model`` loads.

    Raises:
        UsageError: there is nothing to learn from, texts are another tokenizer's, the loss is not finite, or
            ``job.out`` holds a training with other options.
    """
    _check(job, options)
    _claim(teaching, options, job)
    loaded = job.target
    base = fingerprints(loaded.model)
    before = _before(teaching, job)
    half = in_bf16(options, loaded.model.device)
    loaded.model.set_attn_implementation(_attention(teaching, options, loaded.model.device, half))
    asked = _distils(options) or _labels(options)
    copied = copy.deepcopy(loaded.model) if options.full and asked else None  # as it is before it learns
    weights = Weights(loaded.model, options, job.model, job.seed, half)
    course, own = _course(teaching, options, job, weights, copied)

    def look(texts: Sequence[Any]) -> Held:
        with weights.as_decoded() as model:
            held = _held(teaching, job, model, texts)
        with weights.as_before() as target:
            return held.rated(target)

    def glance() -> Look:
        found = look(job.held_out[: options.watched])
        return Look(found.figures(), found.line())

    ends = partial(unsound, options) if options.may_end else None
    done = fit(replace(course, look=glance if job.held_out else None, ends=ends), options, job)
    weights.settle()
    after = look(job.held_out) if job.held_out else None
    if after:
        job.say(f"held out, all {after.prompts}: {after.line()}")
    made = {
        **job.about,
        "method": teaching.method,
        "model": job.model,
        "texts": len(job.texts),
        "answer_tokens": done.answer_tokens,
        "steps": done.steps,
        "visits": done.visits,
        **(own.figures(done.steps) if own else {}),
        **{name: round(value, 4) for name, value in done.last.items() if name in ("loss", "agrees", "accuracy")},
        "cost": _cost(done, own, teaching).model_dump(mode="json", exclude_none=True),
        "curve": _curve(done, own, teaching),
        **({"ended": done.ended} if done.ended else {}),
        "decoding": dict(teaching.decoding),
        "before": before,
        "after": after.figures() if after else None,
        "options": options.model_dump(mode="json"),
        **({} if options.full else {"base_fingerprints": base}),
    }
    folder = job.out / ("checkpoint" if options.full else "adapter")
    if PartialState().is_main_process:

        def write(draft: Path) -> None:
            weights.keep(draft, loaded.tokenizer)
            write_card(draft, made)

        checkpoints.leave_weights(folder, write)
    return {**made, "weights": str(folder)}


def _distils(options: WeightOptions) -> OnPolicyOptions | None:
    return options if isinstance(options, OnPolicyOptions) and options.on_policy else None


def _labels(options: WeightOptions) -> bool:
    return isinstance(options, LabelOptions) and options.labels == "target"


def _cost(done: Done, own: OnPolicy | None, teaching: Teaching) -> Cost:
    if own is None:
        return done.cost
    # Batches of own answers are of other lengths, and go through the target too: no step stands for the others.
    return done.cost.model_copy(update={"tokens_seen": own.tokens_seen(done.steps, teaching.size), "flops": None})


def _curve(done: Done, own: OnPolicy | None, teaching: Teaching) -> list[dict[str, Any]]:
    if own is None:
        return [dict(point) for point in done.curve]
    return [{**point, "tokens_seen": own.tokens_seen(point["step"], teaching.size)} for point in done.curve]


def _course(
    teaching: Teaching, options: WeightOptions, job: Job, weights: Weights, copied: Any
) -> tuple[Course, OnPolicy | None]:
    """What is gone through, and where a share of it is the model's own answers, those."""

    def collate(visit: int, texts: Sequence[Any]) -> Any:
        teaching.collator.visit = visit
        return teaching.collator(texts)

    frozen = Frozen(weights.as_before, copied)
    lesson = teaching.lesson(weights.model, frozen if _labels(options) else None)
    distils = _distils(options)
    if distils is None:
        return Course(lesson, job.texts, collate, teaching.size), None
    own = OnPolicy(distils, job, Batches(job.texts, teaching.size, options, job.seed), weights.as_decoded)
    both = DistillationLesson(lesson, weights.model, frozen, own.texts, distils.measure)
    return Course(both, job.texts, own.collating(collate), teaching.size, before_step=own.before_step), own


def _attention(teaching: Teaching, options: WeightOptions, device: torch.device, half: bool) -> str:
    if options.attention != "auto":
        return options.attention
    if device.type == "cuda":
        return "flex_attention" if teaching.masked else "sdpa"
    return "eager" if half else "sdpa"  # in bfloat16, sdpa's CPU kernels take twice as long


def _check(job: Job, options: WeightOptions) -> None:
    """Refuses what cannot be learnt: nothing, a rule without prompts to look at, texts of another tokenizer.

    Those have ids that this model does not know, or never means.
    """
    if not job.texts:
        raise UsageError("there is no text to learn from; give more prompts, or longer answers")
    if options.may_end and not job.held_out:
        raise UsageError("max_loops and max_unlikely look at held-out prompts, and there are none; give --held-out 16")
    highest = max(max((*text.prompt, *text.answer)) for text in (*job.texts, *job.held_out))
    if highest >= job.target.vocab_size:
        raise UsageError(
            f"the texts have token {highest}, and {job.model} has only {job.target.vocab_size}: they are another "
            "tokenizer's; ask this model"
        )


def _claim(teaching: Teaching, options: WeightOptions, job: Job) -> None:
    """Takes the folder for this training: its options, texts, model and seed."""
    texts = {"texts": digest(job.texts), "trajectories": job.about.get("trajectories")}
    about = {**texts, "model": job.target.spec.fingerprint, "seed": job.seed}
    free = FREE - LOOKS if options.may_end else FREE
    settings = {**options.model_dump(mode="json", exclude=set(free)), **about}
    defaults = {name: field.default for name, field in type(options).model_fields.items()}
    checkpoints.claim(job.out, settings, f"a {teaching.method}", later=defaults)


def _before(teaching: Teaching, job: Job) -> dict[str, Any] | None:
    """Held-out figures of the untouched target; from the first call where this one goes on."""
    if not job.held_out:
        return None
    path: Path = job.out / _BEFORE
    if path.exists():
        todo = "delete it to measure anew"
        return validate(Figures, read_json_object(path, todo), path, todo).model_dump(exclude_none=True)
    held = _held(teaching, job, job.target.model, job.held_out).rated(job.target.model)
    job.say(f"held out before training, all {held.prompts}: {held.line()}")
    write_json_atomic(path, held.figures())
    return held.figures()


def _held(teaching: Teaching, job: Job, model: Any, texts: Sequence[Any]) -> Held:
    held = held_out(job.target, model, method_of(teaching.method, teaching.decoding), texts, job.seed, job.score)
    return replace(held, given="given" in job.about)


_KEPT = torch.bfloat16  # of an adapter, as most published ones are


class Weights:
    """The target in training: what learns has a gradient and is in float32, everything else has none.

    Args:
        model: a transformers causal LM without any gradient; it is changed.
        base: what ``--model`` called it, so that the adapter finds it again.
        half: products are in bfloat16, so what does not learn may be too: it is then not rounded anew in every forward.
    """

    def __init__(self, model: Any, options: WeightOptions, base: str, seed: int, half: bool = False) -> None:
        self._dtype: torch.dtype = model.dtype
        self._full = options.full
        self._exact: list[tuple[nn.Parameter, Tensor]] = []
        if options.activation_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        if options.full:
            self.model: Any = model.float().requires_grad_(True)
            return
        self.model = _adapted(model, options, seed)
        self.model.peft_config["default"].base_model_name_or_path = base
        if half:
            for parameter in self.model.parameters():
                if not parameter.requires_grad:
                    self._exact.append((parameter, parameter.data))
                    parameter.data = parameter.data.to(torch.bfloat16)

    @contextmanager
    def as_decoded(self) -> Iterator[Any]:
        """The transformers model with what was learnt so far in its weights, for as long as this lasts.

        Afterwards the weights are what they were, bit by bit: subtracting an adapter's part again would not be exact,
        and a training that is looked at more often would end elsewhere.
        """
        if self._full:
            yield self.model
        else:
            with self._without_adapter(learnt=True) as model:
                yield model

    @contextmanager
    def as_before(self) -> Iterator[Any]:
        """The transformers model without what was learnt, within the ``with``; None where all its weights learn."""
        if self._full:
            yield None
        else:
            with self._without_adapter(learnt=False) as model:
                yield model

    @contextmanager
    def _without_adapter(self, *, learnt: bool) -> Iterator[Any]:
        """The model in its own precision, and where it is ``learnt``, with the adapter's part in its weights."""
        own = []

        def put(parameter: Any, value: Tensor) -> None:
            own.append((parameter, parameter.data))
            parameter.data = value

        try:
            with torch.no_grad(), self.model.disable_adapter():
                for parameter, exact in self._exact:
                    put(parameter, exact)
                adapted: list[Any] = [layer for layer in self.model.modules() if isinstance(layer, LoraLayer)]
                for layer in adapted if learnt else ():
                    weight = layer.get_base_layer().weight
                    put(weight, weight.data + layer.get_delta_weight("default").to(weight.dtype))
                yield self.model.get_base_model()
        finally:
            for parameter, before in reversed(own):
                parameter.data = before

    def settle(self) -> None:
        """Rounds what was learnt to what is kept of it, so that what is measured is what is kept."""
        kept = self._dtype if self._full else _KEPT
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(kept).to(parameter.dtype)

    def keep(self, folder: Path, tokenizer: Any) -> None:
        """Writes what ``--model`` loads: an adapter in bfloat16, or a checkpoint in the target's own precision."""
        if not self._full:
            kept = {name: value.to(_KEPT) for name, value in self.model.state_dict().items() if "lora_" in name}
            self.model.save_pretrained(str(folder), state_dict=kept, save_embedding_layers=False)
            return
        self.model.to(self._dtype).save_pretrained(folder)
        if hasattr(tokenizer, "save_pretrained"):
            tokenizer.save_pretrained(folder)


def _adapted(model: Any, options: WeightOptions, seed: int) -> Any:
    """The model with a LoRA adapter around its layers, which the seed alone decides."""
    names = options.lora_targets
    config = LoraConfig(
        r=options.lora_rank,
        lora_alpha=options.lora_alpha,  # type: ignore[arg-type]  # a float divides as well
        lora_dropout=options.lora_dropout,
        target_modules=names if names == "all-linear" else names.split("+"),
        task_type="CAUSAL_LM",
    )
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
        torch.manual_seed(seed)
        warnings.simplefilter("ignore", FutureWarning)  # PEFT asks transformers by a name that it will lose
        try:
            return get_peft_model(model, config)
        except ValueError as error:
            reason = " ".join(str(error).split())[:160]
            raise UsageError(f"lora_targets={names} does not go with this model: {reason}") from error
