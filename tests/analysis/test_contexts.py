"""Figures by the length of the prompt, against the prompts of each bin alone."""

from __future__ import annotations

import pytest
from support.runs import record

from specbench.analysis.context.prompt_lengths import by_context, context_bins
from specbench.analysis.speedup import Key
from specbench.results import PHASES, RequestRecord


def test_bins_double_from_128_tokens() -> None:
    assert context_bins([1, 128]) == [128]
    assert context_bins([129, 256, 257, 1024, 1025]) == [256, 512, 1024, 2048]


def request(label: str, at: int, length: int, seconds: float, forwards: int) -> RequestRecord:
    phases = {phase: [0.001 * (number + 1)] * forwards for number, phase in enumerate(PHASES)}
    return record(label, f"p{at}@{length}", tokens=13, forwards=forwards, decode_s=seconds).model_copy(
        update={"prompt_tokens": length, "phases_s": phases}
    )


def test_each_bin_has_its_own_figures() -> None:
    ar: dict[Key, RequestRecord] = {}
    mine: dict[Key, RequestRecord] = {}
    for at in range(8):
        for length, speedup in ((200, 2.0), (900, 1.5)):
            seconds = 1.0 + 0.01 * at
            for side, each in ((ar, request("ar", at, length, seconds, 12)),
                               (mine, request("pld", at, length, seconds / speedup, 6))):  # fmt: skip
                side[each.prompt_id, 0, 1] = each
    short, long = by_context(ar, mine, False)
    assert (short.end, short.prompts, short.prompt_tokens, short.tokens_per_forward) == (256, 8, 200, 2.0)
    assert (long.end, long.prompt_tokens) == (1024, 900)
    for found, speedup in ((short, 2.0), (long, 1.5)):
        assert found.speedup is not None
        assert found.speedup.value == pytest.approx(speedup)
        assert found.speedup.interval is not None
        assert found.step_s == pytest.approx(sum(1.0 + 0.01 * at for at in range(8)) / speedup / 48)
        assert found.draft_s == pytest.approx(0.001 + 0.006)
        assert found.verify_s == pytest.approx(0.002 + 0.003 + 0.004 + 0.005)
    assert by_context(ar, {key: each for key, each in mine.items() if each.prompt_tokens == 200}, False) == []
