"""Files of a run and of a sweep, small and with everything in them, and what reads them for the fuzz tests."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import reported
import sweep_workers
from rich.console import Console

from specbench.report.gathering import gather
from specbench.report.terminal.compare import comparison_report
from specbench.report.terminal.generation import Generation
from specbench.report.terminal.projection import projection_table
from specbench.report.terminal.run import headline
from specbench.report.terminal.sweep import sweep_table
from specbench.results.bandwidth import BANDWIDTH, Bandwidth, ForwardBytes, Reading
from specbench.results.comparison import compare, read_sides
from specbench.results.folder import RunFolder
from specbench.results.frame import load, load_methods
from specbench.results.judgments import JUDGMENTS, JudgeSpec, Judgment, read_judgments, scores
from specbench.results.read import read_config, read_projections, read_run, read_summary, whole_records
from specbench.results.schema import PHASES, GpuTrace
from specbench.results.verdicts import VERDICTS
from specbench.results.watch import WATCH, Look, Watch
from specbench.sweeps import driver, read_sweep
from specbench.sweeps.executors import Here

RUN, REQUESTS, SUMMARY, PROJECTION = "run.json", "requests.jsonl", "summary.json", "projection-b200.json"

#: What a run on a CPU has besides, and one of a GPU has not; and what every run of today has.

#: In the order in which a folder's files follow each other in one text; the last one has the lines that are left.
OF_A_RUN = (RUN, SUMMARY, PROJECTION, JUDGMENTS, VERDICTS, REQUESTS)
OF_A_SWEEP = ("sweep.json", f"c1/{RUN}", f"c1/{SUMMARY}", f"c1/{REQUESTS}")

_FORWARD = ForwardBytes(contexts=[0, 60, 100], nbytes=[1e9, 1.1e9, 1.1e9])
_MEMORY = Bandwidth(
    forwards={"ar": _FORWARD, "jf": _FORWARD},
    readings=[Reading(segment=at, threads=2, bytes_per_s=2e10 + at) for at in range(2)],
    refused="no C++ compiler was found",
)
_LOOK = Look(
    segment=1, seconds=4.5, cores=2, usable=2, own_cores=1.5, others_cores=0.5, stolen_cores=0.25,
    clock_mhz=2300.0, slowed=1, load=2.5,
)  # fmt: skip
_BAND = {"value": 2.0, "low": 1.5, "high": 2.5}
_GPU = GpuTrace(
    sm_clock_mhz=1400, memory_clock_mhz=1500, temperature_c=60, energy_j=3.5, power_w=250.0, throttled=["power cap"]
)


@cache
def a_run() -> dict[str, bytes]:
    """The files of a finished run of two methods and two prompts, by name."""
    with TemporaryDirectory() as out:
        traced = reported.traced(["once", " upon", " a", " time"], [2, 1], "abca", ["prefill", "draft", "bonus"])
        more = {**traced, "phases_s": {phase: [0.25, 0.5] for phase in PHASES}, "gpu": _GPU, "measures": {"hits": 1.5}}
        records = [
            record.model_copy(update={**more, "category": f"c{at}/x"})
            for label, seconds in (("ar", 2.0), ("jf", 1.0))
            for at, record in enumerate(reported.answers(label, 2, decode_s=seconds))
        ]
        path = reported.folder(
            Path(out), reported.config(["jf"], 2), records, lossless={"jf": reported.LOSSY}, right=lambda r: True,
            metrics=["strict"], engine={"attention": "triton", "graphs": 2, "capture_s": 1.5, "capture_bytes": 1 << 20},
            change=_with_memory,
        )  # fmt: skip
        judge = JudgeSpec(id="j", kind="endpoint", endpoint="x:1")
        judgment = Judgment(
            request="jf|p/0|0", method="jf", prompt_id="p/0", repeat=0, turn=1, category="c0", judge=judge,
            prompt="single-v1", prompt_sha256="0", rating=7, text="[[7]]",
        )  # fmt: skip
        (path / JUDGMENTS).write_text(judgment.model_dump_json() + "\n")
        lines = [{"request": r.request_id, "passed": True, "reason": "", "also": {"strict": False}} for r in records]
        (path / VERDICTS).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        rows = {"ar": {"decode_tok_s": _BAND}, "jf": {"decode_tok_s": _BAND, "speedup": _BAND}}
        (path / PROJECTION).write_text(json.dumps({"gpu": "b200", "device": "a CPU", "rows": rows}))
        return {name: (path / name).read_bytes() for name in OF_A_RUN}


def _with_memory(summary: dict[str, Any]) -> None:
    summary["bandwidth"] = _MEMORY.figures().written()
    for row in summary["rows"]:
        row["bandwidth_share"] = 0.5


def memory() -> bytes:
    """What such a run would have read of memory."""
    return json.dumps(BANDWIDTH.json(_MEMORY)).encode()


def watch() -> bytes:
    """What the machine would have done beside such a run."""
    return json.dumps(WATCH.json(Watch(looks=[_LOOK] * 5))).encode()


@cache
def a_sweep() -> dict[str, bytes]:
    """The files of a sweep of one cell, by place."""
    with TemporaryDirectory() as out:
        worker = sweep_workers.ToyWorker(["toy n=2"], tuning=("p0", "p1"), held_out=("h",))
        asked = driver.Asked(sweep_workers.grid(["toy n=2"], too_large=["toy n=600"]), Path(out))
        path = driver.drive(asked, Here(lambda: worker), driver.Silent())
        return {name: (path / name).read_bytes() for name in OF_A_SWEEP}


def in_one(files: dict[str, bytes]) -> bytes:
    """All files in one text, a line for each JSON document and each line of JSON."""
    texts = (text if name.endswith("l") else json.dumps(json.loads(text)).encode() for name, text in files.items())
    return b"".join(text if text.endswith(b"\n") else text + b"\n" for text in texts)


def apart(content: bytes, files: dict[str, bytes], folder: Path) -> None:
    """Writes such a text as the files that it is of: each has as many lines as it had."""
    lines = content.splitlines(keepends=True)
    *others, last = files
    for name in others:
        count = files[name].count(b"\n") if name.endswith("l") else 1
        _write(folder / name, b"".join(lines[:count]))
        del lines[:count]
    _write(folder / last, b"".join(lines))


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


def beside(read: Callable[[RunFolder], Any], *names: str) -> Callable[[Path], None]:
    """What reads one file of a run, with these others there as they are in a good one."""

    def reader(path: Path) -> None:
        for name in names:
            if not (path.parent / name).exists():
                (path.parent / name).write_bytes(a_run()[name])
        read(RunFolder.load(path.parent))

    return reader


def _shown(*parts: Any) -> None:
    console = _console()
    for part in parts:
        console.print(part)
    console.file.truncate(0)


@cache
def _console() -> Console:
    return Console(file=io.StringIO(), width=80)


def requests(folder: RunFolder) -> None:
    """Every request, with what the viewer makes of it."""
    for record in whole_records(folder, read_config(folder)):
        if record.tokens:
            _shown(Generation(record))


def summary(folder: RunFolder) -> None:
    """The summary, shown."""
    if found := read_summary(folder, read_config(folder)):
        _shown(headline(folder.run, found))


def judged(folder: RunFolder) -> None:
    """The ratings of all judges."""
    scores(read_judgments(folder.path), ["ar", "jf"])


def bandwidth(folder: RunFolder) -> None:
    """What was read of memory, and the figures of an unfinished run that has it."""
    folder.read(BANDWIDTH)
    read = read_run(folder.path)
    _shown(headline(read.run, read.summary))


def watched(folder: RunFolder) -> None:
    """What the machine did, and the figures of an unfinished run that has it."""
    folder.read(WATCH)
    read = read_run(folder.path)
    _shown(headline(read.run, read.summary))


def projected(folder: RunFolder) -> None:
    """The projections, shown."""
    _shown(*map(projection_table, read_projections(folder)))


def read_all(path: Path, *, finished: bool) -> None:
    """Reads a whole run folder in one of the ways there are, and shows it."""
    folder = path.parent
    apart(path.read_bytes(), a_run(), folder)
    if finished:
        (folder / "DONE").touch()
    else:
        (folder / SUMMARY).unlink()

    _one_of(path, _ways(folder) if finished else _ways(folder)[:-1])


def _ways(folder: Path) -> Sequence[Callable[[], Any]]:
    def show() -> None:
        read = read_run(folder)
        _shown(headline(read.run, read.summary, read.judged), *map(projection_table, read.projections))

    def compared() -> None:
        _shown(comparison_report(compare(read_sides([f"{folder}:ar", f"{folder}:jf"])), True))

    return show, lambda: load(folder, text=True), lambda: load_methods(folder), lambda: gather([folder]), compared


def _one_of(path: Path, ways: Sequence[Callable[[], Any]]) -> None:
    """Reads in one of these ways, by the content: all of them for every mutant would take five times as long."""
    ways[zlib.crc32(path.read_bytes()) % len(ways)]()


def read_sweep_all(path: Path) -> None:
    """The same of a sweep's."""
    folder = path.parent
    apart(path.read_bytes(), a_sweep(), folder)
    (folder / "c1" / "DONE").touch()

    def show() -> None:
        read = read_sweep(folder)
        _shown(sweep_table(next(iter(read.runs.values())).run, read.cells))
        read.cells.to_csv(index=False)

    _one_of(path, (show, lambda: gather([folder])))
