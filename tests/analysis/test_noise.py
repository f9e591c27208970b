"""A disturbed run says so: each figure by itself marks it, and none within its limit does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import runs
from support.asserting import known
from support.runs import record

from specbench.analysis import noise as judged
from specbench.analysis.frame import load_methods
from specbench.analysis.noise import LIMITS, UNSURE, find_disturbance
from specbench.analysis.read import read_run
from specbench.analysis.summary import RunContents, summarise
from specbench.results.bandwidth import Bandwidth, Reading
from specbench.results.figures_schema import Speedup
from specbench.results.folder import RunFolder
from specbench.results.request_schema import GpuTrace, RequestRecord
from specbench.results.summary_schema import RunSummary
from specbench.results.watch import WATCH, MachineInterval, Watch

PROMPTS = 12


def watch(count: int = 6, **expected: Any) -> Watch:
    """Looks of four seconds at two cores, of which the run has nearly all; a list says a value for each."""
    quiet = {
        "seconds": 4.0, "cores": 2, "usable": 2, "own_cores": 1.9, "others_cores": 0.02, "stolen_cores": 0.0,
        "clock_mhz": 2300.0, "slowed": 0, "load": 2.0,
    }  # fmt: skip
    every = [{**quiet, **{k: v[at] if isinstance(v, list) else v for k, v in expected.items()}} for at in range(count)]
    return Watch(looks=[MachineInterval(segment=at, **one) for at, one in enumerate(every)])


def memory(*gb: float) -> Bandwidth:
    return Bandwidth(readings=[Reading(segment=at, threads=2, bytes_per_s=x * 1e9) for at, x in enumerate(gb)])


QUIET_MEMORY = memory(30, 29, 30, 31, 12, 30)  # one slow reading is none too many


def answers(label: str, decode_s: float, factor: Any = lambda at: 1.0, prompts: int = PROMPTS) -> list[RequestRecord]:
    """An answer of two forwards to each prompt, of two groups."""
    return [
        record(label, f"p/{at}", tokens=25, forwards=24, decode_s=decode_s * factor(at), segment=at).model_copy(
            update={"category": f"{'ab'[at % 2]}/x"}
        )
        for at in range(prompts)
    ]


def wavy(at: int) -> float:
    """A little up and down, so that intervals have a width."""
    return 1 + 0.01 * (at % 3)


def gpu(records: list[RequestRecord], throttled: int, clocks: Any = lambda at: 1700) -> list[RequestRecord]:
    """The same on a GPU that was held down under the first so many."""
    quiet: dict[str, Any] = {"memory_clock_mhz": 1500, "temperature_c": 60, "energy_j": 1.0, "power_w": 250.0}
    return [
        one.model_copy(
            update={
                "gpu": GpuTrace(sm_clock_mhz=clocks(at), throttled=["power cap"] if at < throttled else [], **quiet)
            }
        )
        for at, one in enumerate(records)
    ]


AR, JF = answers("ar", 2.0, wavy), answers("jf", 1.0, wavy)


def reasons(**more: Any) -> list[str]:
    given: dict[str, Any] = {"baseline": AR, "others": JF, "watch": watch(), "bandwidth": QUIET_MEMORY, **more}
    return known(find_disturbance(given.pop("baseline"), given.pop("others"), **given)).reasons


def test_a_quiet_run_has_figures_and_no_reason() -> None:
    found = known(find_disturbance(AR, JF, watch=watch(), bandwidth=QUIET_MEMORY))
    assert found.reasons == []
    assert (found.watched_s, found.requests) == (24.0, PROMPTS)
    measured = {name for name in LIMITS if getattr(found, name) is not None}
    # The load counts only without better figures, and there was no GPU.
    assert measured == {*LIMITS} - {"load_share", "gpu_clock_fall", "throttled_share"}
    assert known(found.others_share).value == pytest.approx(0.01)
    assert known(found.others_share).limit == 0.05


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"watch": watch(others_cores=0.62)}, "other processes took 31% of the cores (limit 5%)"),
        # Another process runs during half of the run.
        (
            {"watch": watch(others_cores=[0.9, 0.9, 0.9, 0.0, 0.0, 0.0])},
            "other processes took 22% of the cores (limit 5%)",
        ),
        # A quota of four on a host of 64, of which others have 62.
        ({"watch": watch(cores=64, usable=4, others_cores=62.0)}, "other processes took 50% of the cores (limit 5%)"),
        ({"watch": watch(others_cores=0.104)}, "other processes took 5.2% of the cores (limit 5%)"),
        ({"watch": watch(stolen_cores=0.2)}, "a hypervisor took 10% of the cores for other machines (limit 5%)"),
        (
            {"watch": watch(others_cores=None, stolen_cores=None, load=3.5)},
            "the load of other work was 80% of the cores (limit 50%)",
        ),
        (
            {"watch": watch(clock_mhz=[2300.0, 2300.0, 2300.0, 1600.0, 1600.0, 1600.0])},
            "the cores' clock fell by 30% (limit 15%)",
        ),
        ({"watch": watch(slowed=[0, 2, 0, 0, 1, 0])}, "heat slowed the cores 3 times (limit 0)"),
        ({"bandwidth": memory(30, 18, 30, 18, 30, 18)}, "memory bandwidth varied by 50% (limit 30%)"),
        ({"baseline": answers("ar", 2.0, lambda at: 1 + at % 2)}, "AR's step time varied by 67% (limit 30%)"),
        (
            {"baseline": answers("ar", 2.0, lambda at: 1.0 if at < 8 else 1.28)},
            "AR's step time drifted by 28% (limit 25%)",
        ),
        ({"baseline": gpu(AR, 2), "on_gpu": True}, "the GPU was throttled under 17% of the requests (limit 5%)"),
        ({"others": gpu(JF, 1), "on_gpu": True}, "the GPU was throttled under 8% of the requests (limit 5%)"),
        (
            {"baseline": gpu(AR, 0, lambda at: 1700 if at < 6 else 1200), "on_gpu": True},
            "the GPU's clock fell by 29% (limit 15%)",
        ),
    ],
)
def test_each_figure_alone_marks_a_run(change: dict[str, Any], expected: str) -> None:
    assert reasons(**change) == [expected]


@pytest.mark.parametrize(
    "change",
    [
        {"watch": watch(others_cores=0.1)},  # at the limit is within it
        {"watch": watch(load=40.0)},
        {"watch": watch(cores=64, usable=4, others_cores=60.0, stolen_cores=1.0)},
        {"watch": watch(cores=64, usable=4, others_cores=None, stolen_cores=None, load=63.0)},
        {"watch": watch(others_cores=None, stolen_cores=None, load=2.5)},
        {"watch": watch(others_cores=None, stolen_cores=None, load=None, clock_mhz=None, slowed=None)},
        {"watch": watch(clock_mhz=[2300.0, 800.0, 2300.0, 2300.0, 2300.0, 2300.0])},
        {"watch": watch(1, others_cores=2.0, stolen_cores=1.0, slowed=3)},  # four seconds
        {"watch": Watch()},
        {"bandwidth": memory(30, 5, 30, 5)},  # four readings
        {"bandwidth": Bandwidth(refused="no compiler")},
        {"watch": watch(others_cores=0.9), "on_gpu": True},
        {"baseline": gpu(AR, 1), "others": gpu(JF, 0), "on_gpu": True},
    ],
)
def test_what_keeps_its_limit_or_is_unmeasured_marks_nothing(change: dict[str, Any]) -> None:
    assert reasons(**change) == []


def test_without_any_figure_there_is_none() -> None:
    assert find_disturbance(AR[:3], JF) is None
    assert "disturbed" not in summarise(RunContents(runs.run_config(["jf"], 3), [*AR[:3], *JF[:3]])).written()


def summary(**more: Any) -> RunSummary:
    made = runs.run_config(["jf", "jf#2"], PROMPTS)
    twice = made.model_copy(
        update={"methods": [*made.methods[:2], made.methods[1].model_copy(update={"label": "again"})]}
    )
    return summarise(RunContents(twice, [*AR, *JF, *answers("again", 1.0, wavy)], **more))


def verdicts(found: Any) -> list[str]:
    """Every verdict on a speed in a summary's JSON, wherever it stands."""
    if isinstance(found, list):
        return [verdict for one in found for verdict in verdicts(one)]
    if not isinstance(found, dict):
        return []
    mine = [found["verdict"]] if "detectable" in found else []
    return mine + [verdict for one in found.values() for verdict in verdicts(one)]


