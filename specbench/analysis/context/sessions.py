"""Throughput over sessions: conversations of chained problems with a growing context."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from statistics import median

from specbench.analysis.figures import counts, quotient
from specbench.analysis.positions import step_seconds
from specbench.analysis.speedup import DECODE, Key, Pairs
from specbench.results import AtTurn, RequestRecord, RunConfig, SessionFigures

#: Tokens per point of a session's curve; the fastest window is the session's peak. With smaller windows one lucky draft
#: would be the peak.
WINDOW = 64


def session_figures(
    config: RunConfig, baseline: Mapping[Key, RequestRecord], mine: Mapping[Key, RequestRecord]
) -> SessionFigures | None:
    """A method's throughput over its complete sessions; None if there are none."""
    problems, shared = config.task.chain, config.concurrency > 1
    sessions = _sessions(mine, problems)
    if problems == 1 or not sessions:
        return None
    every = [record for session in sessions for record in session]
    whole = {(record.prompt_id, record.repeat, record.turn): record for record in every}
    curves = [list(window_seconds(session, shared)) for session in sessions]
    peaks = [WINDOW / min(curve) for curve in curves if curve and min(curve) > 0]
    pooled = [[taken for taken in at if taken is not None] for at in zip_longest(*curves)]
    return SessionFigures(
        sessions=len(sessions),
        problems=problems,
        average_tok_s=quotient(sum(r.output_tokens for r in every), sum(r.whole_s(shared) for r in every)),
        peak_tok_s=median(peaks) if peaks else None,
        window_tokens=WINDOW,
        windows_tok_s=[WINDOW * len(at) / sum(at) if sum(at) else 0.0 for at in pooled],
        turns=[_turn(baseline, whole, turn, shared) for turn in range(1, problems + 1)],
    )


def window_seconds(session: Sequence[RequestRecord], shared: bool) -> Iterator[float]:
    """Seconds of consecutive windows of :data:`WINDOW` decoded tokens of a session; an incomplete window is left out.

    A forward that spans two windows is divided between them. Prefills are not included.
    """
    left, seconds = WINDOW, 0.0
    for record in session:
        for taken, kept in zip(step_seconds(record, shared), record.accepted_lengths, strict=True):
            if not kept:
                seconds += taken
            rest = kept
            while rest:
                inside = min(rest, left)
                seconds += taken * inside / kept
                rest, left = rest - inside, left - inside
                if not left:
                    yield seconds
                    left, seconds = WINDOW, 0.0


def _sessions(mine: Mapping[Key, RequestRecord], problems: int) -> list[list[RequestRecord]]:
    """The turns of each complete session, in order."""
    found: dict[tuple[str, int], list[RequestRecord]] = defaultdict(list)
    for (prompt, repeat, _), record in sorted(mine.items()):
        found[prompt, repeat].append(record)
    return [turns for turns in found.values() if len(turns) == problems]


def _turn(baseline: Mapping[Key, RequestRecord], mine: Mapping[Key, RequestRecord], turn: int, shared: bool) -> AtTurn:
    ar, method = ({key: r for key, r in side.items() if key[2] == turn} for side in (baseline, mine))
    figures = counts(list(method.values()), shared)
    return AtTurn(
        turn=turn,
        prompt_tokens=median(record.prompt_tokens for record in method.values()),
        tokens_per_forward=figures["tokens_per_forward"],
        decode_tok_s=figures["decode_tok_s"],
        speedup=Pairs.of(ar, method, shared).speedup(DECODE),
    )
