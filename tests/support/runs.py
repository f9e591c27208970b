"""Made-up runs, sweeps, profiles and their files, made up so that every figure is known beforehand. Free of torch."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from specbench.analysis.comparison import compare, read_sides
from specbench.analysis.frame import load, load_methods
from specbench.analysis.read import ReadRun, read_config, read_projections, read_run, read_summary, whole_records
from specbench.analysis.stats import Interval, verdict
from specbench.analysis.summary import RunContents, summarise
from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.common.options import Options
from specbench.decoding.protocol import Method
from specbench.decoding.tree import TokenTree
from specbench.hardware.roofline import Ceilings, ModelShape, bound_s, knee, step_cost
from specbench.hardware.stored_profile import CONTEXTS, ROWS, Profile, base_context
from specbench.report.answers.generation import Generation
from specbench.report.charts.sweep_cells import FIGURES
from specbench.report.gathering import gather
from specbench.report.render.terminal import render_terminal
from specbench.report.tables.comparison import comparison_report
from specbench.report.tables.run_parts import projection_table
from specbench.report.tables.run_table import run_report
from specbench.report.tables.sweep import sweep_report
from specbench.results.bandwidth import BANDWIDTH, Bandwidth, ForwardBytes, Reading
from specbench.results.folder import RunFolder
from specbench.results.judgments import JUDGMENTS, JudgeSpec, Judgment, judge_scores, read_judgments
from specbench.results.request_schema import PHASES, GpuTrace, RequestRecord, TokenTrace, request_key
from specbench.results.schema import (
    BASELINE,
    MethodSpec,
    ModelSpec,
    RunConfig,
    SamplingSpec,
    SimulatedAcceptance,
    TaskSpec,
)
from specbench.results.summary_schema import RunSummary
from specbench.results.verdicts import VERDICTS
from specbench.results.watch import WATCH, MachineInterval, Watch
from specbench.runner.stop import Decode, Output, StopRule
from specbench.runner.trace import Verified, token_trace, verified
from specbench.sweeps import driver, read_sweep
from specbench.sweeps.driver import Asked, Silent, drive
from specbench.sweeps.executors import Here
from specbench.sweeps.grid import Cell, Grid
from specbench.sweeps.messages import Conditions, Failed, Task, WorkerInfo, WorkerMessage
from specbench.sweeps.search import Kind
from specbench.training.data.trajectory_folder import Trajectory

# ------------------------------
# Workers of a sweep without a model, and the records they make. No torch: processes that begin from nothing import
# it.
#
# A toy cell ``toy n=4`` emits one to four tokens a forward, drawn from (label, prompt, turn) alone; so anyone who
# decodes a request, and whenever, its counts are the same. Its seconds are those of a clock that only the decoding
# moves.


def record(
    label: str, prompt: str, *, repeat: int = 0, turn: int = 1, tokens: int = 11, forwards: int = 10,
    rows: int | None = None, decode_s: float = 1.0, decode_share_s: float | None = None, segment: int = 0,
    start_s: float = 0.0, text: str = "",
) -> RequestRecord:  # fmt: skip
    """A finished request of ``tokens`` tokens, the first one the prefill's."""
    base, more = divmod(tokens - 1, forwards) if forwards else (0, 0)
    busy = decode_s if decode_share_s is None else decode_share_s
    return RequestRecord(
        request_id=request_key(label, prompt, repeat, turn), method=label, prompt_id=prompt, repeat=repeat, turn=turn,
        prompt_tokens=5, output_ids=list(range(tokens)), text=text, finish_reason="length", output_tokens=tokens,
        overshoot_tokens=0, stop_tail_tokens=0, accepted_lengths=[base + (at < more) for at in range(forwards)],
        tree_rows=forwards if rows is None else rows, target_forwards=forwards,
        draft_forwards=0, start_s=start_s, segment=segment, ttft_s=0.1, decode_s=decode_s,
        latency_s=0.1 + decode_s, prefill_share_s=0.1, decode_share_s=busy,
    )  # fmt: skip


def worker_config(labels: Sequence[str], prompts: int, requests: int = 0, **options: Any) -> RunConfig:
    """Of a sweep with these cells; what a label says, ``toy n=4``, is in its options next to ``options``."""
    specs = []
    for label in (BASELINE, *labels):
        name, *result = label.split()
        swept = {} if label == BASELINE else {**options, **dict(part.split("=") for part in result)}
        specs.append(MethodSpec(label=label, name=name, options=swept, lossless=True))
    return RunConfig(
        model=ModelSpec(
            name="m", source="m", revision=None, fingerprint="0", dtype="float32", device="cpu",
            parameters=1, weight_bytes=4, dummy=True, template=None,
        ),
        task=TaskSpec(
            name="t", version=1, options={}, prompts=prompts, requests=requests or prompts, metric="",
            prompts_sha256="0",
        ),
        methods=specs,
        sampling=SamplingSpec(temperature=0, top_k=0, top_p=1, seed=0),
        max_new_tokens=64, repeats=1, concurrency=1, attention="reference", linears="torch", order_seed=0,
        identity={"place": os.environ.get("PLACE", "")},
    )  # fmt: skip


