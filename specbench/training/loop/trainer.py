"""The training loop of every recipe: transformers' Trainer with exact resuming and evaluations on held-out texts."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from specbench.common import EnvironmentRefused, SpecbenchError, UsageError
from specbench.training.loop import checkpoints
from specbench.training.loop.cost import Cost, Meter
from specbench.training.loop.narrator import Narrator
from specbench.training.loop.order import Order
from specbench.training.loop.stopping import BestCheckpoint, Evaluations, logged
from specbench.training.loop.stopping import (
    Evaluation as Evaluation,  # recipes with their own evaluation import it from here
)
from specbench.training.recipe import Job, LoopOptions

_WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Course:
    """Lesson, texts and hooks of a training, for :func:`fit`.

    Attributes:
        lesson: called as ``lesson(**batch)``; of its result ``loss`` is minimised and the other figures are printed.
            Its parameters that require a gradient are trained, and checkpoints hold only these.
        collate: (visit, texts) -> batch, where the visit is the number of passes over the texts so far. Must return the
            same batch for the same arguments.
        size: tokens of a text; texts of similar size share a batch.
        look: evaluates on held-out texts, before the first step, every ``eval_every`` steps and after the last one;
            None without held-out texts.
        before_step: hook called with (step, all steps) before each step.
        ends: (figures of the first evaluation, of this one) -> why the training ends here, or empty to continue. It
            then keeps the weights of the evaluation before. None: no stopping rule.
    """

    lesson: nn.Module
    texts: Sequence[Any]
    collate: Callable[[int, Sequence[Any]], dict[str, Tensor]]
    size: Callable[[Any], int]
    look: Callable[[], Evaluation] | None = None
    before_step: Callable[[int, int], None] | None = None
    ends: Callable[[Mapping[str, Any], Mapping[str, Any]], str] | None = None


@dataclass(frozen=True)
class Done:
    """Result of a finished training.

    Attributes:
        steps: number of steps that produced these weights.
        visits: passes over the texts.
        answer_tokens: answer tokens learnt from, counted again in every visit.
        last: last logged value of each figure of a step.
        curve: for each evaluation its ``step``, the ``tokens_seen`` until then and its figures.
        ended: why the training ended before its last step; the weights are then those of the evaluation before. Else
            empty.
    """

    steps: int
    visits: float
    answer_tokens: int
    last: Mapping[str, float]
    cost: Cost
    curve: Sequence[Mapping[str, Any]] = ()
    ended: str = ""


def fit(course: Course, options: LoopOptions, job: Job) -> Done:
    """Train ``course.lesson`` in place, resuming from the last complete checkpoint in ``job.out``.

    A resumed training takes the same steps: order and random choices depend only on seed and visit, and a checkpoint
    has the state of the optimiser and of every random generator.

    Raises:
        UsageError: there are no texts, the loss is not finite, or with a stopping rule the first evaluation of trained
            weights ends the training or would come after the last step.
        EnvironmentRefused: there is not enough memory or disk space. The last complete checkpoint stays.
    """
    if not course.texts:
        raise UsageError("cannot train: there is no text to learn from; give more prompts, or longer answers")
    folder = job.out / "checkpoints"
    trainer = _Trainer(course, options, job, folder)
    last = checkpoints.last_whole(folder)
    if last:
        job.say(f"resuming from {last}")
        with checkpoints.going_on(last):
            state = TrainerState.load_from_json(str(last / TRAINER_STATE_NAME))
            counts = (state.global_step, state.train_batch_size)
            if not all(type(count) is int for count in counts) or not last.name.endswith(f"-{state.global_step}"):
                raise ValueError(f"{TRAINER_STATE_NAME} belongs to another step")
    try:
        trainer.train(resume_from_checkpoint=str(last) if last else None)
    except _Through:
        pass
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not _no_memory(error):
            raise
        raise EnvironmentRefused(
            f"cannot run a step with batch={options.batch}: out of memory ({_kept(folder)}); repeat it with --set "
            "checkpointing=true if the recipe has it, or train into another --out with a lower batch or max_tokens"
        ) from error
    state = trainer.state
    steps, ended = trainer.back_to_the_last_sound_look()
    rows = [row for row in state.log_history if row["step"] <= steps]
    shown = {name: value for row in rows for name, value in row.items() if isinstance(value, float)}
    return Done(
        steps,
        round(max((row.get("epoch") or 0.0 for row in rows), default=0.0), 3),
        trainer.answer_tokens(steps),
        shown,
        trainer.cost(steps, taken=state.global_step),
        trainer.looks().curve(),
        ended,
    )


def _no_memory(error: BaseException) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "not enough memory" in str(error)


def _kept(folder: Path) -> str:
    last = checkpoints.last_whole(folder)
    return f"{last.name} is complete" if last else "no checkpoint was written yet"


class _Through(Exception):
    """Raised in a resumed training that has already taken all its steps or has ended early."""


class _Trainer(Trainer):
    """transformers' Trainer, run on a course."""

    control: Any
    state: Any

    def __init__(self, course: Course, options: LoopOptions, job: Job, folder: Path) -> None:
        self._course, self._job, self._folder = course, job, folder
        self._figures: dict[str, float] = {}
        self._sizes = [course.size(text) for text in course.texts]
        self._order = Order(self._sizes, options.batch, job.seed)
        self._sound = BestCheckpoint(folder)
        self._over: bool | None = None  # whether an evaluation has ended the training; None: not checked yet
        super().__init__(
            model=course.lesson,
            args=_arguments(options, job, folder, looks=course.look is not None),
            train_dataset=_Visited(course.texts),
            eval_dataset=_Visited(()),
            data_collator=self._collate,
        )
        self._meter = Meter(course.lesson, self.args.world_size)
        self.add_callback(self._meter)
        # After the meter, so that the cost of a step includes the course's work before it.
        self.add_callback(Narrator(job, self.answer_tokens, self.evaluate, course.before_step))
        self.remove_callback(PrinterCallback)
        # A lesson's loss is already a mean; Trainer would conclude from **batch that it is a sum.
        self.model_accepts_loss_kwargs = False
        # One device per process; torchrun or accelerate start several processes. Disables torch's DataParallel.
        self.args._n_gpu = min(1, self.args.n_gpu)

    def answer_tokens(self, steps: int) -> int:
        """Return the answer tokens that the first ``steps`` steps learn from."""
        return self._met(steps, [len(text.answer) for text in self._course.texts])

    def cost(self, steps: int, taken: int) -> Cost:
        """Return the cost of the first ``steps`` of ``taken`` steps, assuming that all steps took equally long."""
        found = self._meter.cost(steps, lambda steps: self._met(steps, self._sizes))
        if steps == taken:
            return found
        share, energy = steps / taken, found.energy_j
        return found.model_copy(
            update={"hours": share * found.hours, "energy_j": None if energy is None else share * energy}
        )

    def looks(self) -> Evaluations:
        """Return the evaluations so far."""
        return Evaluations(self.state.log_history, lambda steps: self._met(steps, self._sizes))

    def back_to_the_last_sound_look(self) -> tuple[int, str]:
        """Restore the weights of the evaluation before the one that ended the training, if one did.

        Returns:
            The step of the current weights, and why the training ended early; empty if it did not.
        """
        looks = self.looks()
        if not looks.ended:
            return self.state.global_step, ""
        steps = looks.best_step()
        self._course.lesson.load_state_dict(self._sound.of(steps, self._names()), strict=False)
        return steps, looks.ended

    def _met(self, steps: int, tokens: Sequence[int]) -> int:
        """Return the tokens of the texts in the first ``steps`` steps, counted again in every visit."""
        a_step = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        a_visit = math.ceil(len(tokens) / a_step)
        whole, rest = divmod(steps, a_visit)
        met = self._order.of(whole)[: rest * a_step]
        return whole * sum(tokens) + sum(tokens[at] for at in met)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        if self._over is None:
            self._over = bool(self.looks().ended)
        # Trainer checks this only after a step, so a finished training would take one more step when resumed.
        if self.state.global_step >= self.state.max_steps or self._over:
            raise _Through
        with self._meter.counting(self.state.global_step):
            return super().training_step(*args, **kwargs)

    def _get_train_sampler(self, *_: Any) -> Order:
        return self._order

    def _collate(self, met: Sequence[tuple[int, Any]]) -> dict[str, Tensor]:
        return self._course.collate(met[0][0], [text for _, text in met])

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        found = model(**inputs)
        self._figures = {name: float(value.detach()) for name, value in found.items() if value.numel() == 1}
        if not math.isfinite(self._figures["loss"]):
            raise UsageError(
                f"cannot continue training: the loss of step {self.state.global_step + 1} is {self._figures['loss']} "
                f"({_kept(self._folder)}); train into another --out with a lower lr or clip, or bf16=false"
            )
        return found["loss"]

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            logs.update({name: value for name, value in self._figures.items() if name != "loss"})
        super().log(logs, *args, **kwargs)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, Any]:
        if self._course.look is None:
            return {}
        step = self.state.global_step
        if not step and self._course.ends and self.args.eval_steps >= self.state.max_steps:
            raise UsageError(
                f"cannot apply max_loops or max_unlikely: the first evaluation would come after "
                f"{self.args.eval_steps:g} steps and training has {self.state.max_steps}, so there would be no weights "
                "to return to; lower eval_every"
            )
        found = self._course.look()
        first = next(iter(self.looks().curve()), found.figures)
        ended = self._course.ends(first, found.figures) if self._course.ends else ""
        metrics = logged(found, ended)
        self.log(metrics)
        if self.is_world_process_zero():
            self._job.say(f"step {step}/{self.state.max_steps}  held out: {found.line}")
            if ended:
                self._job.say(f"training ends here: {ended}")
            elif self._course.ends and step:
                self._keep_sound(step)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        if ended:  # save a checkpoint, so that a repeated command does not train on
            self._over = self.control.should_training_stop = self.control.should_save = True
        return dict(metrics)

    def _keep_sound(self, step: int) -> None:
        before = self.looks().curve()[-2]["step"]
        try:
            self._sound.keep(step, self._trained(), before)
        except (OSError, RuntimeError, SafetensorError) as error:
            if _no_memory(error):
                raise
            raise self._unwritable(f"the weights of step {step}", error) from error

    def _names(self) -> set[str]:
        """Return the names of trained parameters; the others are in the target's own files."""
        return {name for name, parameter in self._course.lesson.named_parameters() if parameter.requires_grad}

    def _trained(self, state_dict: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        names = self._names()
        kept = {
            name: value.detach().contiguous()
            for name, value in (state_dict or self._course.lesson.state_dict()).items()
            if name in names
        }
        if not all(bool(value.isfinite().all()) for value in kept.values()):
            raise UsageError(
                f"cannot continue training: its weights are not finite ({_kept(self._folder)}); train into another "
                "--out with a lower lr or clip"
            )
        return kept

    def _save(self, output_dir: str | None = None, state_dict: Mapping[str, Tensor] | None = None) -> None:
        kept, into = self._trained(state_dict), Path(output_dir or self._folder)
        into.mkdir(parents=True, exist_ok=True)
        save_file(kept, into / _WEIGHTS, metadata={"format": "pt"})

    def _unwritable(self, what: str, error: Exception) -> EnvironmentRefused:
        reason = " ".join(str(error).split())[:120]
        return EnvironmentRefused(
            f"cannot write {what} to {self._folder}: {reason} ({_kept(self._folder)}); free disk space and repeat the "
            "command"
        )

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        with checkpoints.going_on(Path(resume_from_checkpoint)):
            found = load_file(Path(resume_from_checkpoint, _WEIGHTS))
            self._course.lesson.load_state_dict(found, strict=False)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with checkpoints.going_on(Path(checkpoint or "")):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with checkpoints.going_on(Path(checkpoint or "")):
            super()._load_rng_state(checkpoint)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        folder = self._folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        try:
            super()._save_checkpoint(*args, **kwargs)
            if self.args.should_save:
                checkpoints.mark_whole(folder)
        except (OSError, RuntimeError, SafetensorError, SpecbenchError) as error:
            shutil.rmtree(folder, ignore_errors=True)  # free its disk space
            if isinstance(error, SpecbenchError) or _no_memory(error):
                raise
            raise self._unwritable(folder.name, error) from error


def in_bf16(options: LoopOptions, device: torch.device) -> bool:
    """Return whether matrix products are in bfloat16; by default if the device supports it without emulation."""
    if options.bf16 is not None:
        return options.bf16
    on_cpu = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    return bool(torch.cuda.is_bf16_supported() if device.type == "cuda" else on_cpu())


def _arguments(options: LoopOptions, job: Job, folder: Path, looks: bool) -> TrainingArguments:
    device: torch.device = job.target.model.device
    return TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=options.batch,
        gradient_accumulation_steps=options.accumulation,
        num_train_epochs=options.epochs,
        max_steps=options.steps or -1,
        learning_rate=options.lr,
        lr_scheduler_type="cosine",
        warmup_steps=options.warmup,  # transformers takes a value below 1 as a share of the steps
        weight_decay=options.weight_decay,
        adam_beta1=options.beta1,
        adam_beta2=options.beta2,
        max_grad_norm=options.clip,
        bf16=in_bf16(options, device),
        use_cpu=device.type == "cpu",
        logging_steps=options.log_every,
        logging_nan_inf_filter=False,
        eval_strategy="steps" if looks else "no",
        eval_steps=options.eval_every,
        save_steps=options.save_every,
        save_total_limit=2,
        seed=job.seed,
        report_to=[],
        label_names=[],
        remove_unused_columns=False,
        disable_tqdm=True,
    )


class _Visited(torch.utils.data.Dataset[tuple[int, Any]]):
    """Dataset of (visit, text), indexed by the (visit, index) pairs of :class:`Order`."""

    def __init__(self, texts: Sequence[Any]) -> None:
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, met: tuple[int, int]) -> tuple[int, Any]:
        visit, index = met
        return visit, self._texts[index]
