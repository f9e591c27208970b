"""Fine-tune the target itself (a LoRA adapter or all weights) so that more of a method's guesses are accepted."""

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
from specbench.training.loop.stopping import Evaluation, stop_reason
from specbench.training.loop.trainer import Course, Done, fit, in_bf16
from specbench.training.objectives.distillation import DistillationLesson
from specbench.training.objectives.frozen import Frozen, LabelOptions
from specbench.training.recipe import EVALUATION_OPTIONS, FREE, Job, WeightOptions, digest

_BEFORE = "before.json"


@dataclass(frozen=True)
class Teaching:
    """Parts of a fine-tuning that the method provides.

    Attributes:
        lesson: (model, frozen) -> a module called as ``lesson(**batch)`` that returns ``loss``, and figures to show;
            ``frozen`` is the target before training if the option ``labels`` is ``target``, else None.
        collator: texts -> batch; its attribute ``visit`` is set to the number of passes over the texts so far.
        size: tokens of a text in a batch.
        decoding: options of the method with which held-out prompts are decoded.
    """

    method: str
    lesson: Callable[[Any, Frozen | None], nn.Module]
    collator: Any
    size: Callable[[Any], int]
    decoding: Mapping[str, Any]


def finetune(teaching: Teaching, options: WeightOptions, job: Job) -> Mapping[str, Any]:
    """Train, and leave ``adapter`` or ``checkpoint`` in ``job.out``, which ``--model`` loads.

    Raises:
        UsageError: there are no texts, the texts come from another tokenizer, the loss is not finite, or ``job.out``
            holds a training with other options.
    """
    _check(job, options)
    _claim(teaching, options, job)
    loaded = job.target
    base = fingerprints(loaded.model)
    before = _before(teaching, job)
    half = in_bf16(options, loaded.model.device)
    loaded.model.set_attn_implementation(_attention(options, loaded.model.device, half))
    asked = _distils(options) or _labels(options)
    copied = copy.deepcopy(loaded.model) if options.full and asked else None  # the weights before training
    weights = Weights(loaded.model, options, job.model, job.seed, half)
    course, own = _course(teaching, options, job, weights, copied)

    def look(texts: Sequence[Any]) -> Held:
        with weights.as_decoded() as model:
            held = _held(teaching, job, model, texts)
        with weights.as_before() as target:
            return held.rated(target)

    def glance() -> Evaluation:
        found = look(job.held_out[: options.watched])
        return Evaluation(found.figures(), found.line())

    ends = partial(stop_reason, options) if options.may_end else None
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
    # Batches of own answers have other lengths and also go through the target, so the first step's operations cannot
    # be extrapolated to the others.
    return done.cost.model_copy(update={"tokens_seen": own.tokens_seen(done.steps, teaching.size), "flops": None})


def _curve(done: Done, own: OnPolicy | None, teaching: Teaching) -> list[dict[str, Any]]:
    if own is None:
        return [dict(point) for point in done.curve]
    return [{**point, "tokens_seen": own.tokens_seen(point["step"], teaching.size)} for point in done.curve]


def _course(
    teaching: Teaching, options: WeightOptions, job: Job, weights: Weights, copied: Any
) -> tuple[Course, OnPolicy | None]:
    """Return the course, and the on-policy answers where a share of the batches consists of them."""

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


def _attention(options: WeightOptions, device: torch.device, half: bool) -> str:
    if options.attention != "auto":
        return options.attention
    # In bfloat16, sdpa's CPU kernels take twice as long. FlexAttention is not chosen: transformers compiles it anew for
    # every size of a batch, and after eight sizes runs it uncompiled (339 tokens per second on an H200).
    return "eager" if half and device.type == "cpu" else "sdpa"


