"""Figures of a row's texts: repetitive endings, distinct n-grams, agreement, likelihood.

Repetitive text is easy to draft. Figures are computed from the token ids of an answer's text, without stop token and
stop string, and not for simulated acceptance.

* ``looping``, ``loop_share``, ``distinct_n``: :func:`degeneration`.
* ``log_likelihood_per_token``: :mod:`specbench.results.likelihoods`.
* ``agreement``, ``common_prefix_tokens``: with the base model's plain decoding if the run has that row, otherwise with
  AR; first turns only.
* ``without_loops``: a row's speedup on the prompts where neither answer has a repetitive ending.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import mean

from specbench.analysis.figures import quotient
from specbench.analysis.speedup import DECODE, Key, Pairs
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

#: Longest repeated segment, in tokens: a long sentence. Training recipes drop such repetitions from their data.
LONGEST = 48

#: Fewest repetitions of the segment; two would include texts that end in two equal paragraphs.
ROUNDS = 3

#: Fewest tokens of all repetitions together. Normal texts have shorter ones: "1000000", ")))", four empty lines, a row
#: of a table.
LEAST = 16

#: Lengths of the counted n-grams: 1 and 2 as in Li et al. (2016), 4 as in Welleck et al. (2020).
GRAMS = (1, 2, 4)


@dataclass(frozen=True)
class Loop:
    """A suffix that repeats its first ``period`` tokens; the last repetition may be incomplete."""

    start: int
    period: int


def closing_loops(ids: Sequence[int], rounds: int, longest: int = LONGEST) -> Iterator[Loop]:
    """Loops at the end of token ids, shortest period first: at least ``rounds`` periods of up to ``longest`` tokens."""
    for period in range(1, min(longest, len(ids) // rounds) + 1):
        same = len(ids)
        while same > period and ids[same - 1] == ids[same - 1 - period]:
            same -= 1
        if len(ids) - same >= (rounds - 1) * period:  # one period, and at least rounds - 1 repetitions of it
            yield Loop(same - period, period)


def closing_loop(ids: Sequence[int]) -> Loop | None:
    """The longest loop at the end of token ids; None if it has fewer than :data:`LEAST` tokens."""
    found = min(closing_loops(ids, ROUNDS), key=lambda loop: loop.start, default=None)
    return found if found is not None and len(ids) - found.start >= LEAST else None


def distinct(ids: Sequence[int], n: int) -> float | None:
    """Number of different n-grams divided by all n-grams; None for texts shorter than n."""
    count = len(ids) - n + 1
    return len({*zip(*(ids[at:] for at in range(n)), strict=False)}) / count if count > 0 else None


@dataclass(frozen=True)
class Degeneration:
    """Loops and n-grams of some answers.

    ``share``: tokens in closing loops divided by all kept tokens. ``distinct``: n -> mean over answers of
    :func:`distinct`.
    """

    looping: int
    share: float | None
    distinct: dict[int, float | None]


def text_ids(record: RequestRecord) -> Sequence[int]:
    """The token ids of an answer's text."""
    return record.output_ids[: max(0, record.text_tokens)]


def loops_at_its_end(record: RequestRecord) -> bool:
    """Whether an answer has a repetitive ending."""
    return closing_loop(text_ids(record)) is not None


def degeneration(answers: Sequence[tuple[Sequence[int], int]]) -> Degeneration:
    """The figures of some answers, each given as (token ids of its text, number of kept tokens)."""
    found = [(ids, closing_loop(ids)) for ids, _ in answers]
    lengths = [len(ids) - loop.start for ids, loop in found if loop]
    tokens = sum(kept for _, kept in answers)
    shares = {n: [one for ids, _ in answers if (one := distinct(ids, n)) is not None] for n in GRAMS}
    return Degeneration(
        looping=len(lengths),
        share=sum(lengths) / tokens if tokens else None,
        distinct={n: mean(known) if known else None for n, known in shares.items()},
    )


@dataclass(frozen=True)
class Agreement:
    """Agreement of pairs of answers: share of equal positions (of the longer answer), and mean common prefix."""

    share: float
    prefix_tokens: float


def agreement(pairs: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Agreement | None:
    """Compare pairs of token ids, two rows' answers to the same request; None without any tokens."""
    prefixes, same, positions = list[int](), 0, 0
    for mine, other in pairs:
        equal = [a == b for a, b in zip(mine, other, strict=False)]
        same += sum(equal)
        positions += max(len(mine), len(other))
        prefixes.append(sum(takewhile(bool, equal)))
    return Agreement(same / positions, sum(prefixes) / len(prefixes)) if positions else None


Answers = Mapping[Key, RequestRecord]


def with_texts(
    summary: RunSummary,
    config: RunConfig,
    records: Iterable[RequestRecord],
    likelihoods: Mapping[str, Likelihood] | None = None,
) -> RunSummary:
    """Add the text figures to the rows of a summary."""
    rows: dict[str, dict[Key, RequestRecord]] = defaultdict(dict)
    for record in records:
        rows[record.method][record.prompt_id, record.repeat, record.turn] = record
    shared, known = config.concurrency > 1, dict(likelihoods or {})
    rows_with_text = [
        row.model_copy(update={"text": None if row.simulated else _figures(row.method, rows, known, shared)})
        for row in summary.rows
    ]
    return summary.model_copy(update={"rows": rows_with_text})


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
    """Speedup without the prompts on which either answer has a repetitive ending; None if there are no such prompts."""
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
