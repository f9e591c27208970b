"""Training a head: forward KL to the frozen target on blocks of the target's own answers (JetSpec; SpecForge, NeMo).

JetSpec published no training code. What is known of its recipe: causal block of 16, forward KL, learning rate 3e-4, six
epochs, no weights by offset. Blocks and anchors are those of SpecForge's DFlash trainer, the loss is NeMo's.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from specbench.errors import UsageError
from specbench.methods.jetspec.config import HeadConfig, build_target_layer_ids
from specbench.methods.jetspec.head import DraftHead
from specbench.methods.jetspec.learning.held_out import held_out
from specbench.methods.jetspec.learning.lesson import Lesson
from specbench.methods.jetspec.learning.start import start_from_target
from specbench.options import Options as BaseOptions
from specbench.options import option
from specbench.training.recipe import Job, Text, digest
from specbench.training.repetition import without_circles

_KEPT = torch.bfloat16  # as published heads are
# What may be different when a training goes on.
_FREE = {"log_every", "eval_every", "save_every"}


class Options(BaseOptions):
    """Options of the recipe."""

    layers: int = option(5, help="of the head", ge=1)
    taps: int | None = option(None, help="layers of the target that it reads; default is as many as it has", ge=1)
    block_size: int = option(16, help="rows of a block, the anchor included", ge=2)
    causal: bool = option(True, help="a row sees those before it (JetSpec), not all of its block (DFlash)")
    draft_vocab: int = option(0, help="tokens that can be drafted: the most frequent of the answers; 0 is all", ge=0)
    mask_token: int | None = option(None, help="id that fills a block; default is the last row of the embedding", ge=0)
    start: Literal["target", "random"] = option("target", help="first weights: the target's last layers, or noise")
    epochs: float = option(6.0, help="passes over the texts", gt=0)
    steps: int = option(0, help="steps in place of epochs; 0 is by epochs", ge=0)
    batch: int = option(4, help="texts of a step, on each device", ge=1)
    anchors: int = option(512, help="blocks of a text that a step learns from, at most", ge=1)
    max_tokens: int = option(3072, help="tokens of a text, prompt included; longer answers are cut", ge=8)
    lr: float = option(3e-4, help="learning rate, after warm-up and before its cosine", gt=0)
    warmup: float = option(0.04, help="share of the steps", ge=0, le=1)
    weight_decay: float = option(0.0, help="of AdamW", ge=0)
    clip: float = option(1.0, help="largest norm of the gradient", gt=0)
    gamma: float = option(0.0, help="offset k weighs exp(-(k-1)/gamma); 0 weighs all alike", ge=0)
    keep_circles: int = option(3, help="rounds that stay of an answer that repeats itself to its end; 0 is all", ge=0)
    bf16: bool | None = option(None, help="products in bfloat16; default is on CUDA, and on CPUs that have it")
    log_every: int = option(10, help="steps", ge=1)
    eval_every: int = option(200, help="steps between looks at held-out texts", ge=1)
    save_every: int = option(200, help="steps between checkpoints", ge=1)


def train(options: Options, job: Job) -> Mapping[str, Any]:
    """Trains a head, or goes on from the last checkpoint in ``job.out``; the head is left in ``job.out/head``.

    Raises:
        UsageError: no text has an answer of two tokens, or ``job.out`` holds a head in training with other options.
    """
    texts = [text for text in map(_cut(options), without_circles(job.texts, options.keep_circles)) if _teaches(text)]
    if not texts:
        raise UsageError("no answer has two tokens to learn from; raise --max-new-tokens or give other prompts")
    _same_options(options, job)
    model = job.target.model
    head = _new_head(options, job, texts)
    lesson = Lesson(head, model, anchors=options.anchors, gamma=options.gamma)
    checkpoints = job.out / "checkpoints"
    trainer = _HeadTrainer(
        model=lesson,
        args=_arguments(options, job, str(checkpoints), model.device),
        train_dataset=_Rows(texts),
        eval_dataset=_Rows(job.held_out),
        data_collator=_collate,
        callbacks=[_Says(job)],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.job = job
    # One process is one device; several are torchrun's or accelerate's, not torch's threads.
    trainer.args._n_gpu = min(1, trainer.args.n_gpu)
    last = get_last_checkpoint(str(checkpoints)) if checkpoints.is_dir() else None
    if last:
        job.say(f"going on from {last}")
    done = trainer.train(resume_from_checkpoint=last)
    for parameter in head.parameters():  # what is measured is what is kept
        parameter.data = parameter.data.to(_KEPT).to(parameter.dtype)
    found = trainer.evaluate()
    head.save(job.out / "head", dtype=_KEPT)
    return {
        "texts": len(texts),
        "answer_tokens": sum(len(text.answer) for text in texts),
        "steps": done.global_step,
        "epochs": round(trainer.state.epoch or 0.0, 3),
        "loss": round(_last(trainer.state.log_history, "loss"), 4),
        "agrees": round(_last(trainer.state.log_history, "agrees"), 4),
        "parameters": sum(p.numel() for p in head.parameters()),
        "held_out_texts": len(job.held_out),
        "held_out_accepted_length": found["eval_accepted_length"],
        "held_out_depths": found["eval_depths"],
    }


def _new_head(options: Options, job: Job, texts: Sequence[Text]) -> DraftHead:
    model = job.target.model
    vocabulary = job.target.vocab_size
    size = options.draft_vocab if 0 < options.draft_vocab < vocabulary else 0
    config = HeadConfig.for_target(
        model.config,
        mask_token_id=vocabulary - 1 if options.mask_token is None else options.mask_token,
        block_size=options.block_size,
        layers=options.layers,
        causal=options.causal,
        target_layer_ids=build_target_layer_ids(model.config.get_text_config().num_hidden_layers, options.taps)
        if options.taps
        else None,
        draft_vocab_size=size,
    )
    head = DraftHead.random(config, device=model.device, seed=job.seed)
    if size:
        head.set_draft_ids(most_frequent(texts, size, vocabulary))
    if options.start == "target":
        text = [*texts[0].prompt, *texts[0].answer]
        start_from_target(head, model, torch.tensor([text], device=model.device))
    return head


def most_frequent(texts: Sequence[Text], size: int, vocabulary: int) -> Tensor:
    """The tokens that answers use most, then those of prompts, then the lowest: ascending ids, int64 [size]."""
    used: Counter[int] = Counter()
    asked: Counter[int] = Counter()
    for text in texts:
        used.update(text.answer)
        asked.update(text.prompt)
    order = sorted(range(vocabulary), key=lambda token: (-used[token], -asked[token], token))
    return torch.tensor(sorted(order[:size]))


def _cut(options: Options) -> Any:
    return lambda text: Text(text.id, text.prompt, text.answer[: max(0, options.max_tokens - len(text.prompt))])


def _teaches(text: Text) -> bool:
    return len(text.answer) >= 2


def _same_options(options: Options, job: Job) -> None:
    """A checkpoint goes with the options that it was made with."""
    path = job.out / "options.json"
    mine = {**options.model_dump(mode="json", exclude=_FREE), "seed": job.seed, "texts": digest(job.texts)}
    if path.exists():
        theirs = json.loads(path.read_text(encoding="utf-8"))
        other = sorted(name for name in mine if theirs.get(name) != mine[name])
        if other:
            raise UsageError(f"{job.out} has a head in training with another {', '.join(other)}; give another --out")
    job.out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(mine, indent=2) + "\n", encoding="utf-8")


def _arguments(options: Options, job: Job, folder: str, device: torch.device) -> TrainingArguments:
    bf16 = options.bf16
    if bf16 is None:
        # Where it is emulated it costs more than it saves.
        on_cpu = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
        bf16 = torch.cuda.is_bf16_supported() if device.type == "cuda" else on_cpu()
    return TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=options.batch,
        num_train_epochs=options.epochs,
        max_steps=options.steps or -1,
        learning_rate=options.lr,
        lr_scheduler_type="cosine",
        warmup_steps=options.warmup,  # below 1 it is a share
        weight_decay=options.weight_decay,
        max_grad_norm=options.clip,
        bf16=bool(bf16),
        use_cpu=device.type == "cpu",
        logging_steps=options.log_every,
        eval_strategy="steps" if job.held_out else "no",
        eval_steps=options.eval_every,
        save_steps=options.save_every,
        save_total_limit=2,
        seed=job.seed,
        report_to=[],
        label_names=[],
        remove_unused_columns=False,
        disable_tqdm=True,
    )


class _Rows(torch.utils.data.Dataset[Text]):
    def __init__(self, texts: Sequence[Text]) -> None:
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> Text:
        return self._texts[index]


def _collate(texts: Sequence[Text]) -> dict[str, Tensor]:
    """Texts side by side, filled up at their ends, where nothing looks."""
    ids = [torch.tensor([*text.prompt, *text.answer]) for text in texts]
    return {
        "ids": torch.nn.utils.rnn.pad_sequence(ids, batch_first=True),
        "starts": torch.tensor([len(text.prompt) for text in texts]),
        "ends": torch.tensor([len(one) for one in ids]),
    }


class _HeadTrainer(Trainer):
    """transformers' loop, with what held-out texts say in place of its evaluation."""

    job: Job
    control: Any

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        found = model(**inputs)
        self._agrees = float(found["agrees"])
        return found["loss"]

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            logs["agrees"] = self._agrees
        super().log(logs, *args, **kwargs)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, Any]:
        lesson: Lesson = self.accelerator.unwrap_model(self.model)
        with self.compute_loss_context_manager():
            found = held_out(lesson, self.job.held_out, self.job.target.model.device)
        metrics: Any = {"eval_accepted_length": round(found.accepted_length, 4), "eval_depths": list(found.depths)}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


class _Says(TrainerCallback):
    """Lines for the user."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        control.should_log = control.should_log or state.global_step == state.max_steps
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        where = f"step {state.global_step}/{state.max_steps}"
        if logs and "loss" in logs:
            self._job.say(
                f"{where}  loss {logs['loss']:.3f}  agrees {logs['agrees']:.3f}  lr {logs['learning_rate']:.1e}"
            )
        elif logs and "eval_accepted_length" in logs:
            depths = " ".join(f"{share:.2f}" for share in logs["eval_depths"])
            self._job.say(f"{where}  held out: accepted length {logs['eval_accepted_length']:.2f}, by depth {depths}")


def _last(history: Sequence[Mapping[str, Any]], name: str) -> float:
    return next((float(row[name]) for row in reversed(history) if name in row), float("nan"))
