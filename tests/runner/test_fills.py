"""Methods that fill masked blocks in the runner: what is counted, and that sequences do not affect each other."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from support import decoders, diffusion_oracles
from support.models import attached, prompt, supported

from specbench.common.errors import PluginFault, UsageError
from specbench.decoding.fill import Fill
from specbench.decoding.protocol import Context, Method
from specbench.engine.engine import Engine
from specbench.planning.plan import Plan
from specbench.planning.resolving import resolve
from specbench.report.answers.generation import steps
from specbench.results.request_schema import RequestRecord
from specbench.runner import Runner
from specbench.runner.record import Request
from specbench.runner.stop import StopRule

MASK = 5
FILLS = {key: method for key, method in decoders.ALL.items() if method.fills}
every_method = pytest.mark.parametrize("method", FILLS.values(), ids=FILLS)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with attached(supported("llama"), slots=3, capacity=96, max_rows=256) as made:
        yield made


def decode(
    engine: Engine, method: Method, together: int, budget: int = 21, stops: Sequence[int] = (), trace: bool = False
) -> dict[str, RequestRecord]:
    rule = StopRule(frozenset(stops), (), budget, str)
    requests = [Request(f"p{length}", 0, prompt(length, 97, seed=length), rule) for length in (1, 8, 19)]

    def context(label: str, request: Request) -> Context:
        return Context(97, 96, random.Random(0), budget=budget, stops=frozenset(stops))

    runner = Runner(engine, context, together, trace=trace)
    return {record.prompt_id: record for record in runner.segment(decoders.ready(method, engine), requests)}


@every_method
def test_sequences_decoded_together_are_the_same(engine: Engine, method: Method) -> None:
    alone, together = decode(engine, method, 1), decode(engine, method, 3)
    assert {name: record.output_ids for name, record in alone.items()} == {
        name: record.output_ids for name, record in together.items()
    }


@every_method
def test_every_token_and_forward_is_counted_once(engine: Engine, method: Method) -> None:
    for record in decode(engine, method, 2, trace=True).values():
        assert record.output_tokens == record.first_tokens + sum(record.accepted_lengths) == 21
        assert record.first_tokens >= 1
        assert MASK not in record.output_ids
        assert record.draft_tokens == 0
        assert [len(step.tokens) for step in steps(record)] == [record.first_tokens, *record.accepted_lengths]
        # All passes after the prompt's, of which the record has those after the first token.
        passes = record.measures["passes"] * record.output_tokens
        assert passes == pytest.approx(round(passes))
        assert round(passes) >= record.target_forwards
        assert record.phases_s is not None
        assert all(len(each) == record.target_forwards for each in record.phases_s.values())


def test_passes_over_the_whole_text_fit_a_full_cache() -> None:
    method = decoders.with_options("dllm", {"n": 4, "cache": "prefix"})
    with attached(supported("qwen2"), capacity=19 + 21, max_rows=2 * method.max_rows) as engine:
        assert decode(engine, method, 1)["p19"].output_tokens == 21


def test_an_answer_ends_at_its_stop_token(engine: Engine) -> None:
    method = decoders.with_options("fast-dllm", {"n": 4})
    whole = decode(engine, method, 1)["p19"].output_ids
    stop = whole[9]
    record = decode(engine, method, 1, stops=[stop])["p19"]
    assert record.output_ids == whole[: whole.index(stop) + 1]
    assert record.finish_reason == "stop"


def test_counts_are_those_of_the_dense_decoder(engine: Engine) -> None:
    method = decoders.with_options("sdar", {"block_size": 4, "threshold": 0.2})
    record = decode(engine, method, 1)["p19"]
    trace = diffusion_oracles.sdar(
        supported("llama"), prompt(19, 97, seed=19), mask=MASK, threshold=0.2, max_new_tokens=21, forbid_mask=True
    )
    assert record.output_ids == trace.tokens
    known, final = set(range(19)), [19]  # the position after the last final token
    for made in trace.passes:
        known |= {at for at, _ in made}
        final.append(next(at for at in range(final[-1], 10**6) if at not in known))
    kept = [min(end, 40) - 19 for end in final]
    first = next(number for number, tokens in enumerate(kept) if tokens)
    assert record.first_tokens == kept[first]
    last = kept.index(21)
    assert record.accepted_lengths == [b - a for a, b in zip(kept[first:last], kept[first + 1 :], strict=False)]
    assert record.measures["passes"] == pytest.approx(last / 21)


@pytest.mark.parametrize("wrong", [lambda: None, lambda: Fill([10**6], [0], 0, [1])])
def test_a_faulty_pass_is_the_methods_fault(engine: Engine, wrong: Callable[[], Any]) -> None:
    class Faulty(FILLS["sdar"].decoder):  # type: ignore[misc]
        def fill(self) -> Any:
            return wrong()

    method = Method("sdar", "sdar", FILLS["sdar"].options, False, Faulty, shared=MASK)
    rule = StopRule(frozenset(), (), 8, str)
    runner = Runner(engine, lambda label, request: Context(97, 96, random.Random(0)))
    with pytest.raises(PluginFault):
        list(runner.segment(method, [Request("p", 0, prompt(9, 97), rule)]))


@pytest.mark.parametrize("flags", [{"keep_prefix": True}, {"presence_penalty": 1.0}, {"simulate": ["sdar=2"]}])
def test_unsupported_flags_are_refused(flags: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="sdar"):
        resolve(Plan(method="ar,sdar", **flags))
