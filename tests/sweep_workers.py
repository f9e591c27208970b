"""Workers of a sweep without a model, and the records they make. No torch: processes that begin from nothing import it.

A toy cell ``toy n=4`` emits one to four tokens a forward, drawn from (label, prompt, turn) alone; so whoever decodes a
request, and whenever, its counts are the same. Its seconds are those of a clock that only the decoding moves.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.common.options import Options
from specbench.decoding.protocol import Method
from specbench.results.schema import (
    BASELINE,
    MethodSpec,
    ModelSpec,
    RequestRecord,
    RunConfig,
    SamplingSpec,
    TaskSpec,
    request_key,
)
from specbench.sweeps.grid import Cell, Grid
from specbench.sweeps.task import Conditions, Described, Failed, Task, Told


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


def config(labels: Sequence[str], prompts: int, requests: int = 0, **options: Any) -> RunConfig:
    """Of a sweep with these cells; what a label says, ``toy n=4``, is in its options beside ``options``."""
    specs = []
    for label in (BASELINE, *labels):
        name, *said = label.split()
        swept = {} if label == BASELINE else {**options, **dict(part.split("=") for part in said)}
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
    """When a worker kills its process: as often as flags can be put into ``folder``, by whichever process is first.

    Attributes:
        folder: of the flags.
        times: deaths in all.
        after: records that it makes before.
        idle: not in the middle of a task but right behind its end.
    """

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
    """Decodes as described above.

    Attributes:
        labels: the cells; one of method "bad" is refused when it is decoded.
        tuning, held_out: prompts.
        turns: answers of each prompt that is not in ``of_turns``.
        options: set for all cells beside what is swept.
        death: see there.
        failing: label -> prompt at which its method's code fails.
        decoded: keys, in order.
        graded: calls of :meth:`grade`.
    """

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

    def describe(self) -> Described:
        turns = self.turns()
        made = config(self.labels, len(turns), sum(turns.values()), **self.options)
        environment = {"device": {"name": "toy"}}
        return Described(made, environment, tuple(self.tuning), tuple(self.held_out), turns)

    def decode(self, task: Task) -> Iterator[Told]:
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


def answered(found: Iterable[Told]) -> list[RequestRecord]:
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