def test_every_verdict_of_a_disturbed_run_is_marked_and_nothing_else_changes() -> None:
    quiet, loud = summary(watch=watch()), summary(watch=watch(stolen_cores=0.62))
    before, after = (verdicts(found.model_copy(update={"fastest": None}).written()) for found in (quiet, loud))
    assert len(before) == len(after) > 3 * 2 * 4
    assert {"faster", "no difference shown"} <= {*before}
    assert after == [f"{UNSURE}{verdict}" for verdict in before]
    assert loud.unsure
    assert not quiet.unsure
    assert known(quiet.fastest).verdict == "faster"
    assert loud.fastest is None
    parts = {"disturbed", "rows", "fastest"}
    assert loud.model_dump(exclude=parts) == quiet.model_dump(exclude=parts)
    assert known(loud.rows[1].speedup).interval == known(quiet.rows[1].speedup).interval
    assert RunSummary.model_validate(loud.written()) == loud


def test_the_reasons_of_a_disturbance_are_one_line() -> None:
    assert judged.watched_line(summary(watch=watch())) == "no, watched for 24 s"
    found = judged.watched_line(summary(watch=watch(stolen_cores=0.2, slowed=[3, 0, 0, 0, 0, 0])))
    stolen = "a hypervisor took 10% of the cores for other machines (limit 5%)"
    assert found == f"{stolen}; heat slowed the cores 3 times (limit 0)"


