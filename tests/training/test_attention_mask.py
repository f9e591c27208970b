"""The one rule of who sees whom, against the table of the facts it is made from, pair by pair."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specbench.training.objectives.attention_mask import AttentionMask
from specbench.training.objectives.packing import Packed, Sample, pack

P, T, N = 3, 4, 3


def full(blocks: int = T, n: int = N) -> Packed:
    answer = list(range(blocks * n))
    return pack([Sample([7] * P, answer, [answer], n)])


def place(column: int) -> tuple[str, int, int]:
    """(stream, block, offset) of a column: kⱼ starts at P + 2 j n, lⱼ at P + (2 j + 1) n."""
    if column < P:
        return "prompt", -1, column
    part, offset = divmod(column - P, N)
    return "kl"[part % 2], part // 2, offset


def table(query: int, key: int, window: int | None) -> bool:
    """The rows of the table, word by word; with a window also those of its two variants."""
    asks, j, t = place(query)
    shown, i, s = place(key)
    if asks == "prompt":
        return shown == "prompt" and s <= t
    if shown == "prompt":
        return True
    if asks == "l":
        return shown == "l" and (i < j or (i == j and s <= t))
    together = window is None or i // window == j // window
    if shown == "k":
        return (i < j and together) or (i == j and s <= t)
    return i < j and not together


@pytest.mark.parametrize("window", [None, 1, 2, 3, T], ids=["noise", "clean", "two", "three", "all"])
def test_the_mask_is_the_table(window: int | None) -> None:
    packed = full()
    assert packed.ids.shape[1] == P + 2 * T * N
    columns = range(packed.ids.shape[1])
    expected = [[table(q, k, window) for k in columns] for q in columns]
    assert AttentionMask(packed, window).dense()[0, 0].tolist() == expected
    # Clean context and noisy context are the two ends of the window.
    assert AttentionMask(packed, window).dense().equal(AttentionMask(packed).dense()) == (window in (None, T))


def several() -> Packed:
    texts = [
        Sample([1, 2], list(range(7)), [list(range(7))], 3),
        Sample([3] * 4, list(range(4)), [list(range(4)), list(range(4))], 2),
        Sample([5], [6], [[7]], 3),
    ]
    return pack(texts, length=40, multiple=8)


def test_samples_of_one_sequence_see_nothing_of_each_other() -> None:
    packed = several()
    assert len(packed.ids) == 1
    sample, positions = packed.sample[0], packed.positions[0]
    for window in (None, 1, 2):
        dense = AttentionMask(packed, window).dense()[0, 0]
        assert not dense[sample[:, None] != sample].any()
        assert dense[sample < 0].sum(1).eq(1).all()  # what fills up sees itself
        assert dense.diagonal().all()
    # A sliding layer reaches back by positions.
    near = positions[:, None] - positions < 3
    assert AttentionMask(packed, None, reach=3).dense()[0, 0].equal(AttentionMask(packed).dense()[0, 0] & near)


def test_noisy_streams_do_not_see_each_other() -> None:
    packed = pack([Sample([1], [2, 3, 4, 5], [[2, 3, 4, 5], [2, 3, 4, 5]], 2)])
    dense, stream = AttentionMask(packed, 1).dense()[0, 0], packed.stream[0]
    assert not dense[stream == 2][:, stream == 3].any()
    assert not dense[stream == 3][:, stream == 2].any()
    # Each sees exactly what it would see alone.
    alone = pack([Sample([1], [2, 3, 4, 5], [[2, 3, 4, 5]], 2)])
    for number in (2, 3):
        kept = (stream < 2) | (stream == number)
        assert dense[kept][:, kept].equal(AttentionMask(alone, 1).dense()[0, 0])


@pytest.mark.parametrize(("make", "window"), [(full, None), (several, 1), (several, 2)])
def test_flex_attention_gets_the_same_mask_and_the_same_result(make: Any, window: int | None) -> None:
    from torch.nn.attention.flex_attention import create_mask, flex_attention

    packed = make()
    sight = AttentionMask(packed, window)
    dense, blocks = sight.dense(), sight.blocks()
    columns = packed.ids.shape[1]
    assert create_mask(blocks.mask_mod, len(packed.ids), 1, columns, columns, device="cpu").equal(dense)
    torch.manual_seed(0)
    query, key, value = torch.randn(3, len(packed.ids), 2, columns, 16)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, dense)
    torch.testing.assert_close(flex_attention(query, key, value, block_mask=blocks), expected, rtol=1e-5, atol=1e-5)
