"""Texts: the figures of each row's texts, next to those of its speed; none where acceptance was simulated.

* ``looping``, ``loop_share``, ``distinct_n``: see :mod:`specbench.analysis.text_loops`.
* ``log_likelihood_per_token``: see :mod:`specbench.results.likelihoods`.
* ``agreement``, ``common_prefix_tokens``: with the base model's plain decoding where the run has that row, else with
  AR's; first turns alone. See :mod:`specbench.analysis.text_loops`.
* ``without_loops``: a row's speed on those prompts alone where neither side's answer ends in a loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from specbench.analysis.figures import quotient
from specbench.analysis.speedup import DECODE, Key, Pairs
from specbench.analysis.text_loops import agreement, degeneration, loops_at_its_end, text_ids
from specbench.results import (
    BASE,
    BASELINE,
    Likelihood,
    RequestRecord,
    RunConfig,
    RunSummary,
    TextFigures,
    WithoutLoops,
    per_token,
)

Answers = Mapping[Key, RequestRecord]


def with_texts(
    summary: RunSummary,
    config: RunConfig,
    records: Iterable[RequestRecord],
    likelihoods: Mapping[str, Likelihood] | None = None,
) -> RunSummary:
    """A summary whose rows say what their texts are like."""
    rows: dict[str, dict[Key, RequestRecord]] = defaultdict(dict)
    for record in records:
        rows[record.method][record.prompt_id, record.repeat, record.turn] = record
    shared, known = config.concurrency > 1, dict(likelihoods or {})
    told = [
        row.model_copy(update={"text": None if row.simulated else _figures(row.method, rows, known, shared)})
        for row in summary.rows
    ]
    return summary.model_copy(update={"rows": told})


def _figures(
    label: str, rows: Mapping[str, Answers], likelihoods: dict[str, Likelihood], shared: bool
) -> TextFigures | None:
    mine, baseline, base = rows.get(label, {}), rows.get(BASELINE, {}), rows.get(BASE, {})
    if not mine:
        return None
    records = list(mine.values())
    found = degeneration([(text_ids(record), record.output_tokens) for record in records])
    other, reference = (BASE, base) if base else (BASELINE, baseline)
    first = [key for key in mine.keys() & reference.keys() if key[2] == 1] if label != other else []
    agreed = agreement((mine[key].output_ids, reference[key].output_ids) for key in first)
    return TextFigures(
        looping=found.looping,
        loop_share=found.share,
        **{f"distinct_{n}": value for n, value in found.distinct.items()},
        log_likelihood_per_token=per_token(records, likelihoods),
        agreement=agreed.share if agreed else None,
        common_prefix_tokens=agreed.prefix_tokens if agreed else None,
        without_loops=without_loops(baseline, mine, shared) if label != BASELINE else None,
        without_loops_over_base=without_loops(base, mine, shared) if label != BASE and base else None,
    )


def without_loops(baseline: Answers, mine: Answers, shared: bool) -> WithoutLoops | None:
    """The speed over another row without prompts on which an answer of either ends in a loop; None where there are
    none.
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
        tokens_per_forward=quotient(decoded, forwards),
        speedup=pairs.speedup(DECODE) if kept else None,
    )
