"""A step's loss of packed texts, its parts, and whom its gradient reaches."""

from __future__ import annotations

from functools import partial

import torch
from support.models import tiny_llama
from torch import Tensor

from specbench.training.objectives.consistency import ConsistencyLesson
from specbench.training.objectives.losses import progressive_consistency
from specbench.training.objectives.packing import CLEAN, NOISY, Sample, pack

TEXTS = [
    Sample([3, 4, 5], [6, 7, 8, 9, 10, 11, 12], [[6, 9, 9, 9, 10, 12, 12]], 4),
    Sample([5], [8, 9, 10], [[8, 7, 10]], 4),
]


def test_the_loss_is_its_parts() -> None:
    model = tiny_llama(20)
    batch = pack(TEXTS).tensors()
    made = partial(ConsistencyLesson, model, progressive_consistency, window=None)
    alone, both = made(ar_weight=0)(**batch), made(ar_weight=10)(**batch)
    torch.testing.assert_close(alone["loss"], alone["consistency"])
    torch.testing.assert_close(both["loss"], both["consistency"] + 10 * both["autoregressive"])
    expected = []
    for text in TEXTS:
        ids = torch.tensor([[*text.prompt, *text.answer]])
        logits = model(ids).logits[0, len(text.prompt) - 1 : -1]
        expected.append(torch.nn.functional.cross_entropy(logits, torch.tensor(text.answer), reduction="sum"))
    torch.testing.assert_close(both["autoregressive"], torch.stack(expected).sum().detach() / 10)


def gradients(lesson: ConsistencyLesson, batch: dict[str, Tensor]) -> Tensor:
    """By column: the size of the loss's gradient by the token's embedding."""
    kept: list[Tensor] = []

    def keep(_: object, __: object, output: Tensor) -> Tensor:
        kept.append(output.detach().requires_grad_())
        return kept[-1]

    handle = lesson.model.get_input_embeddings().register_forward_hook(keep)
    lesson(**batch)["loss"].backward()
    handle.remove()
    assert kept[-1].grad is not None
    return kept[-1].grad.abs().sum(-1)


def test_the_teaching_stream_gets_no_gradient() -> None:
    """Noisy blocks that see noisy blocks depend on no clean token but through the teacher."""
    packed = pack(TEXTS)
    lesson = ConsistencyLesson(tiny_llama(20), progressive_consistency, window=None, ar_weight=0)
    found = gradients(lesson, packed.tensors())
    assert found[packed.stream == CLEAN].eq(0).all()
    assert found[(packed.stream == NOISY) & (packed.sample == 0)][1:3].ne(0).all()
    with_text = ConsistencyLesson(tiny_llama(20), progressive_consistency, window=None, ar_weight=1)
    assert gradients(with_text, packed.tensors())[packed.stream == CLEAN].ne(0).any()


def test_what_fills_a_sequence_up_changes_nothing() -> None:
    lesson = ConsistencyLesson(tiny_llama(20), progressive_consistency, window=None, ar_weight=1, include_prompt=True)
    together = lesson(**pack(TEXTS, length=64).tensors())
    for filling in (1, 32):
        for name, value in lesson(**pack(TEXTS, multiple=filling).tensors()).items():
            torch.testing.assert_close(value, together[name], msg=name)
