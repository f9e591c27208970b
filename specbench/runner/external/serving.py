"""Start, use and end the other engines of a run; one that fails is marked, and the run goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from specbench.backends import IdleGuard, Row, Served
from specbench.common import EngineFault, SpecbenchError, UsageError
from specbench.results import ENGINES, EngineFacts, Engines, RequestRecord, RunFolder
from specbench.runner.external.external_row import ExternalRow
from specbench.runner.prompts import Prepared
from specbench.runner.record import Request
from specbench.runner.session import Session
from specbench.runner.setup.arrivals import OpenLoop
from specbench.runner.setup.warm_up import warm_up_ids

_WARM_UP_TOKENS = 24


class Says(Protocol):
    """Receives messages: :class:`specbench.runner.run_task.Progress`."""

    def phase(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...


class RunningEngines:
    """The rows of other engines in a run; close it when the run is over."""

    def __init__(self, rows: Sequence[Row], session: Session, folder: RunFolder, say: Says) -> None:
        self._session, self._folder, self._say = session, folder, say
        self._outside = {row.label: ExternalRow(row, served(session, row), session.sampling()) for row in rows}
        self._known = folder.read(ENGINES) or Engines()
        #: An engine that failed before the run was interrupted cannot be measured together with the others any more.
        self._failed = dict(self._known.failed)
        self._before = dict(self._failed)
        self._neighbours: IdleGuard | None = None

    def start(self, prepared: Prepared) -> list[str]:
        """Start and warm up all engines; return the labels of those that failed, now or before an interruption.

        Raises UsageError if one has another version than when the run began.
        """
        for label, why in self._before.items():
            self._say.note(f"{label} failed before this run was interrupted ({why}); --again measures everything anew")
        for label, outside in self._outside.items():
            if label in self._failed:
                continue
            self._say.phase(f"starting {label}")
            try:
                outside.start()
                ids = warm_up_ids(self._session.model, prepared.longest, prepared.ids)
                room = prepared.longest + prepared.budget - len(ids)
                outside.warm_up(ids, max(1, min(room, _WARM_UP_TOKENS)))
            except EngineFault as fault:
                self.fail(label, fault)
                continue
            assert outside.facts is not None
            self._check_same(label, outside.facts)
            self._keep(rows={**self._known.rows, label: outside.facts})
        if not self._outside:  # a run with only our own rows needs no guard
            return list(self._failed)
        there = {label: each.backend for label, each in self._outside.items() if label not in self._failed}
        self._neighbours = IdleGuard(there)
        if any(backend.processes() for backend in there.values()):
            self._say.phase("listening to the engines at rest")
            self._neighbours.listen()
        return list(self._failed)

    @contextmanager
    def turn_of(self, label: str) -> Iterator[None]:
        """A segment of any row, during which the other rows' engines rest."""
        row = label if label in self._outside else None
        if self._neighbours is None:  # no engine was started, because nothing is left to answer
            yield
            return
        self._neighbours.before(row)
        yield
        if label not in self._failed:
            self._neighbours.after(row)

    def decode(
        self, label: str, requests: Sequence[Request], number: int, load: OpenLoop | None = None
    ) -> Iterator[RequestRecord]:
        """Answer requests with one of them, see :meth:`specbench.runner.external.external_row.ExternalRow.decode`."""
        return self._outside[label].decode(requests, number, load)

    @property
    def failed(self) -> Mapping[str, str]:
        """Row -> why it gets no more requests; also for our own rows."""
        return self._failed

    def fail(self, label: str, fault: SpecbenchError) -> None:
        """Mark a row, and end its engine if it has its own."""
        self._failed[label] = str(fault)
        self._say.note(f"{fault}; its row is marked, the others go on")
        if label in self._outside:
            self._outside[label].close()
        self._keep(failed={**self._known.failed, label: str(fault).removeprefix(f"{label}: ")})

    def rest(self) -> None:
        """Store what their processes did while other rows were timed, after the last answer."""
        if self._neighbours is not None:
            for label, facts in self._known.rows.items():
                if label not in self._failed and self._outside[label].backend.processes():
                    share, stopped = self._neighbours.idle_share(label), label in self._neighbours.stopped
                    update = {"cores": self._neighbours.cores(label), "idle_share": share, "stopped": stopped}
                    self._keep(rows={**self._known.rows, label: facts.model_copy(update=update)})

    def close(self) -> None:
        """End all engines."""
        if self._neighbours is not None:
            self._neighbours.close()
        for outside in self._outside.values():
            outside.close()

    def __enter__(self) -> RunningEngines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_same(self, label: str, facts: EngineFacts) -> None:
        before = self._known.rows.get(label)
        if before is None:
            return
        for name in ("version", "package", "how", "command", "dtype", "weights"):
            was, now = getattr(before, name), getattr(facts, name)
            if was != now:
                raise UsageError(
                    f"{label} is another engine than when this run began ({name}: {was}, now {now}); "
                    "--again measures everything anew"
                )

    def _keep(self, **found: object) -> None:
        self._known = self._known.model_copy(update=found)
        self._folder.write(ENGINES, self._known)


def served(session: Session, row: Row) -> Served:
    """The model of a row, in the row's precision."""
    own = session.model.spec.dtype
    return Served(
        label=row.label,
        model=session.model,
        dtype=own if row.options.dtype == "auto" else row.options.dtype,
        threads=torch.get_num_threads(),
        capacity=session.engine.capacity,
        url=row.url,
        together=session.engine.slots,
        apart=session.engine.detached,
    )
