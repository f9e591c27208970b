"""How EvalPlus 0.3.1 asks (``codegen.py`` and ``provider/utility.py``), which most published figures share."""

from __future__ import annotations

from collections.abc import Sequence

from specbench.task import Prompt

_INSTRUCTION = (
    "Please provide a self-contained Python script that solves the following problem in a markdown code block:"
)
_RESPONSE = (
    "Below is a Python script with a self-contained function that solves the problem and passes corresponding tests:"
)
_STOPS = ("\nif __name__", "\ndef main(", "\nprint(")
_CHAT_STOPS = (*_STOPS, "\n```\n")


def chat(id: str, problem: str) -> Prompt:
    """For a model with a chat template: the problem in a fence, the answer's fence already opened."""
    text = f"{_INSTRUCTION}\n```\n{problem.strip()}\n```\n"
    return Prompt(id, text, True, f"{_RESPONSE}\n```python\n", _CHAT_STOPS)


def completion(id: str, problem: str, stops: Sequence[str]) -> Prompt:
    """For a model without: the problem as it is.

    Args:
        stops: those of the data set, beside EvalPlus's general ones.
    """
    return Prompt(id, problem.strip() + "\n", False, "", (*_STOPS, *stops))
