"""A request that does not say which turn it is: it is the first, and its record says so."""

from __future__ import annotations

from support import decoders

from specbench.results.schema import request_key


def test_it_is_the_first_turn_of_the_first_repeat() -> None:
    (record,) = decoders.runner(decoders.ToyEngine(decoders.Clock())).segment(decoders.toy(), [decoders.request(1, 3)])
    assert (record.turn, record.repeat, record.segment) == (1, 0, 0)
    assert record.request_id == request_key("toy", "p01", 0, 1)
