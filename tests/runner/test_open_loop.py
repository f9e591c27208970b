"""Requests that arrive by the clock: when they arrive, what they wait for, and what is measured of it."""

from __future__ import annotations

import itertools
import os
import random
import resource
import selectors
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import pytest
from scipy.stats import kstest
from support.decoders import Clock, ToyEngine, request, runner, toy
from support.engines import served
from support.load_server import LoadServer, load_server

from specbench.analysis.rates import at_rates
from specbench.backends import make_row
from specbench.common.errors import EngineFault
from specbench.engine import Sampling
from specbench.planning.load import Arrivals
from specbench.results import Load, LoadPoint, RequestRecord
from specbench.runner.external.external_row import ExternalRow
from specbench.runner.record import Request
from specbench.runner.setup.arrivals import OpenLoop, open_loop
from specbench.runner.stop import StopRule

S = 1_000_000_000


def every(gaps: Sequence[float], others: int = 0) -> OpenLoop:
    """Arrivals after these gaps, repeated; the further requests are 1,000 and on."""
    further = (request(1000 + at, 2) for at in itertools.count())
    return OpenLoop(itertools.cycle(gaps), [next(further) for _ in range(others)], further)


def loaded(engine: ToyEngine, requests: Sequence[Request], load: OpenLoop, slots: int = 1) -> list[RequestRecord]:
    def sleep(seconds: float) -> None:
        assert seconds > 0
        engine.clock.now += round(seconds * S)

    return list(runner(engine, slots, sleep=sleep).segment(toy(label="ar"), requests, load=load))


def gaps(load: Load, count: int, trace: tuple[float, ...] = (), requests: int = 4, begins: int = 0) -> list[float]:
    made = open_loop(Arrivals(load, trace), [request(1, 2)] * requests, [request(9, 2)], 2, "seed", begins)
    return [*islice(made.gaps, count)]


def test_poisson_gaps_are_exponential() -> None:
    load = Load(arrivals="poisson", points=[LoadPoint(rate=4)])
    found = gaps(load, 20_000)
    assert kstest(found, "expon", args=(0, 1 / 4)).pvalue > 0.01
    assert kstest(found, "expon", args=(0, 1 / 4.4)).pvalue < 1e-6


def test_constant_gaps_are_even() -> None:
    assert gaps(Load(arrivals="constant", points=[LoadPoint(rate=4)]), 5) == [0.25] * 5


def test_a_ramp_rises_through_the_measured_requests() -> None:
    ramp = Load(arrivals="constant", points=[LoadPoint(rate=1, end=5)])
    assert [1 / gap for gap in gaps(ramp, 9)] == pytest.approx([1, 1, 2, 3, 4, 5, 5, 5, 5])


def test_a_trace_keeps_its_gaps_and_gets_the_rate() -> None:
    load = Load(arrivals="trace", points=[LoadPoint(rate=2)], trace_sha256="0")
    times = (0.0, 1.0, 4.0)  # two gaps in 4 s: 0.5 requests per second
    assert gaps(load, 5, times) == pytest.approx([0.25, 0.75, 0.25, 0.75, 0.25])
    assert gaps(load, 2, times, begins=3) == pytest.approx([0.75, 0.25])


def test_every_method_gets_the_same_arrivals() -> None:
    load = Load(arrivals="poisson", points=[LoadPoint(rate=4)])
    assert gaps(load, 50) == gaps(load, 50)


def test_waiting_counts_from_the_arrival() -> None:
    # A prefill of 3 tokens takes 3 s and a step 1 s: 4 s per answer of two tokens. One request arrives each second.
    engine = ToyEngine(Clock(), per_row=S)
    found = loaded(engine, [request(number, 2) for number in (1, 2, 3)], every([1.0]))
    assert [record.arrived_s for record in found] == pytest.approx([1, 2, 3])
    assert [record.waited_s for record in found] == pytest.approx([0, 3, 6])
    assert [record.ttft_s for record in found] == pytest.approx([3, 6, 9])
    assert [record.latency_s for record in found] == pytest.approx([4, 7, 10])
    assert [record.decode_s for record in found] == pytest.approx([1, 1, 1])
    assert [record.ahead for record in found] == [0, 1, 2]


