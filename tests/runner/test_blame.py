"""Blame: who watches a run reads whose requests it decodes, and no later fault is blamed on an earlier call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support import decoders
from support.wording import wording

from specbench.common import heartbeat
from specbench.common.errors import PluginFault


def test_it_says_whose_requests_it_decodes_while_it_does() -> None:
    runner = decoders.runner(decoders.ToyEngine(decoders.Clock(), slots=1))
    for label in ("mine", "other#2"):
        method = decoders.toy(label=label)
        for _ in runner.segment(method, [decoders.request(1, 3), decoders.request(2, 3)]):
            assert (heartbeat.read().who, heartbeat.read().row) == (method.who, label)
        assert heartbeat.read().row == ""


def test_what_fails_before_a_method_is_called_is_not_blamed_on_the_call_that_failed_before() -> None:
    failing: Any = SimpleNamespace(reset=lambda: None, peak=lambda: 0)
    runner = decoders.runner(decoders.ToyEngine(decoders.Clock(), slots=1), memory=failing)

    class Bad(decoders.Decoder):
        def draft(self) -> Any:
            raise ValueError("no luck")

    with pytest.raises(PluginFault, check=wording):
        list(runner.segment(decoders.toy(decoder=Bad), [decoders.request(1, 3)]))

    def lost() -> None:
        raise OSError("the meter is gone")

    failing.reset = lost
    with pytest.raises(OSError, check=wording):
        list(runner.segment(decoders.toy(), [decoders.request(1, 3)]))


def test_it_beats_with_every_forward() -> None:
    """By this who watches tells a long run from one that is stuck."""
    beats = []
    for budget in (5, 9):
        runner, before = decoders.runner(decoders.ToyEngine(decoders.Clock(), slots=1)), heartbeat.read().beats
        list(runner.segment(decoders.toy(), [decoders.request(1, budget)]))
        beats.append(heartbeat.read().beats - before)
    assert beats[1] - beats[0] == 9 - 5
    assert beats[0] >= 5
