"""Texts: the figures of each row's texts, beside those of its speed. No torch.

* ``looping``, ``loop_share``, ``distinct_n``: see :mod:`specbench.results.degeneration`.
* ``log_likelihood_per_token``: see :mod:`specbench.results.likelihoods`.
* ``agreement``, ``common_prefix_tokens``: with the answers of plain decoding of the model that a fine-tuned one was
  made from, where the run has that row, else with AR's; see :mod:`specbench.results.agreement`. First turns alone: a
  later one follows other answers where these differ.
* ``without_loops``: see :mod:`specbench.results.without_loops`.

A row whose acceptance was decided by lot has no text to speak of, and none of these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from specbench.results.agreement import agreement
from specbench.results.degeneration import degeneration, text_ids
from specbench.results.likelihoods import Likelihood, per_token
from specbench.results.over_ar import Key
from specbench.results.schema import BASE, BASELINE, RequestRecord, RunConfig
from specbench.results.summary_schema import RunSummary, TextFigures
from specbench.results.without_loops import Answers, without_loops


def with_texts(
    summary: RunSummary,
    config: RunConfig,
    records: Iterable[RequestRecord],
    likelihoods: Mapping[str, Likelihood] | None = None,
) -> RunSummary:
    """A summary whose rows say what their texts are like.

    Args:
        summary: of these records.
        config: the run's configuration.
        records: its finished requests, any order.
        likelihoods: by request key; empty or None where no model was asked.
    """
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
