"""Mean ratings by judge, method, turn and category. No torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import mean
from typing import Any

from specbench.judging.records import Judgment


def scores(judgments: Iterable[Judgment], methods: Sequence[str]) -> list[dict[str, Any]]:
    """One entry per judge, JSON-ready.

    Args:
        judgments: of one run.
        methods: labels in the order of the run.

    Returns:
        ``{"judge": who, "methods": {label: {"score", "rated", "judged", "same_as", "errors", "turns": {turn: …},
        "categories": {category: …}}}}``. ``score`` is the mean over both turns of the answers that have a rating
        (``rated`` of ``judged``), None without any; ``same_as`` counts those taken over from an equal answer.
    """
    by_judge: dict[str, list[Judgment]] = defaultdict(list)
    for judgment in judgments:
        by_judge[judgment.judge.model_dump_json()].append(judgment)
    found = []
    for mine in by_judge.values():
        by_method = dict(_by(mine, lambda judgment: judgment.method))
        rows = {label: _method(by_method[label]) for label in methods if label in by_method}
        found.append({"judge": mine[0].judge.model_dump(mode="json"), "methods": rows})
    return found


def _method(judgments: Sequence[Judgment]) -> dict[str, Any]:
    return {
        **_score(judgments),
        "same_as": sum(judgment.same_as is not None for judgment in judgments),
        "errors": sum(judgment.error is not None for judgment in judgments),
        "turns": {turn: _score(some) for turn, some in sorted(_by(judgments, lambda j: str(j.turn)))},
        "categories": {name: _score(some) for name, some in _by(judgments, lambda j: j.category) if name},
    }


def _score(judgments: Sequence[Judgment]) -> dict[str, Any]:
    ratings = [judgment.rating for judgment in judgments if judgment.rating is not None]
    return {"score": mean(ratings) if ratings else None, "rated": len(ratings), "judged": len(judgments)}


def _by(judgments: Iterable[Judgment], key: Callable[[Judgment], str]) -> list[tuple[str, list[Judgment]]]:
    found: dict[str, list[Judgment]] = defaultdict(list)
    for judgment in judgments:
        found[key(judgment)].append(judgment)
    return list(found.items())
