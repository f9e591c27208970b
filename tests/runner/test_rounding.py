"""Rounding: times of steps and of their phases are kept to a tenth of a microsecond, no finer and no coarser."""

from __future__ import annotations

from support import decoders


def test_times_are_kept_to_a_tenth_of_a_microsecond() -> None:
    clock = decoders.Clock()
    engine = decoders.ToyEngine(clock, fixed=1_000_260)
    engine.costs = {"build": 1_340, "accept": 40, "commit": 60}
    (record,) = decoders.runner(engine, trace=True).segment(decoders.toy(), [decoders.request(1, 3)])
    assert record.phases_s is not None
    assert {phase: steps[0] for phase, steps in record.phases_s.items()} == {
        "draft": 0.0, "build": 1.3e-6, "forward": 0.0010003, "accept": 0.0, "commit": 1e-7, "observe": 0.0,
    }  # fmt: skip
    assert record.step_s == [0.0010017] * 2
