"""Another engine's answers as records: our clock, our stop rule, our definitions, whatever the engine does."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from support.engines import MS, Script, facts, row, served
from support.wording import wording

from specbench.backends.protocol import EngineCounters
from specbench.common.errors import EngineFault
from specbench.engine import Sampling
from specbench.results.request_schema import RequestRecord
from specbench.runner.external.external_row import ExternalRow
from specbench.runner.record import Request
from specbench.runner.stop import StopRule

STOP = 7


def answer(script: Script, *, budget: int = 8, stops: tuple[str, ...] = (), sampling: Any = None) -> RequestRecord:
    """The record of one answer, asked at 40 ms on the clock."""
    clock = itertools.chain([0, 40 * MS], itertools.count(900 * MS, MS))
    rule = StopRule(frozenset({STOP}), stops, budget, served().model.decode)
    outside = ExternalRow(row(script), served(), sampling or Sampling(), clock=lambda: next(clock))
    outside.start()
    (record,) = outside.decode([Request("p", 0, [1, 2, 3], rule)], 5)
    return record


def test_times_are_of_the_arrivals_and_the_first_one_is_no_decoding() -> None:
    record = answer(Script([[1], [2, 3], [4], [STOP]]))
    assert record.output_ids == [1, 2, 3, 4, STOP]
    assert record.finish_reason == "stop"
    assert record.ttft_s == pytest.approx(0.060)
    assert record.decode_s == pytest.approx(0.030)
    assert record.latency_s == pytest.approx(0.090)
    assert record.start_s == pytest.approx(0.040)
    assert record.segment == 5
    assert (record.first_tokens, record.accepted_lengths, record.target_forwards) == (1, [2, 1, 1], 3)
    assert record.tokens_per_forward == pytest.approx(4 / 3)
    assert record.step_s == pytest.approx([0.01, 0.01, 0.01])
    assert record.tpot_s == pytest.approx(0.030 / 4)


def test_tokens_that_come_with_the_first_arrival_inflate_nothing() -> None:
    record = answer(Script([[1, 2, 3, 4], [5], [STOP]]))
    assert (record.first_tokens, record.decoded_tokens) == (4, 2)
    assert record.tokens_per_forward == 1
    assert record.decode_tok_s(False) == pytest.approx(2 / 0.020)


def test_an_engine_that_counts_in_all_is_taken_at_its_word_however_its_chunks_come() -> None:
    joined = Script([[1], [2, 3, 4, 5, 6], [STOP]], EngineCounters(forwards=4, draft_tokens=6), facts(counts="total"))
    record = answer(joined)
    assert record.target_forwards == 4
    assert record.tokens_per_forward == pytest.approx(6 / 4)
    assert record.tree_rows == 10
    assert not record.forwards_distinct


def test_an_engine_that_counts_nothing_has_no_tokens_per_forward() -> None:
    record = answer(Script([[1], [2, 3], [STOP]], facts=facts(counts="nothing")))
    assert record.target_forwards == 0
    assert record.tokens_per_forward is None
    assert record.decode_tok_s(False) == pytest.approx(3 / 0.020)


def test_its_own_figures_are_kept_under_its_own_names() -> None:
    reported = EngineCounters(draft_tokens=3, accepted_tokens=1, own={"mean_acceptance_length": 4.07})
    record = answer(Script([[1], [2, 3], [STOP]], reported))
    assert record.measures == {"mean_acceptance_length": 4.07}
    assert record.tree_rows == 5


def test_a_stop_string_ends_the_answer_and_gives_the_request_up() -> None:
    script = Script([[1], [2, 3, 4], [5], [6]])
    record = answer(script, stops=("d",))  # of 3
    assert record.output_ids == [1, 2, 3]
    assert record.text == "bc"
    assert record.finish_reason == "stop-string"
    assert (record.overshoot_tokens, script.closed) == (1, 1)
    assert record.decode_s == pytest.approx(0.010)


def test_an_engine_without_stop_ids_is_aborted_at_them() -> None:
    script = Script([[1], [STOP], [5], [6]], stops=False)
    record = answer(script)
    assert record.output_ids == [1, STOP]
    assert script.closed == 1


def test_what_comes_with_the_last_kept_token_is_overshoot() -> None:
    record = answer(Script([[1], [2, 3, 4, 5]]), budget=3)
    assert (record.output_ids, record.overshoot_tokens, record.finish_reason) == ([1, 2, 3], 2, "length")


def test_it_is_asked_what_the_run_says() -> None:
    script = Script([[1], [2], [STOP]])
    answer(script, sampling=Sampling(temperature=0.7, top_k=5, top_p=0.9, seed=3))
    (asked,) = script.asked
    assert (asked.ids, asked.budget, asked.stop_ids) == ([1, 2, 3], 8, {STOP})
    assert (asked.temperature, asked.top_k, asked.top_p) == (0.7, 5, 0.9)
    again = Script([[1], [2], [STOP]])
    answer(again, sampling=Sampling(temperature=0.7, seed=4))
    assert again.asked[0].seed != asked.seed


def test_an_engine_in_this_process_can_ask_whether_a_stop_string_has_come() -> None:
    script = Script([[1], [2], [3]])
    answer(script, stops=("d",))
    ended = script.asked[0].ended
    assert [ended([1]), ended([1, 2]), ended([1, 2, 3]), ended([1, 2, 3, 4])] == [False, False, True, True]


def test_text_alone_is_tokenised_anew() -> None:
    record = answer(Script(["b", "cd", "ef"], facts=facts(ids=False, counts="nothing")), budget=5)
    assert record.output_ids == [1, 2, 3, 4, 5]
    assert (record.first_tokens, record.accepted_lengths) == (1, [2, 2])
    assert record.text == "bcdef"


@pytest.mark.parametrize(
    ("chunks", "result"),
    [
        ([[1], [2]], "ended an answer after 2 of 8 tokens"),
        ([], "ended an answer after 0 of 8 tokens"),
        ([[1], [STOP], [4]], "went on after the token that ends an answer"),
        ([[n] for n in range(1, 7)] + [[8], [9], [9]], "went on after its budget"),
        ([[1], [50]], "sent '50' for a token id of a vocabulary of 50"),
        ([[1], [-1]], "sent '-1' for a token id"),
        ([[1], [True]], "sent 'True' for a token id"),
        ([[1], ["x"]], "sent 'x' for a token id"),
        ([[1], "text"], "sent text and no token ids"),
    ],
)
def test_what_no_engine_may_do_is_one_sentence_with_its_row(chunks: Any, result: str) -> None:
    with pytest.raises(EngineFault, check=wording):
        answer(Script(chunks))


def test_an_arrival_before_another_is_a_fault_of_the_engine() -> None:
    class Back(Script):
        begins = property(lambda self: next(self.times), lambda self, value: None)
        times = iter([100 * MS, 20 * MS])

    with pytest.raises(EngineFault, check=wording):
        answer(Back([[1], [2], [STOP]]))


def test_the_clock_stands_still_while_the_consumer_has_control() -> None:
    ticks = iter([0, 10 * MS, 200 * MS, 500 * MS, 510 * MS, 700 * MS, 701 * MS])
    script = Script([[1], [STOP]])
    rule = StopRule(frozenset({STOP}), (), 8, served().model.decode)
    outside = ExternalRow(row(script), served(), Sampling(), clock=lambda: next(ticks))
    outside.start()
    first, second = outside.decode([Request("p", n, [1], rule) for n in range(2)], 0)
    assert first.start_s == pytest.approx(0.010)
    assert second.start_s == pytest.approx(0.210), "300 of the 510 ms were the consumer's"
