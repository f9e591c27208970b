"""Forwards that an engine does not tell: a method has no tokens per forward then, whatever its shortest answers are."""

from __future__ import annotations

import pytest
from support import decoders

from specbench.analysis.figures import method_figures


def test_uncounted_forwards_make_no_figure() -> None:
    runner = decoders.runner(decoders.ToyEngine(decoders.Clock(), fixed=1_000))
    long, short = runner.segment(decoders.toy(), [decoders.request(1, 4), decoders.request(2, 1)])
    assert (long.decoded_tokens, short.decoded_tokens) == (3, 0)
    assert method_figures([long, short]).tokens_per_forward_with_prefill == pytest.approx(5 / 5)
    # Of the prefill, and there was nothing to count.
    assert method_figures([short]).tokens_per_forward_with_prefill == 1
    untold = long.model_copy(update={"target_forwards": 0})
    assert method_figures([untold, short]).tokens_per_forward_with_prefill is None
    assert method_figures([untold]).tokens_per_forward_with_prefill is None