def grid(labels: Sequence[str], concurrency: Sequence[int] = (1,), too_large: Sequence[str] = ()) -> Grid:
    """The grid of these cells."""

    def method(label: str) -> Method:
        return Method(label.split()[0], label, Options(), True, None)

    cells, lost = (
        tuple(Cell(method(label), {"n": int(label.rpartition("=")[2])}) for label in some)
        for some in (labels, too_large)
    )
    return Grid(method(BASELINE), cells, tuple(concurrency), lost)


@dataclass(frozen=True)
class Death:
    """When a worker kills its process: ``times`` in all, ``after`` so many records, or ``idle`` between tasks."""

    folder: Path
    times: int = 1
    after: int = 3
    idle: bool = False

    def claim(self) -> bool:
        """Whether a death is left."""
        for number in range(self.times):
            try:
                os.close(os.open(self.folder / f"died-{number}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            return True
        return False


@dataclass
class ToyWorker:
    """Decodes as described above; ``failing`` is label -> prompt at which its method's code fails."""

    labels: Sequence[str]
    tuning: Sequence[str] = tuple(f"p{at}" for at in range(8))
    held_out: Sequence[str] = ()
    of_turns: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    death: Death | None = None
    failing: Mapping[str, str] = field(default_factory=dict)
    decoded: list[str] = field(default_factory=list)
    graded: int = 0
    clock: float = 0.0

    def turns(self) -> dict[str, int]:
        return {prompt: self.of_turns.get(prompt, 1) for prompt in (*self.tuning, *self.held_out)}

    def describe(self) -> WorkerInfo:
        turns = self.turns()
        made = worker_config(self.labels, len(turns), sum(turns.values()), **self.options)
        environment = {"device": {"name": "toy"}}
        return WorkerInfo(made, environment, tuple(self.tuning), tuple(self.held_out), turns)

    def decode(self, task: Task) -> Iterator[WorkerMessage]:
        texts, segment, failed = dict(task.done), task.segment, set[str]()
        for prompt in task.prompts:
            for turn in range(1, 1 + self.turns()[prompt]):
                labels = list(task.labels)
                random.Random(f"{task.repeat}/{prompt}/{turn}").shuffle(labels)
                for label in labels:
                    key = request_key(label, prompt, task.repeat, turn)
                    if key not in texts and self.failing.get(label) == prompt:
                        yield Failed(label, f"method of {label} failed in draft")
                        failed.add(label)
                    elif key not in texts and label not in failed:
                        history = [texts[request_key(label, prompt, task.repeat, at)] for at in range(1, turn)]
                        made = self._request(label, prompt, task.repeat, turn, segment, history)
                        segment += 1
                        yield made
                        texts[key] = made.text
        if self.death and self.death.idle and self.death.claim():
            threading.Timer(0.1, os._exit, (9,)).start()

    def rest(self) -> Iterator[Conditions]:
        yield from ()

    def listen(self, say: Any) -> None: ...

    def _request(
        self, label: str, prompt: str, repeat: int, turn: int, segment: int, history: Sequence[str]
    ) -> RequestRecord:
        if label.startswith("bad"):
            raise UsageError("this cell cannot be decoded; leave it out")
        if self.death and not self.death.idle and len(self.decoded) >= self.death.after and self.death.claim():
            os._exit(9)
        most = 1 if label == BASELINE else int(label.rpartition("=")[2])
        tokens = 8 + random.Random(f"{prompt}/{turn}").randrange(17)
        rng = random.Random(f"{label}/{prompt}/{turn}")
        forwards = left = 0
        left = tokens - 1
        while left > 0:
            left -= rng.randint(1, most)
            forwards += 1
        seconds = forwards * (1 + 0.05 * most) * random.Random(f"{label}/{prompt}/{turn}/{repeat}").uniform(0.98, 1.02)
        made = record(
            label, prompt, repeat=repeat, turn=turn, tokens=tokens, forwards=forwards, rows=forwards * most,
            decode_s=seconds, segment=segment, start_s=self.clock, text=f"{label} to {prompt} after {list(history)}",
        )  # fmt: skip
        self.clock += seconds
        self.decoded.append(made.request_id)
        return made

    def grade(self, records: Sequence[RequestRecord], *asked: TaskSpec) -> Mapping[str, dict[str, Any]]:
        self.graded += 1
        labels = [record.method for record in records if record.method in {BASELINE, *self.labels}]
        return {label: {"verdict": "exact", "exact": labels.count(label)} for label in dict.fromkeys(labels)}

    def report(self) -> dict[str, Any]:
        return {"process": os.getpid()}

    def close(self) -> None:
        pass


def make(labels: Sequence[str], **more: Any) -> ToyWorker:
    """A toy worker; a partial of this can be sent to another process."""
    return ToyWorker(labels, **more)


def refuse() -> ToyWorker:
    """A worker that cannot begin, for a reason of the user's; it may take it LATE seconds to find out."""
    time.sleep(float(os.environ.get("LATE", 0)))
    raise EnvironmentRefused("this machine has no toys; bring some")


def crash() -> ToyWorker:
    """A worker that cannot begin, for no reason of the user's."""
    raise RuntimeError("boom")


Make = Callable[[], ToyWorker]

#: What of a record no worker and no clock decides.
COUNTS = ("request_id", "output_tokens", "target_forwards", "tree_rows", "accepted_lengths", "text")


def answered(found: Iterable[WorkerMessage]) -> list[RequestRecord]:
    """What an executor gave, where no cell fails."""
    records = []
    for each in found:
        assert isinstance(each, RequestRecord), each
        records.append(each)
    return records


def counts(records: Sequence[RequestRecord]) -> dict[str, dict[str, Any]]:
    """Counts by key; a request that is there twice fails."""
    found = {made.request_id: {name: getattr(made, name) for name in COUNTS} for made in records}
    assert len(found) == len(records), "a request is there twice"
    return found


# ------------------------------
# Run folders as ``specbench run`` writes them, with records made up so that their figures are known beforehand.


EXACT = {"verdict": "exact", "exact": 8, "numeric_tie": 0, "lossy": 0, "noise_floor": None, "divergences": []}
LOSSY = {**EXACT, "verdict": "lossy", "exact": 5, "lossy": 3}

ENVIRONMENT = {
    "specbench": "0.1.0", "git_commit": "0123456789abcdef", "git_dirty": False, "python": "3.11.7",
    "platform": "Linux", "ram_bytes": 32 << 30, "load_average": [0.5, 0.25, 0.125],
    "cpu": {"model": "a CPU", "usable_cores": 8, "torch_threads": 4},
    "device": {
        "kind": "cuda", "name": "NVIDIA A100-SXM4-80GB", "memory_bytes": 80 << 30, "driver": "570", "cuda": "13.0",
    },
    "versions": {"torch": "2.13.0", "transformers": "5.23.0", "triton": None},
}  # fmt: skip


def run_config(labels: Sequence[str], prompts: int, *, lot: Sequence[str] = (), **changes: Any) -> RunConfig:
    """A configuration of these rows; ``m#2`` is another setting of method ``m``, those of ``lot`` are simulated."""
    specs = [
        MethodSpec(label=label, name=label.partition("#")[0], options=_options(label), lossless=True)
        for label in (BASELINE, *labels)
    ]
    made: dict[str, Any] = {
        "model": ModelSpec(
            name="config:qwen3-8b", source="config:qwen3-8b", revision=None, fingerprint="f" * 64, dtype="bfloat16",
            device="cuda", parameters=8, weight_bytes=16, dummy=False,
        ),
        "task": TaskSpec(
            name="humaneval", version=2, options={"style": "chat"}, prompts=prompts, requests=prompts,
            prompts_sha256="a" * 64,
        ),
        "methods": specs,
        "sampling": SamplingSpec(temperature=0, top_k=0, top_p=1, seed=0),
        "max_new_tokens": 64, "repeats": 1, "concurrency": 1, "attention": "triton", "graphs": "on", "linears": "torch",
        "simulated": {label: SimulatedAcceptance(mean=4, spread=1) for label in lot},
        "order_seed": 0, "identity": {},
    }  # fmt: skip
    return RunConfig(**{**made, **changes})


def _options(label: str) -> dict[str, Any]:
    name, _, number = label.partition("#")
    return {} if name == BASELINE else {"n": 16 * int(number or 1), "window": "block"}


def answers(
    label: str,
    prompts: int | range,
    *,
    decode_s: float,
    output_tokens: int = 25,
    target_forwards: int = 24,
    **more: Any,
) -> list[RequestRecord]:
    """An answer to each prompt; of later prompts it takes a little longer, so that intervals have a width."""
    found = []
    for at in range(prompts) if isinstance(prompts, int) else prompts:
        counts: dict[str, Any] = {"tokens": output_tokens, "forwards": target_forwards, "rows": 4 * target_forwards}
        one = record(label, f"p/{at}", decode_s=decode_s * (1 + at / 64), **counts)
        found.append(one.model_copy(update={key: _of(value, at) for key, value in more.items()}))
    return found


def _of(value: Any, at: int) -> Any:
    return value(at) if callable(value) else value


def traced(texts: Sequence[str], accepts: Sequence[int], origins: str, words: Sequence[str]) -> dict[str, Any]:
    """What a record of these tokens says of them, for ``answers``."""
    steps, chars = len(accepts), [len(text) for text in texts]
    return {
        "output_ids": list(range(len(texts))), "text": "".join(texts), "output_tokens": len(texts),
        "tokens": TokenTrace(words=list(words), origins=origins, rows=[5] * steps, chars=chars, tail=""),
        "target_forwards": steps, "accepted_lengths": list(accepts), "tree_rows": 5 * steps,
    }  # fmt: skip


def folder(
    out: Path,
    made: RunConfig,
    records: Sequence[RequestRecord],
    *,
    lossless: Mapping[str, Mapping[str, Any]] | None = None,
    right: Callable[[RequestRecord], bool] | None = None,
    metrics: Sequence[str] = (),
    finish: bool = True,
    created: str = "2026-01-02T03:04:05+00:00",
    change: Callable[[dict[str, Any]], None] | None = None,
    engine: Mapping[str, Any] | None = None,
) -> Path:
    """A run folder, named by its start and the hash of its configuration; without ``right`` nothing was scored."""
    run = {"created_utc": created, **made.model_dump(mode="json"), "environment": ENVIRONMENT}
    # Not its own digest, which changes with every field that configurations gain.
    result = [spec.label for spec in made.methods], made.task.name, made.model.dummy, made.concurrency
    digest = hashlib.sha256(repr(result).encode()).hexdigest()
    path = out / f"{created[:19].replace('-', '').replace(':', '')}Z-{digest[:8]}"
    with RunFolder.at(path, digest, run) as folder:
        for one in records:
            folder.log.append(one.model_dump(mode="json"))
        if finish:
            verdicts = {one.request_id: right(one) for one in records} if right else None
            further = {name: dict(verdicts or {}) for name in metrics}
            summary = summarise(RunContents(made, records, verdicts, lossless, further, engine))
            if change:
                content = summary.written()
                change(content)
                summary = RunSummary.model_validate(content)
            folder.finish(summary)
    return path


# ------------------------------
# the files of a run's folder read as they are, by no reader of the code's own.


def config_on_disk(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "run.json").read_text()))


