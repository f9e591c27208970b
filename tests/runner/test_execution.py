"""A run that goes on where it was stopped: warm before its first request, its stretches numbered on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.asserting import known
from support.decoders import toy
from support.models import plan, prepared, request_record

from specbench.common.prompt import Prompt
from specbench.decoding.protocol import Method
from specbench.results.calibration import STEPS as SETTLED
from specbench.results.calibration import SettledSteps
from specbench.results.folder import RunFolder
from specbench.results.request_schema import RequestRecord
from specbench.runner import run_task
from specbench.runner.config import open_folder
from specbench.runner.record import Request

STEPS = [{"attention": "triton", "step_s": {"1": 0.1, "2": 0.2}, "padded_to": {"1": 1, "2": 2}}]
TILES = {"block_n": 64, "block_k": 128, "splits": 2, "warps": 4, "stages": 3}
PRODUCTS = [
    {"out": 96, "in": 32, "kernel": "own", "config": TILES, "torch_s": [2e-5, 2e-5],
     "timed": [{"config": TILES, "seconds": [1e-5, 1e-5]}], "why_not": ""},
    {"out": 32, "in": 32, "kernel": "torch", "config": None, "torch_s": [], "timed": [], "why_not": "no tiles"},
]  # fmt: skip
METHODS = (toy(label="ar"), toy(label="mine"))
PROMPTS = [Prompt(f"p{number}", "one", True) for number in range(3)]


class Session:
    """Answers each request in a stretch of the number it was given, and keeps what it was asked to do."""

    methods = METHODS

    def __init__(self) -> None:
        self.done: list[str] = []
        self.engine = self
        self.padded: Any = None
        self.multiplied: Any = None

    def pad_as(self, steps: Any, products: Any) -> None:
        assert "warm" not in self.done, "what is measured then decides"
        self.padded, self.multiplied = steps, products

    def warm_up(self, prepared: Any, methods: Any = None) -> None:
        self.done.append("warm")

    def report(self) -> dict[str, Any]:
        return {"steps": STEPS, "products": PRODUCTS}

    def decode(
        self, method: Method, requests: Sequence[Request], number: int, load: Any = None
    ) -> Iterator[RequestRecord]:
        for request in requests:
            self.done.append(f"{method.label} {request.prompt_id}")
            yield request_record(method.label, request).model_copy(update={"segment": number})


def decoded(before: Sequence[RequestRecord], folder: Any = None) -> tuple[Session, list[RequestRecord]]:
    """A session that went on in a folder that holds some requests, and all records."""
    session, progress, log = Session(), run_task.Silent(), SimpleNamespace(append=lambda line: None)
    folder = folder or SimpleNamespace(read=lambda what: None, write=lambda *_: None)
    where: Any = SimpleNamespace(
        records=lambda: iter(before), log=log, read=folder.read, write=folder.write,
    )  # fmt: skip
    made: Any = plan(METHODS)
    return session, run_task._decode(made, [session], prepared(PROMPTS), where, progress, bool(before))  # type: ignore[list-item]


@pytest.mark.parametrize("done", range(7))
def test_it_is_warm_before_its_first_request_and_numbers_its_stretches_on_however_many_are_done(done: int) -> None:
    _, whole = decoded([])
    assert [one.segment for one in whole] == list(range(6))
    session, records = decoded(whole[:done])
    did = session.done
    assert did[:1] == ["warm"] * (done < 6), "what is done once would be paid for by the request that comes first"
    assert did.count("warm") == (done < 6), "nothing is warmed up where nothing is left"
    assert len(did) == (1 + 6 - done if done < 6 else 0)
    assert [one.request_id for one in records] == [one.request_id for one in whole]
    assert len({one.segment for one in records}) == 6, "times of one stretch share a clock, and no others do"


def test_a_resumed_run_pads_its_rows_as_it_did_before(tmp_path: Path) -> None:
    """Other rows are other products, whose rounding, in half precision, can be another text."""
    with RunFolder.create(tmp_path, "ar-prompts", "0" * 64, {}) as folder:
        begun, whole = decoded([], folder)
        assert begun.padded == ()
    earlier = [{**STEPS[0], "padded_to": {"1": 2, "2": 2}}]
    config: Any = SimpleNamespace(digest=lambda: "0" * 64)
    again, existed = open_folder(plan(METHODS, out=tmp_path), config, None)  # type: ignore[arg-type]
    assert (again.path, existed) == (folder.path, True)
    with again as folder:
        assert folder.read(SETTLED) == SettledSteps(engines=[STEPS], products=[PRODUCTS])
        folder.write(SETTLED, SettledSteps(engines=[earlier], products=[PRODUCTS[:1]]))
        resumed, _ = decoded(whole[:2], folder)
        assert resumed.padded == earlier
        assert resumed.multiplied == PRODUCTS[:1]


def test_each_engine_of_a_run_pads_as_that_engine_did(tmp_path: Path) -> None:
    """A run of two models: the one that is asked about, and the one that it was made from."""
    theirs = [{**STEPS[0], "padded_to": {"1": 2, "2": 2}}]
    sessions, made = [Session(), Session()], plan(METHODS)
    with RunFolder.create(tmp_path, "ar-prompts", "0" * 64, {}) as folder:
        folder.write(SETTLED, SettledSteps(engines=[STEPS, theirs]))
        run_task._decode(made, sessions, prepared(PROMPTS), folder, run_task.Silent(), True)  # type: ignore[arg-type]
        assert [session.padded for session in sessions] == [STEPS, theirs]
        assert known(folder.read(SETTLED)).engines == [STEPS, STEPS]
