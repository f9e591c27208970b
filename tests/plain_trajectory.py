"""A trajectory and a round, plainly, from a request as its line of JSON has it, by none of the code's own modules."""

from __future__ import annotations

import string
from typing import Any

LETTERS = string.ascii_lowercase + string.ascii_uppercase + string.digits


def states(line: dict[str, Any]) -> list[list[tuple[int, int, int, str]]]:
    """Of each forward the cells of its state: position, row, token, mark."""
    answer, trace = line["output_ids"], line["tokens"]
    fed: list[dict[int, tuple[int, int, bool, bool]]] = []  # position -> row, token, accepted, drawn at random
    at = 0
    for draft, kept in zip(trace["drafts"], line["accepted_lengths"], strict=True):
        tokens = [answer[at], *draft["ids"]]
        parents = [-1, *(draft["parents"] if draft["parents"] is not None else range(len(draft["ids"])))]
        line_of_rows = [0, *draft["path"]]
        while True:
            below = [
                row
                for row in range(1, len(tokens))
                if parents[row] == line_of_rows[-1] and row not in draft["draft_only"]
            ]
            if not below:
                break
            line_of_rows.append(min(below))
        state = {}
        for depth, row in enumerate(line_of_rows):
            if at + depth < len(answer):
                random = row > 0 and trace["words"][LETTERS.index(draft["origins"][row - 1])] == "noise"
                state[at + depth] = row, tokens[row], row in draft["path"], random
        fed.append(state)
        at += kept
    return [
        [(place, row, token, mark(fed, number, place, answer)) for place, (row, token, _, _) in sorted(state.items())]
        for number, state in enumerate(fed)
    ]


def mark(fed: list[dict[int, tuple[int, int, bool, bool]]], number: int, place: int, answer: list[int]) -> str:
    """What became of one token."""
    row, token, accepted, random = fed[number][place]
    if row == 0:
        return "root"
    if accepted:
        return "accepted"
    if token == answer[place]:
        by = [later for later in range(number + 1, len(fed)) if place in fed[later] and fed[later][place][2]]
        right = by and all(
            place in fed[between] and fed[between][place][1] == answer[place] for between in range(number, by[0])
        )
        return "stationary" if right and not random else "right"
    return "misplaced" if in_a_run(fed[number], place, answer) else "wrong"


def in_a_run(state: dict[int, tuple[int, int, bool, bool]], place: int, answer: list[int]) -> bool:
    """Whether three tokens around this one, none in its own place, follow each other in the answer."""

    def off(at: int) -> bool:
        return at in state and state[at][0] > 0 and not state[at][2] and state[at][1] != answer[at]

    for start in (place - 2, place - 1, place):
        three = range(start, start + 3)
        if all(map(off, three)):
            said = [state[at][1] for at in three]
            if any(answer[begin : begin + 3] == said for begin in range(len(answer) - 2)):
                return True
    return False


def missed(line: dict[str, Any], number: int) -> set[int]:
    """The rows of a forward, from 1, that the drafter liked best where another or none was accepted."""
    draft = line["tokens"]["drafts"][number - 1]
    scores = draft.get("scores")
    if scores is None:
        return set()
    parents = draft["parents"] if draft["parents"] is not None else list(range(len(draft["ids"])))
    found = set()
    for node in [0, *draft["path"]]:
        picks = [
            (-scores[row - 1], row)
            for row in range(1, len(parents) + 1)
            if parents[row - 1] == node and row not in draft["draft_only"] and scores[row - 1] is not None
        ]
        taken = {draft["ids"][row - 1] for row in draft["path"] if parents[row - 1] == node}
        if picks and draft["ids"][min(picks)[1] - 1] not in taken:
            found.add(min(picks)[1])
    return found