def summary_on_disk(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "summary.json").read_text()))


def rows_on_disk(folder: Path) -> dict[str, dict[str, Any]]:
    """Rows of the summary by their method's label."""
    return {row["method"]: row for row in summary_on_disk(folder)["rows"]}


def requests_on_disk(folder: Path) -> list[dict[str, Any]]:
    """The lines that are whole; none where nothing is written yet."""
    file = folder / "requests.jsonl"
    text = file.read_bytes() if file.exists() else b""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith(b"\n")]


# ------------------------------
# Run folders derived from a committed one, with requests changed as a test wants them.


RESULTS = Path(__file__).parents[2] / "results"

#: Folders of it that results/README.md links to, by the name of their piece of evidence: a new measurement has another
#: folder. What else lies there are somebody's own runs, of which nothing can be expected.
PIECES = {
    piece: RESULTS / folder
    for piece, folder in re.findall(r"^\| (\S+) \|.*\]\(([^)/]+)\)", (RESULTS / "README.md").read_text(), re.MULTILINE)
}

CURATED = list(PIECES.values())

#: Those of them that are runs, the oldest first.
COMMITTED = sorted(folder for folder in CURATED if (folder / "run.json").exists())

#: A run of 40 prompts and five rows: AR and ``jetspec`` with four settings.
GSM8K = PIECES["head-gsm8k"]