def _check(job: Job, options: WeightOptions) -> None:
    """Refuse a job without texts, a stopping rule without held-out prompts, and texts of another tokenizer."""
    if not job.texts:
        raise UsageError("cannot train: there is no text to learn from; give more prompts, or longer answers")
    if options.may_end and not job.held_out:
        raise UsageError(
            "cannot apply max_loops or max_unlikely: they need held-out prompts, and there are none; give --held-out 16"
        )
    highest = max(max((*text.prompt, *text.answer)) for text in (*job.texts, *job.held_out))
    if highest >= job.target.vocab_size:
        raise UsageError(
            f"cannot train {job.model} on these texts: they have token id {highest} and its vocabulary ends at "
            f"{job.target.vocab_size - 1}, so they come from another tokenizer; let this model make the answers"
        )


def _claim(teaching: Teaching, options: WeightOptions, job: Job) -> None:
    """Reserve the folder for a training with these options, texts, model and seed."""
    texts = {"texts": digest(job.texts), "trajectories": job.about.get("trajectories")}
    about = {**texts, "model": job.target.spec.fingerprint, "seed": job.seed}
    free = FREE - EVALUATION_OPTIONS if options.may_end else FREE
    settings = {**options.model_dump(mode="json", exclude=set(free)), **about}
    defaults = {name: field.default for name, field in type(options).model_fields.items()}
    checkpoints.claim(job.out, settings, f"weights for {teaching.method}", later=defaults)


def _before(teaching: Teaching, job: Job) -> dict[str, Any] | None:
    """Return held-out figures of the target before training; a resumed training reads them from its folder."""
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


_KEPT = torch.bfloat16  # precision of saved adapters, as of most published ones


class Weights:
    """The target in training: trained parameters are in float32 and have gradients, the other parameters have none.

    Args:
        model: a transformers causal LM without any gradient; it is changed.
        base: the value of ``--model``, written into the adapter as its base model.
        half: matrix products are in bfloat16. Frozen parameters are then converted once, instead of in every forward.
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
        """Yield the transformers model with the training so far merged into its weights.

        Afterwards the weights are restored bit by bit: subtracting an adapter's part again would not be exact, and a
        training with more evaluations would end with other weights.
        """
        if self._full:
            yield self.model
        else:
            with self._without_adapter(learnt=True) as model:
                yield model

    @contextmanager
    def as_before(self) -> Iterator[Any]:
        """Yield the transformers model as it was before training, or None where all its weights are trained."""
        if self._full:
            yield None
        else:
            with self._without_adapter(learnt=False) as model:
                yield model

    @contextmanager
    def _without_adapter(self, *, learnt: bool) -> Iterator[Any]:
        """Yield the model in its own precision; with ``learnt``, the adapter is merged into its weights."""
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
        """Round the trained parameters to the precision in which they are saved, so that figures hold for the file."""
        kept = self._dtype if self._full else _KEPT
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(kept).to(parameter.dtype)

    def keep(self, folder: Path, tokenizer: Any) -> None:
        """Write an adapter in bfloat16, or a checkpoint in the target's own precision, which ``--model`` loads."""
        if not self._full:
            kept = {name: value.to(_KEPT) for name, value in self.model.state_dict().items() if "lora_" in name}
            self.model.save_pretrained(str(folder), state_dict=kept, save_embedding_layers=False)
            return
        self.model.to(self._dtype).save_pretrained(folder)
        if hasattr(tokenizer, "save_pretrained"):
            tokenizer.save_pretrained(folder)


def _adapted(model: Any, options: WeightOptions, seed: int) -> Any:
    """Return the model with a new LoRA adapter around its layers, initialised from the seed."""
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
        warnings.simplefilter("ignore", FutureWarning)  # PEFT uses a name that transformers deprecates
        try:
            return get_peft_model(model, config)
        except ValueError as error:
            reason = " ".join(str(error).split())[:160]
            raise UsageError(
                f"cannot put an adapter on lora_targets={names}: {reason}; name layers of this model, or all-linear"
            ) from error