def test_a_stall_delays_every_arrival_meanwhile() -> None:
    engine = ToyEngine(Clock(), per_row=S // 100)
    engine.noise = lambda: 2000.0 if engine.forwards == 3 else 1.0  # the second request's prefill takes 60 s
    found = loaded(engine, [request(number, 2) for number in range(1, 41)], every([1.0]))
    late = [record.latency_s for record in found if record.latency_s > 10]
    assert len(late) == 39  # a closed loop would see one slow request
    assert max(record.latency_s for record in found) == pytest.approx(60, rel=0.01)


def test_an_idle_engine_waits_for_the_next_arrival() -> None:
    engine = ToyEngine(Clock(), per_row=S // 1000)
    found = loaded(engine, [request(number, 2) for number in (1, 2)], every([10.0]))
    assert [record.start_s for record in found] == pytest.approx([10, 20], abs=0.01)
    assert [record.waited_s for record in found] == pytest.approx([0, 0], abs=1e-6)


def test_further_requests_load_the_system_and_leave_no_record() -> None:
    engine = ToyEngine(Clock(), slots=2, per_row=S)
    wanted = [request(number, 6) for number in (1, 2, 3)]
    found = loaded(engine, wanted, every([0.5], others=2), slots=2)
    assert sorted(record.prompt_id for record in found) == ["p01", "p02", "p03"]
    assert engine.occupied == 0
    assert min(record.ahead or 0 for record in found) >= 1  # the warm-up was there before
    last = max(record.arrived_s + record.latency_s for record in found)
    began = [tree for tree in engine.trees if len(tree) == 2]
    assert began, "further requests were decoded next to the last measured one"
    assert last > 0


def test_turns_of_a_closed_loop_have_no_arrival() -> None:
    engine = ToyEngine(Clock(), per_row=S)
    (record,) = runner(engine).segment(toy(label="ar"), [request(1, 3)])
    assert (record.waited_s, record.ahead) == (None, None)
    assert "waited_s" not in record.model_dump()


# ------------------------------
# Figures, recomputed here from the definition.


def record_at(method: str, number: int, arrived: float, latency: float, ahead: int, segment: int) -> RequestRecord:
    engine = ToyEngine(Clock(), per_row=S)
    (made,) = runner(engine).segment(toy(label=method), [request(number, 2)], segment)
    fields = {"start_s": arrived, "waited_s": 0.0, "latency_s": latency, "ttft_s": latency / 2, "ahead": ahead}
    return made.model_copy(update=fields)


def test_figures_at_a_rate_are_those_of_the_definition() -> None:
    rng = random.Random(1)
    load = Load(arrivals="poisson", points=[LoadPoint(rate=2)], slo={"latency": 1.0, "ttft": 0.4})
    rows: dict[str, dict[Any, RequestRecord]] = {"ar": {}, "mine": {}}
    for method, factor, shift in (("ar", 1.0, 0), ("mine", 0.5, 8)):
        for number in range(48):
            block = number // 6
            made = record_at(
                method, number, number % 6 * 0.5, factor * rng.uniform(0.5, 1.5), number % 6, block + shift
            )
            rows[method][made.prompt_id, 0, 1] = made
    (ar,), (mine,) = (at_rates(load, rows["ar"], rows[name]) for name in ("ar", "mine"))
    seconds = {name: [record.latency_s for record in found.values()] for name, found in rows.items()}
    assert mine.arrived == pytest.approx(2)
    assert (mine.requests, mine.blocks) == (48, 8)
    assert mine.latency_s is not None
    assert mine.latency_s.p50 is not None
    middle = sorted(seconds["mine"])[23:25]
    assert mine.latency_s.p50.value == pytest.approx(sum(middle) / 2)
    good = [each <= 1.0 and each / 2 <= 0.4 for each in seconds["mine"]]
    assert mine.good is not None
    assert mine.good.value == pytest.approx(sum(good) / 48)
    assert mine.goodput is not None
    assert mine.goodput.value == pytest.approx(2 * sum(good) / 48)
    assert mine.good.low is not None
    assert mine.good.low < mine.good.value
    assert mine.speedup is not None
    assert mine.speedup.value == pytest.approx(sum(seconds["ar"]) / sum(seconds["mine"]))
    assert mine.speedup.blocks == 8
    assert ar.speedup is None
    assert ar.ahead == pytest.approx(2.5)
    assert ar.growing  # from 0.5 in the first third of a block to 4.5 in the last
    assert ar.late is None


# ------------------------------
# Another engine over HTTP.


def external(server: LoadServer, together: int = 1, timeout: float = 20) -> ExternalRow:
    made = served(1 << 20)
    row = make_row("openai:ar", "openai:ar", {"model": "m", "timeout": timeout}, server.url)
    return ExternalRow(row, replace(made, url=server.url, together=together), Sampling())


def asked(number: int, budget: int = 4) -> Request:
    return Request(f"p{number}", 0, [1, 2, 3], StopRule(frozenset(), (), budget, served().model.decode))


def steady(rate: float) -> OpenLoop:
    further = (asked(10_000 + at) for at in itertools.count())
    return OpenLoop(itertools.repeat(1 / rate), [], further)


def steady_of(budget: int) -> OpenLoop:
    further = (asked(10_000 + at, budget) for at in itertools.count())
    return OpenLoop(itertools.repeat(0.02), [], further)


def test_a_stalled_server_shows_its_true_tail() -> None:
    with load_server(events=4, gap=0.005, pause="0.5:1.0") as server, external(server) as row:
        row.start()
        began = time.monotonic()
        found = list(row.decode([asked(at) for at in range(60)], 0, steady(40)))
        assert time.monotonic() - began < 8
    # Requests that arrived in the second of the stall, forty of the sixty, wait for its end; a closed loop sees one.
    slow = [record for record in found if record.latency_s > 0.2]
    assert 20 < len(slow) <= 42
    assert max(record.latency_s for record in found) > 0.8
    assert max(record.waited_s or 0 for record in found) < 0.1


def test_as_many_requests_as_asked_are_in_flight() -> None:
    with load_server(events=4, gap=0.02, slots=3) as server, external(server, together=3) as row:
        row.start()
        found = list(row.decode([asked(at) for at in range(9)], 7))
    assert [record.waited_s for record in found] == [None] * 9
    spans = [(record.start_s, record.start_s + record.latency_s) for record in found]
    most = max(sum(start <= at < end for start, end in spans) for at, _ in spans)
    assert most == 3
    # Shares of the time add up to the time during which requests were in flight.
    whole = max(end for _, end in spans) - min(start for start, _ in spans)
    assert sum(record.prefill_share_s + record.decode_share_s for record in found) == pytest.approx(whole, rel=0.02)
    assert all(record.output_ids == [0, 1, 2, 3] for record in found)


def test_stop_strings_abort_a_request() -> None:
    rule = StopRule(frozenset(), ("c",), 50, served().model.decode)
    with load_server(events=50, gap=0.01) as server, external(server, together=2) as row:
        row.start()
        found = list(row.decode([Request(f"p{at}", 0, [1], rule) for at in range(4)], 0))
    assert [record.output_ids for record in found] == [[0, 1, 2]] * 4


def _kill(server: LoadServer) -> None:
    server.kill()


@pytest.mark.parametrize("how", ["killed", "stalled"])
def test_a_failing_server_is_one_sentence_with_its_row(how: str) -> None:
    pause = "0.2:100" if how == "stalled" else ""
    with load_server(events=20, gap=0.01, pause=pause) as server, external(server, timeout=1.0) as row:
        row.start()
        if how == "killed":
            threading.Timer(0.3, server.kill).start()
        with pytest.raises(EngineFault, match="openai:ar: it") as fault:
            list(row.decode([asked(at, 20) for at in range(100)], 0, steady(50)))
        assert "\n" not in str(fault.value)


def bare_share(url: str, requests: int, rate: float) -> float:
    """Share of a core that sending requests at this rate takes if answers are only read to their end."""
    asked = b'POST / HTTP/1.1\r\nContent-Length: 17\r\n\r\n{"max_tokens": 8}'
    where, idle = ("127.0.0.1", int(url.rsplit(":")[-1])), list[socket.socket]()
    began, used = time.monotonic(), time.process_time()
    with selectors.DefaultSelector() as selector, ExitStack() as opened:
        sent = ended = 0
        while ended < requests:
            wait = began + sent / rate - time.monotonic() if sent < requests else None
            if wait is not None and wait <= 0:
                if not idle:
                    idle.append(opened.enter_context(socket.create_connection(where)))
                    selector.register(idle[-1], selectors.EVENT_READ)
                idle.pop().sendall(asked)
                sent += 1
                continue
            for key, _ in selector.select(wait):
                free: Any = key.fileobj
                if free.recv(1 << 16).endswith(b"\r\n0\r\n\r\n"):
                    idle.append(free)
                    ended += 1
    return (time.process_time() - used) / (time.monotonic() - began)


@pytest.mark.slow
def test_the_client_is_light_and_its_memory_flat() -> None:
    per_block, rate = 1000, 100.0
    with load_server(events=8, gap=0.01) as server, external(server) as row:
        bare = bare_share(server.url, per_block, rate)
        row.start()
        sizes, began, used = [], time.monotonic(), time.process_time()
        for block in range(20):
            late = [record.waited_s or 0 for record in row.decode(
                [asked(at, 8) for at in range(per_block)], block, steady(rate)
            )]  # fmt: skip
            assert sum(each > 0.01 for each in late) < 0.01 * per_block
            with open(f"/proc/{os.getpid()}/statm") as file:
                sizes.append(int(file.read().split()[1]) * resource.getpagesize())
        spent = time.process_time() - used
        share = spent / (time.monotonic() - began)
    assert sizes[-1] - sizes[2] < 8 << 20
    assert share < 4 * bare, (share, bare)


def test_arrivals_come_in_order() -> None:
    made = every([0.5, 0.25]).schedule([request(1, 2), request(2, 2)])
    first = [*islice(made, 6)]
    assert [due.measured for due in first] == [True, True, False, False, False, False]
    assert all(earlier.at_ns < later.at_ns for earlier, later in pairwise(first))


def test_a_text_server_and_batched_events_end_once() -> None:
    rule = StopRule(frozenset(), ("c",), 50, served().model.decode)
    with load_server(events=6, gap=0.0) as server, external(server, together=2) as row:
        row.start()  # without a gap all events of an answer are read together
        found = list(row.decode([Request(f"p{at}", 0, [1], rule) for at in range(6)], 0))
    assert [record.output_ids for record in found] == [[0, 1, 2]] * 6


def test_waiting_in_the_engine_takes_no_share() -> None:
    with load_server(events=4, gap=0.02, slots=1) as server, external(server, together=1) as row:
        row.start()
        found = list(row.decode([asked(at) for at in range(20)], 0, steady(40)))
    tokens = sum(record.decoded_tokens for record in found)
    # One slot decodes a token in 20 ms, however many requests wait.
    assert tokens / sum(record.decode_share_s for record in found) == pytest.approx(1 / 0.02, rel=0.25)
    assert sum(record.latency_s for record in found) > 5 * sum(
        record.prefill_share_s + record.decode_share_s for record in found
    )


def test_a_request_without_tokens_stalls_although_others_go_on() -> None:
    with load_server(events=3, gap=0.01, mute=5) as server, external(server, timeout=0.5) as row:
        row.start()
        began = time.monotonic()
        with pytest.raises(EngineFault, match="a request got no token"):
            list(row.decode([asked(at, 3) for at in range(20)], 0, steady_of(3)))
        assert time.monotonic() - began < 6
