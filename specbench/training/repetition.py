"""Answers that go round in circles, which small models' greedy ones do, are worth learning from once."""

from __future__ import annotations

from collections.abc import Sequence

from specbench.training.recipe import Text

LONGEST = 48  # tokens of a circle


def cut_circle(answer: Sequence[int], keep: int = 3, longest: int = LONGEST) -> Sequence[int]:
    """An answer without the rounds of a circle at its end, but for the first ``keep``.

    Args:
        answer: token ids.
        keep: rounds that stay, at least 1.
        longest: tokens of the longest circle looked for.
    """
    for period in range(1, min(longest, len(answer) // (keep + 1)) + 1):
        same = len(answer)
        while same > period and answer[same - 1] == answer[same - 1 - period]:
            same -= 1
        if len(answer) - same >= keep * period:  # a first round, and at least ``keep`` that repeat it
            return answer[: same + (keep - 1) * period]
    return answer


def without_circles(texts: Sequence[Text], keep: int) -> list[Text]:
    """Texts whose answers are cut so; ``keep`` 0 leaves them as they are."""
    if not keep:
        return list(texts)
    return [Text(text.id, text.prompt, cut_circle(text.answer, keep)) for text in texts]
