"""What is measured first, and what a model or a memory does not allow."""

from __future__ import annotations

import pytest
from support.wording import wording

from specbench.common.errors import EnvironmentRefused
from specbench.engine import scratch_cells
from specbench.hardware.roofline import AttentionLayers, ModelShape
from specbench.hardware.stored_profile import Settings
from specbench.profiling.step_grid import Cell, ranked, within

SHAPE = ModelShape(
    matmul=1, head=1, embedding=0, embedding_width=1, tied=True, small=0,
    attention=(AttentionLayers(layers=1, query_heads=1, kv_heads=1, key_size=5, value_size=5),),
    weight_bytes=2, cache_bytes=1,
)  # fmt: skip
TOKEN = 10  # bytes
PLENTY = 1 << 40


def test_the_curve_over_rows_comes_first_then_contexts_then_slots_then_the_rest() -> None:
    cells = ranked((1, 2, 16), (128, 512, 2048), (1, 4))
    assert cells[:3] == [Cell(1, 512), Cell(2, 512), Cell(16, 512)]
    assert set(cells[3:7]) == {Cell(rows, context) for rows in (1, 16) for context in (128, 2048)}
    assert cells[7:9] == [Cell(1, 512, 4), Cell(16, 512, 4)]
    assert set(cells[9:]) == {Cell(2, 128), Cell(2, 2048)}
    assert len(set(cells)) == len(cells) == 3 * 3 + 2


def test_positions_bound_contexts_and_rows() -> None:
    cells, left_out = within(Settings(), SHAPE, 8192, PLENTY)
    assert max(cell.context for cell in cells) == 8192 - 512 - 1
    assert max(cell.context + cell.rows for cell in cells) < 8192
    assert left_out == []
    cells, left_out = within(Settings(), SHAPE, 128, PLENTY)
    assert max(cell.rows for cell in cells) == 64
    assert [(one.rows, one.why) for one in left_out] == [(rows, "model") for rows in (96, 128, 192, 256, 384, 512)]


def test_rows_whose_masks_have_no_room_are_left_out() -> None:
    asked = Settings(rows=(1, 512, 4096, 65536), contexts=(100,), slots=(1,))
    cells, left_out = within(asked, SHAPE, None, 3 << 30)  # 65,536 rows by rows take 60 GB
    assert [cell.rows for cell in cells] == [1, 512, 4096]
    assert [(one.rows, one.why) for one in left_out] == [(65536, "memory")]
    assert within(asked, SHAPE, None, 300 << 30)[1] == []
    assert within(asked, SHAPE, None, 180 << 30, dense=False)[1] == []  # without masks of rows by cells
    assert within(asked, SHAPE, None, 180 << 30)[1] != []


def test_what_does_not_fit_in_memory_is_left_out_and_named() -> None:
    asked = Settings(rows=(1, 16), contexts=(100, 9000), slots=(1, 2, 4))
    room = 3 * TOKEN * (9000 + scratch_cells(16))  # a third of it holds one slot of the long context
    assert within(asked, SHAPE, None, room)[1] == []
    cells, left_out = within(asked, SHAPE, None, room - 3)
    assert {cell.context for cell in cells} == {100}
    assert {(one.rows, one.context, one.why) for one in left_out} == {(1, 9000, "memory"), (16, 9000, "memory")}
    _, left_out = within(asked, SHAPE, None, 3 * TOKEN * 2 * (100 + scratch_cells(16)))  # two slots, not four
    assert {(one.context, one.slots) for one in left_out} == {(9000, 1), (100, 4)}
    with pytest.raises(EnvironmentRefused, check=wording):
        within(asked, SHAPE, None, 3 * TOKEN)