Change = Callable[[dict[str, Any]], object]


def derived(
    out: Path,
    request: Change | None = None,
    run: Change | None = None,
    *,
    source: Path = GSM8K,
    labels: tuple[str, ...] = ("ar", "jetspec"),
) -> Path:
    """A finished run of some rows of a committed one; ``request`` and ``run`` change lines and ``run.json``."""
    content = json.loads((source / "run.json").read_text())
    content["methods"] = [spec for spec in content["methods"] if spec["label"] in labels]
    if run:
        run(content)
    lines = [json.loads(line) for line in (source / "requests.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["method"] in labels]
    for line in lines:
        if request:
            request(line)
    kept = {line["request_id"] for line in lines}
    verdicts = (source / "verdicts.jsonl").read_text().splitlines(keepends=True)
    out.mkdir(parents=True)
    (out / "run.json").write_text(json.dumps(content))
    (out / "requests.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (out / "verdicts.jsonl").write_text("".join(line for line in verdicts if json.loads(line)["request"] in kept))
    config = RunConfig.model_validate({name: content[name] for name in RunConfig.model_fields if name in content})
    summary = summarise(
        RunContents(config, [RequestRecord.model_validate(line) for line in lines], read_run(out).verdicts)
    )
    (out / "summary.json").write_text(json.dumps(summary.written()))
    (out / "DONE").write_text("")
    return out


def timed(factor: Callable[[dict[str, Any]], float]) -> Change:
    """A change that multiplies the times of a request."""

    def change(line: dict[str, Any]) -> None:
        by = factor(line)
        for name in ("ttft_s", "decode_s", "latency_s", "prefill_share_s", "decode_share_s"):
            line[name] *= by

    return change


# ------------------------------
# Requests with a trace, from steps written by hand.


Taken = tuple[TokenTree, Sequence[int], int]  # a step's tree, its path, and the target's token after it


def traced_record(
    decode: Decode,
    first: int,
    steps: Sequence[Taken],
    *,
    stop_ids: Sequence[int] = (),
    stops: Sequence[str] = (),
    budget: int = 100,
    whole: bool = True,
    method: str = "toy",
    prompt: str = "p0",
    **changes: Any,
) -> RequestRecord:
    """The record of an answer whose prefill emitted ``first``, as the runner makes it; a step takes 10 ms."""
    output = Output(StopRule(frozenset(stop_ids), tuple(stops), budget, decode))
    output.extend([first])
    accepts: list[int] = []
    taken: list[Verified] = []
    for tree, path, bonus in steps:
        accepts.append(output.extend([tree.tokens[row] for row in path[1:]] + [bonus]))
        taken.append(verified(tree, path, whole=whole))
    seconds = 0.01 * len(steps)
    values = {
        "request_id": request_key(method, prompt, 0), "method": method, "prompt_id": prompt, "repeat": 0,
        "prompt_tokens": 5, "output_ids": output.ids, "text": output.text(), "finish_reason": output.reason or "length",
        "output_tokens": len(output.ids),
        "overshoot_tokens": output.overshoot, "stop_tail_tokens": output.stop_tail(), "accepted_lengths": accepts,
        "tree_rows": sum(step.rows for step in taken), "target_forwards": len(steps), "draft_forwards": 0,
        "start_s": 0.0,
        "segment": 0, "ttft_s": 0.1, "decode_s": seconds, "latency_s": 0.1 + seconds, "prefill_share_s": 0.1,
        "decode_share_s": seconds, "tokens": token_trace(output, accepts, taken),
    }  # fmt: skip
    return RequestRecord.model_validate(values | changes)


# ------------------------------
# Runs whose tokens came at known times, for races.


TEXTS = ["One", " two", " three", " <b>four</b>", "\n", "five\x1b[31m", " six", " \u202eseven"]


def race_run(out: Path, prompts: int = 3, **changes: Any) -> Path:
    """AR takes a second a token, ``pld`` two seconds for each pair; both begin after half a second.

    Of prompt ``p/1`` all of this takes twice as long for ``pld``, of ``p/2`` half as long.
    """
    factor = {0: 1.0, 1: 2.0, 2: 0.5}
    made = run_config(["pld"], prompts, **changes)
    records = [
        *_timed("ar", [1] * 7, [1.0] * 7, lambda at: 1.0, "a" + "b" * 7, prompts),
        *_timed("pld", [2, 2, 2, 1], [1.0] * 4, lambda at: factor[at % 3], "a" + "cb" * 3 + "b", prompts),
    ]
    return folder(out, made, records)


def read_race(out: Path, prompts: int = 3, **changes: Any) -> ReadRun:
    """The same, read."""
    return read_run(race_run(out, prompts, **changes))


def _timed(label: str, accepts: Sequence[int], steps: Sequence[float], factor: Any, origins: str, prompts: int) -> Any:
    found = answers(label, prompts, decode_s=0.0, **traced(TEXTS, accepts, origins, ["prefill", "bonus", "lookup"]))
    return [
        one.model_copy(
            update={
                "ttft_s": 0.5,
                "step_s": [step * factor(at) for step in steps],
                "decode_s": sum(steps) * factor(at),
                "decode_share_s": sum(steps) * factor(at),
                "latency_s": 0.5 + sum(steps) * factor(at),
            }
        )
        for at, one in enumerate(found)
    ]


# ------------------------------
# Answers to chained problems with times known beforehand.


CHAINED = TaskSpec(
    name="gsm8k", version=1, options={"chain": 2}, prompts=3, requests=6, metric="", prompts_sha256="b" * 64
)


def turn(method: str, prompt: str, number: int, steps: list[float], kept: int, **more: Any) -> RequestRecord:
    """An answer of ``kept`` tokens a forward; its prefill took half a second."""
    tokens = kept * len(steps)
    made = record(method, prompt, decode_s=sum(steps), tokens=1 + tokens, forwards=len(steps), rows=len(steps))
    return made.model_copy(
        update={
            "request_id": request_key(method, prompt, 0, number), "turn": number, "step_s": steps,
            "accepted_lengths": [kept] * len(steps), "prompt_tokens": 100 * number, "ttft_s": 0.5,
            "prefill_share_s": 0.5, "latency_s": 0.5 + sum(steps), "decode_share_s": sum(steps), **more,
        }
    )  # fmt: skip


# ------------------------------
# A profile as it is on disk, made up: of a GPU with a datasheet, and of whatever a test changes in it.


# Qwen3-8B in bfloat16.
SHAPE = ModelShape.model_validate(
    {
        "matmul": 6945767424, "head": 622329856, "embedding": 622329856, "embedding_width": 4096, "tied": False,
        "small": 308224, "weight_bytes": 2, "cache_bytes": 2,
        "attention": [{"layers": 36, "query_heads": 32, "kv_heads": 8, "key_size": 128, "value_size": 128}],
    }
)  # fmt: skip
MEASURED = {"copy_bytes_per_s": 4.1e12, "read_bytes_per_s": 4.2e12, "flops_per_s": 7.1e14}
DATASHEET = {"bytes_per_s": 4.8e12, "flops_per_s": 9.895e14}


def made_up_profile(
    contexts: tuple[int, ...] = CONTEXTS, slots: tuple[int, ...] = (2, 4, 8, 16), **changes: Any
) -> Profile:
    """Every step takes a tenth more than its bound and a fifth of a millisecond."""
    base = base_context(contexts)
    ceilings = Ceilings(bytes_per_s=MEASURED["read_bytes_per_s"], flops_per_s=MEASURED["flops_per_s"])
    cells = [(rows, context, 1) for context in contexts for rows in ROWS]
    cells += [(rows, base, several) for several in slots for rows in (1, 4, 16, 64)]
    points = []
    for rows, context, several in cells:
        seconds = 2e-4 + 1.1 * bound_s(step_cost(SHAPE, rows, context, several), ceilings)
        times = {"seconds": seconds, "low_s": 0.98 * seconds, "high_s": 1.03 * seconds, "steps": 25}
        points.append({"rows": rows, "context": context, "slots": several, **times})
    return Profile.model_validate(
        {
            "model": {
                "name": "config:qwen3-8b", "source": "config:qwen3-8b", "revision": None, "fingerprint": "f" * 64,
                "dtype": "bfloat16", "device": "cuda", "parameters": SHAPE.parameters,
                "weight_bytes": 2 * SHAPE.parameters, "dummy": True,
            },
            "environment": {"device": {"kind": "cuda", "name": "NVIDIA H200"}, "cpu": {"model": "a CPU"}},
            "settings": {},
            "engine": {"attention": "triton", "why": "", "graphs": 14, "capture_s": 4.0, "linears": "own"},
            "shape": SHAPE,
            "measured": {**MEASURED, "buffer_bytes": 4 << 30, "matmul_size": 8192, "repeats": 15},
            "gpu": "h200",
            "datasheet": DATASHEET,
            "base_context": base,
            "knee": knee(SHAPE, ceilings, base),
            "points": points,
            "free_rows": [{"context": context, "rows": 96, "below": 128, "tolerance": 0.1} for context in contexts],
            "left_out": [],
            **changes,
        }
    )  # fmt: skip


# ------------------------------
# Trajectories to learn from, made up or of a model.


def made_up_trajectories(
    name: str = "made/0", prompt: int = 5, answer: int = 11, block_size: int = 4, vocab: int = 50, states: int = 4
) -> Trajectory:
    """Random tokens; of each block the states converge from the left, one more random prefix each, the first token
    right from the start."""
    draw = random.Random(name)
    text = [draw.randrange(vocab) for _ in range(answer)]
    blocks = []
    for start in range(0, answer, block_size):
        fixed = [*text[start : start + block_size], *[0] * (start + block_size - answer)]
        right = sorted(draw.randrange(1, block_size) for _ in range(states - 1))
        noisy = [fixed[:at] + [draw.randrange(vocab) for _ in range(block_size - at)] for at in right]
        blocks.append([*noisy, fixed])
    return Trajectory(name, [draw.randrange(vocab) for _ in range(prompt)], text, block_size, 0, blocks)


# ------------------------------
# Tables of cells as a sweep makes them, with figures that a test can tell beforehand.


NOTHING = float("nan")
_PLAIN: dict[str, Any] = {
    **dict.fromkeys(FIGURES, NOTHING),
    "method": "jf", "concurrency": 1, "prompts": 50, "requests": 50, "tokens": 5000, "target_forwards": 2000,
    "tokens_per_forward": 2.5, "decode_tok_s": 100.0, "best": False, "within_noise": False, "stopped": "",
}  # fmt: skip


def cells(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The table of these rows. What a row does not say is plain; ``decode_tok_s_half`` makes an interval."""
    made = []
    for number, given in enumerate(rows):
        row = {**_PLAIN, "cell": f"{number:08x}", **given}
        half = row.pop("decode_tok_s_half", None)
        if half is not None:
            row |= {"decode_tok_s_low": row["decode_tok_s"] - half, "decode_tok_s_high": row["decode_tok_s"] + half}
        if "label" not in given:
            row["label"] = row["method"]
        made.append(row)
    return pd.DataFrame(made)


def plane(n: float, pool: float) -> float:
    """tok/s of :func:`grid`: a plane over log2 of both options."""
    return float(20 + 10 * np.log2(n) + 4 * np.log2(pool))


def measured_grid(
    ns: Sequence[float] = (8, 16, 32, 64), pools: Sequence[float] = (1, 2, 4), *, without: Any = (), **further: Any
) -> pd.DataFrame:
    """A cell for each pair of options but those in ``without``: ``plane`` tok/s, a tenth of that tokens per forward."""
    pairs = [(n, pool) for n in ns for pool in pools if (n, pool) not in without]
    return cells(
        [
            {"n": n, "pool": p, "decode_tok_s": plane(n, p), "tokens_per_forward": plane(n, p) / 10, **further}
            for n, p in pairs
        ]
    )


def busy(method: str, speedups: Mapping[int, float | tuple[float, float, float]], **further: Any) -> pd.DataFrame:
    """A method's rows by concurrency: its speedup, or (low, value, high)."""
    rows = []
    for concurrency, given in speedups.items():
        low, value, high = given if isinstance(given, tuple) else (NOTHING, given, NOTHING)
        result = verdict(None if np.isnan([low, high]).any() else Interval(low, high, 0.95))
        figures = {"speedup": value, "speedup_low": low, "speedup_high": high, "verdict": result}
        rows.append({"method": method, "concurrency": concurrency, **figures, **further})
    return cells(rows)


# ------------------------------
# Sweep commands with a toy worker in this process, which may break off, and what they leave on disk.


CELLS = [f"toy n={2**at}" for at in range(1, 5)]
HELD = ("h0", "h1", "h2")


class Broken(Exception):
    """The power went."""


class Breaking(Here):
    """One worker in this process that is gone after ``after`` records."""

    def __init__(self, worker: ToyWorker, after: int | None = None) -> None:
        super().__init__(lambda: worker)
        self.worker, self.left = worker, after
        self.tasks: list[Task] = []

    def run(self, tasks: Sequence[Task]) -> Iterator[WorkerMessage]:
        self.tasks += tasks
        for record in super().run(tasks):
            yield record
            if self.left is not None:
                self.left -= 1
                if not self.left:
                    raise Broken


def sweep(
    out: Path,
    labels: Sequence[str] = CELLS,
    *,
    after: int | None = None,
    concurrency: Sequence[int] = (1,),
    kind: Kind = "grid",
    until: float | None = None,
    progress: Silent | None = None,
    too_large: Sequence[str] = (),
    **of_worker: Any,
) -> tuple[Path, ToyWorker]:
    """One command; :class:`Broken` where it is to break off."""
    worker = ToyWorker(labels, **of_worker)
    asked = Asked(grid(labels, concurrency, too_large), out, kind, until)
    return drive(asked, Breaking(worker, after), progress or Silent()), worker


def broken(out: Path, labels: Sequence[str] = CELLS, **more: Any) -> None:
    """A command that breaks off."""
    with pytest.raises(Broken):
        sweep(out, labels, **more)


def records(path: Path, concurrency: int = 1) -> list[RequestRecord]:
    with RunFolder.load(path / f"c{concurrency}") as folder:
        return list(folder.records())


def read_json(*parts: Any) -> dict[str, Any]:
    return dict(json.loads(Path(*parts).read_text()))


def sweep_summary(path: Path) -> dict[str, Any]:
    return read_json(path, "c1", "summary.json")


def head(path: Path) -> dict[str, Any]:
    return read_json(path, "sweep.json")


# ------------------------------
# Files of a run and of a sweep, small and with everything in them, and what reads them for the fuzz tests.


RUN, REQUESTS, SUMMARY, PROJECTION = "run.json", "requests.jsonl", "summary.json", "projection-b200.json"


#: In the order in which a folder's files follow each other in one text; the last one has the lines that are left.
OF_A_RUN = (RUN, SUMMARY, PROJECTION, JUDGMENTS, VERDICTS, REQUESTS)
OF_A_SWEEP = ("sweep.json", f"c1/{RUN}", f"c1/{SUMMARY}", f"c1/{REQUESTS}")

_FORWARD = ForwardBytes(contexts=[0, 60, 100], nbytes=[1e9, 1.1e9, 1.1e9])
_MEMORY = Bandwidth(
    forwards={"ar": _FORWARD, "jf": _FORWARD},
    readings=[Reading(segment=at, threads=2, bytes_per_s=2e10 + at) for at in range(2)],
    refused="no C++ compiler was found",
)
_LOOK = MachineInterval(
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
        trace = traced(["once", " upon", " a", " time"], [2, 1], "abca", ["prefill", "draft", "bonus"])
        more = {**trace, "phases_s": {phase: [0.25, 0.5] for phase in PHASES}, "gpu": _GPU, "measures": {"hits": 1.5}}
        records = [
            record.model_copy(update={**more, "category": f"c{at}/x"})
            for label, seconds in (("ar", 2.0), ("jf", 1.0))
            for at, record in enumerate(answers(label, 2, decode_s=seconds))
        ]
        path = folder(
            Path(out), run_config(["jf"], 2), records, lossless={"jf": LOSSY}, right=lambda r: True,
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
    """What the machine would have done next to such a run."""
    return json.dumps(WATCH.json(Watch(looks=[_LOOK] * 5))).encode()


@cache
def a_sweep() -> dict[str, bytes]:
    """The files of a sweep of one cell, by place."""
    with TemporaryDirectory() as out:
        worker = ToyWorker(["toy n=2"], tuning=("p0", "p1"), held_out=("h",))
        asked = driver.Asked(grid(["toy n=2"], too_large=["toy n=600"]), Path(out))
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


def alongside(read: Callable[[RunFolder], Any], *names: str) -> Callable[[Path], None]:
    """What reads one file of a run, with these others there as they are in a good one."""

    def reader(path: Path) -> None:
        for name in names:
            if not (path.parent / name).exists():
                (path.parent / name).write_bytes(a_run()[name])
        read(RunFolder.load(path.parent))

    return reader


def _shown(blocks: Any) -> None:
    console = _console()
    console.print(render_terminal(blocks) if isinstance(blocks, list) else blocks)
    console.file.truncate(0)


@cache
def _console() -> Console:
    return Console(file=io.StringIO(), width=80)


def all_requests(folder: RunFolder) -> None:
    """Every request, with what the viewer makes of it."""
    for record in whole_records(folder, read_config(folder)):
        if record.tokens:
            _shown(Generation(record))


def full_summary(folder: RunFolder) -> None:
    """The summary, shown."""
    if found := read_summary(folder, read_config(folder)):
        _shown(run_report(folder.run, found))


def judged(folder: RunFolder) -> None:
    """The ratings of all judges."""
    judge_scores(read_judgments(folder.path), ["ar", "jf"])


def bandwidth(folder: RunFolder) -> None:
    """What was read of memory, and the figures of an unfinished run that has it."""
    folder.read(BANDWIDTH)
    read = read_run(folder.path)
    _shown(run_report(read.run, read.summary))


def watched(folder: RunFolder) -> None:
    """What the machine did, and the figures of an unfinished run that has it."""
    folder.read(WATCH)
    read = read_run(folder.path)
    _shown(run_report(read.run, read.summary))


def projected(folder: RunFolder) -> None:
    """The projections, shown."""
    _shown([*map(projection_table, read_projections(folder))])


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
        _shown([*run_report(read.run, read.summary, read.judged), *map(projection_table, read.projections)])

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
        _shown(sweep_report(next(iter(read.runs.values())).run, read.cells))
        read.cells.to_csv(index=False)

    _one_of(path, (show, lambda: gather([folder])))
