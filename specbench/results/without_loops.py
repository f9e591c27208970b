"""Without loops: a row's speed on those prompts alone where neither side's answer ends in a loop. No torch."""

from __future__ import annotations

from collections.abc import Mapping

from specbench.results.degeneration import loops_at_its_end
from specbench.results.figures import ratio
from specbench.results.over_ar import DECODE, Key, Pairs
from specbench.results.schema import RequestRecord
from specbench.results.summary_schema import WithoutLoops

Answers = Mapping[Key, RequestRecord]


def without_loops(baseline: Answers, mine: Answers, shared: bool) -> WithoutLoops | None:
    """The speed over another row, prompts dropped from both alike where an answer of either ends in a loop.

    Args:
        baseline: AR's requests, or those of another row that takes its place.
        mine: the method's.
        shared: they shared the engine, see :func:`specbench.results.over_ar.over_ar`.

    Returns:
        None where no such answer is among them, so that nothing would change.
    """
    both = baseline.keys() & mine.keys()
    prompts = {prompt for prompt, *_ in both}
    dropped = {key[0] for key in both if loops_at_its_end(baseline[key]) or loops_at_its_end(mine[key])}
    if not dropped:
        return None
    kept = [key for key in sorted(both) if key[0] not in dropped]
    left = {key: mine[key] for key in kept}
    decoded = sum(record.decoded_tokens for record in left.values())
    forwards = sum(record.target_forwards for record in left.values())
    pairs = Pairs.of({key: baseline[key] for key in kept}, left, shared)
    return WithoutLoops(
        prompts=len(prompts) - len(dropped),
        dropped=len(dropped),
        tokens_per_forward=ratio(decoded, forwards),
        speedup=pairs.speedup(DECODE) if kept else None,
    )
