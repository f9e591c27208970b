"""Branches of a run's trees, rated by the target behind the clock: does a score promise what the target says?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from specbench.engine import Chain, Engine, log_probabilities, ran_out
from specbench.results import BRANCHES, RatedBranch, RatedRequest, RequestLog, RequestRecord, read_branches
from specbench.runner.grades.likelihood import rows_at_once
from specbench.runner.order import Turns
from specbench.runner.prompts import Prepared


def rate_branches(
    engine: Engine, prepared: Prepared, records: Sequence[RequestRecord], folder: Path, note: Callable[[str], None]
) -> None:
    """Ask the target about the branches of a run's records and keep its answers in the run's folder.

    Records without branches, or whose branches are in ``branches.jsonl`` already, cost nothing. The engine needs a free
    slot with room for prompt and answer; ``note`` takes a line where memory does not suffice.
    """
    known = read_branches(folder)
    waiting = [record for record in records if record.branches and not _asked(record, known.get(record.request_id, ()))]
    if not waiting:
        return
    turns = Turns(prepared, {record.request_id: record.text for record in records})
    log = RequestLog(folder / BRANCHES)
    try:
        for record in waiting:
            prompt = turns.request(record.method, record.prompt_id, record.repeat, record.turn).ids
            rated = rate_request(engine, prompt, record)
            log.append(RatedRequest(request=record.request_id, branches=rated).model_dump(mode="json"))
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        note("no memory to ask the model about drafted branches; their calibration is left out")
    finally:
        log.close()


def rate_request(engine: Engine, prompt: Sequence[int], record: RequestRecord) -> list[RatedBranch]:
    """The branches of one request with the target's log-probability, without those that it has no number for."""
    words = int(engine.model.get_output_embeddings().weight.shape[0])
    # A drafter may make up tokens that the target has not: of these there is nothing to ask.
    branches = [branch for branch in record.branches or () if all(0 <= token < words for token in branch.ids)]
    # The root of a forward's tree is the last token emitted before it.
    roots = [sum(record.accepted_lengths[: branch.step]) for branch in branches]
    if engine.positions is not None:  # what lies after the last of them says nothing
        reach = engine.positions - len(prompt)
        kept = [(b, root) for b, root in zip(branches, roots, strict=True) if root + len(b.ids) < reach]
        branches, roots = [b for b, _ in kept], [root for _, root in kept]
    if not branches:
        return []
    slot = engine.alloc()
    try:
        text = [*prompt, *record.output_ids]
        if behind := len(prompt) + max(roots):
            engine.prefill(slot, text[:behind])
        chains = [
            Chain(slot, len(prompt) + root, [text[len(prompt) + root], *branch.ids[:-1]])
            for root, branch in zip(roots, branches, strict=True)
        ]
        said: list[float] = []
        at_once = rows_at_once(engine)
        for part in _parts([len(branch.ids) for branch in branches], at_once):
            found = log_probabilities(engine, chains[part], [branch.ids for branch in branches[part]])
            said += [math.fsum(each) for each in found]
    finally:
        engine.free(slot)
    return [
        RatedBranch(tokens=len(branch.ids), promised=branch.log_probability, said=value)
        for branch, value in zip(branches, said, strict=True)
        if math.isfinite(value)
    ]


def _asked(record: RequestRecord, rated: Sequence[RatedBranch]) -> bool:
    """Whether these are a record's own branches, and not those of a request that was decoded anew since."""
    mine = [(len(branch.ids), branch.log_probability) for branch in record.branches or ()]
    return mine == [(branch.tokens, branch.promised) for branch in rated]


def _parts(sizes: Sequence[int], most: int) -> list[slice]:
    """Neighbours whose sizes add up to no more than ``most``, one at least."""
    found, start, total = [], 0, 0
    for at, size in enumerate(sizes):
        if at > start and total + size > most:
            found.append(slice(start, at))
            start, total = at, 0
        total += size
    return [*found, slice(start, len(sizes))]
