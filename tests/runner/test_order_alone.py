"""The order of a run that decodes one sequence at a time: prompts stay in the task's order, whatever they ask for."""

from __future__ import annotations

import dataclasses

from support.decoders import toy
from support.models import plan, prepared, said

from specbench.common.prompt import Prompt
from specbench.runner.order import Order


def test_prompts_of_several_temperatures_come_in_the_order_of_the_task() -> None:
    prompts = [
        dataclasses.replace(Prompt(f"p{number}", "a", True), temperature=temperature)
        for number, temperature in enumerate((0.7, None, 0.7, 0.0, None))
    ]
    order = Order(plan([toy(label="ar")]), prepared(prompts), {})
    taken: list[list[str]] = []
    for _, requests in order.stretches():
        taken.append([request.prompt_id for request in requests])
        for request in requests:
            order.add(said("ar", request))
    assert taken == [["p0"], ["p1"], ["p2"], ["p3"], ["p4"]]
