"""Compare the drafter's scores of branches with the target's log-probabilities, after the clock has stopped."""

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
    """Compute the target's log-probabilities for the branches of a run's records, and store them in the run's folder.

    Records without branches, or whose branches are already in ``branches.jsonl``, cost nothing. The engine needs a free
    slot with space for prompt and answer; ``note`` gets a line if memory runs out.
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
    """The branches of one request with the target's log-probability; branches without one are left out."""
    words = int(engine.model.get_output_embeddings().weight.shape[0])
    # A drafter may draft tokens that the target does not have: those have no probability.
    branches = [branch for branch in record.branches or () if all(0 <= token < words for token in branch.ids)]
    # The root of a forward's tree is the last token emitted before it.
    roots = [sum(record.accepted_lengths[: branch.step]) for branch in branches]
    if engine.positions is not None:  # text after the last root is not needed
        reach = engine.positions - len(prompt)
        kept = [(b, root) for b, root in zip(branches, roots, strict=True) if root + len(b.ids) < reach]
        branches, roots = [b for b, _ in kept], [root for _, root in kept]
    if not branches:
        return []
    slot = engine.alloc()
    try:
        text = [*prompt, *record.output_ids]
        if end := len(prompt) + max(roots):
            engine.prefill(slot, text[:end])
        chains = [
            Chain(slot, len(prompt) + root, [text[len(prompt) + root], *branch.ids[:-1]])
            for root, branch in zip(roots, branches, strict=True)
        ]
        rated: list[float] = []
        at_once = rows_at_once(engine)
        for part in _parts([len(branch.ids) for branch in branches], at_once):
            found = log_probabilities(engine, chains[part], [branch.ids for branch in branches[part]])
            rated += [math.fsum(each) for each in found]
    finally:
        engine.free(slot)
    return [
        RatedBranch(tokens=len(branch.ids), promised=branch.log_probability, target=value)
        for branch, value in zip(branches, rated, strict=True)
        if math.isfinite(value)
    ]


def _asked(record: RequestRecord, rated: Sequence[RatedBranch]) -> bool:
    """Whether these branches belong to this record, and not to an earlier decoding of the request."""
    mine = [(len(branch.ids), branch.log_probability) for branch in record.branches or ()]
    return mine == [(branch.tokens, branch.promised) for branch in rated]


def _parts(sizes: Sequence[int], most: int) -> list[slice]:
    """Group consecutive items whose sizes add up to at most ``most``; at least one per group."""
    found, start, total = [], 0, 0
    for at, size in enumerate(sizes):
        if at > start and total + size > most:
            found.append(slice(start, at))
            start, total = at, 0
        total += size
    return [*found, slice(start, len(sizes))]