def test_too_few_prompts_are_no_verdict_and_stay_so() -> None:
    few = Speedup(value=1.2, verdict="too few prompts")
    assert judged.unsure_speedup(few) == few
    assert judged.unsure_speedup(None) is None


def test_over_the_base_model_too() -> None:
    made = runs.run_config(["jf"], PROMPTS)
    base = made.methods[0].model_copy(update={"label": "ar@base"})
    made = made.model_copy(update={"methods": [*made.methods, base], "base": made.model})
    found = summarise(RunContents(made, [*AR, *JF, *answers("ar@base", 2.0, wavy)], watch=watch(slowed=1)))
    over = known(found.rows[1].over_base)
    assert known(over.speedup).verdict == "unsure: faster"


def test_a_run_folder_keeps_it_and_reads_it_again(tmp_path: Path) -> None:
    made = runs.run_config(["jf"], PROMPTS)
    with RunFolder.create(tmp_path, "ar", "0" * 64, {**made.model_dump(mode="json")}) as folder:
        assert folder.read(WATCH) is None
        folder.write(WATCH, watch(stolen_cores=0.62))
        for one in (*AR, *JF):
            folder.log.append(one.model_dump(mode="json"))
        so_far = read_run(folder.path).summary
        assert so_far.unsure, "of an unfinished run too"
        folder.finish(summarise(RunContents(made, [*AR, *JF], watch=folder.read(WATCH))))
    again = read_run(folder.path).summary
    assert again.disturbed == so_far.disturbed
    assert set(load_methods(folder.path)["speedup_verdict"].dropna()) == {"unsure: faster"}
