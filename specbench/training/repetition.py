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


def before_run(answer: Sequence[int], longest: int) -> int:
    """Tokens of an answer before one comes up for the ``longest``-th time in a row; all of them where none does.

    CLLM drops a block from which, or from before which, a token stands ten times in a row
    (``detect_repetitive_patterns``). Its scan begins in the prompt and ends at the first stop token, which a chat
    template may write into the prompt; here it is the answer's.

    Args:
        answer: token ids.
        longest: at least 2.
    """
    run = 1
    for at in range(1, len(answer)):
        run = run + 1 if answer[at] == answer[at - 1] else 1
        if run == longest:
            return at
    return len(answer)
