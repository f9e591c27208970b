"""Options of load: rates, files of arrival times, objectives; and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.wording import wording

from specbench.common import UsageError
from specbench.planning import Plan
from specbench.planning.load import parse_rates, parse_slo, plan_load, read_times
from specbench.planning.resolving import resolve

_DATES = "TIMESTAMP,ContextTokens\n2023-11-16 18:17:03.9799600,5\n2023-11-16 18:17:04.4799600,6\n"


def test_rates_are_parsed() -> None:
    assert [(each.rate, each.end) for each in parse_rates("0.5,1,2-8")] == [(0.5, None), (1, None), (2, 8)]
    assert [str(each) for each in parse_rates("0.5,2-8")] == ["0.5", "2-8"]


def test_objectives_are_seconds() -> None:
    assert parse_slo("ttft=500ms,tpot=50ms,latency=2s") == {"ttft": 0.5, "tpot": 0.05, "latency": 2.0}


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("0\n1.5\n2\n", (0, 1.5, 2)),
        ('{"timestamp": 1000, "input_length": 5}\n{"timestamp": 3500}\n', (0, 2.5)),
        ("Timestamp,Model\n10,x\n12.5,y\n", (0, 2.5)),
        (_DATES, (0, 0.5)),
    ],
)
def test_traces_are_read(text: str, times: tuple[float, ...], tmp_path: Path) -> None:
    file = tmp_path / "trace"
    file.write_text(text)
    assert read_times(file)[0] == pytest.approx(times)


@pytest.mark.parametrize(
    "text", ["", "1\n", "3\n1\n", "1\n1\n", "1\nnan\n", "a,b\n1,2\n", '{"timestamp": "x"}\n{}\n', "1\n1e400\n"]
)
def test_damaged_traces_are_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "trace"
    file.write_text(text)
    with pytest.raises(UsageError, check=wording) as error:
        read_times(file)
    assert "\n" not in str(error.value)


def test_a_trace_sets_the_rate_unless_one_is_given(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    file.write_text("0\n2\n4\n")
    for rate, wanted in ((None, [0.5]), ("1,3", [1, 3])):
        found = plan_load(Plan(arrivals=str(file), rate=rate))
        assert found is not None
        assert [point.rate for point in found.load.points] == wanted
        assert (found.load.arrivals, found.trace) == ("trace", (0, 2, 4))


@pytest.mark.parametrize(
    "options",
    [
        {"rate": "0"}, {"rate": "1,1"}, {"rate": "x"}, {"rate": ""}, {"rate": "1e9"}, {"rate": "8-"},
        {"slo": "ttft=500ms"}, {"arrivals": "constant"}, {"arrivals": "no such file"},
        {"rate": "1", "slo": "ttft=500"}, {"rate": "1", "slo": "speed=1s"}, {"rate": "1", "slo": "ttft=0ms"},
        {"rate": "1", "slo": "ttft=1s,ttft=2s"}, {"rate": "1", "keep_prefix": True}, {"rate": "1", "method": "hf:ar"},
        {"concurrency": 2, "method": "hf:ar"},
    ],
)  # fmt: skip
def test_wrong_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError, check=wording):
        resolve(Plan(**options))  # type: ignore[arg-type]


def test_each_rate_is_a_pass() -> None:
    found = resolve(Plan(method="pld", rate="1,2,4", repeats=2))
    assert found.passes == 6
    assert found.arrivals is not None
    assert [str(found.arrivals.load.at(repeat)) for repeat in range(6)] == ["1", "2", "4", "1", "2", "4"]
