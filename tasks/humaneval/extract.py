"""From an answer's code to the Python to run. Regular expressions only: it is never parsed in this process."""

from __future__ import annotations

import re
import textwrap


def sources(prompt: str, entry_point: str, answer: str) -> tuple[str, ...]:
    """The units to execute in order for a chat answer, fences already gone.

    There are three kinds of answers:
    - it defines the entry point: it runs after the prompt, whose imports and helper functions it may rely on;
    - it continues the body (its first line is indented): it is appended to the prompt;
    - it is a body without its indentation (there is a ``return`` in the first column): the same, indented.
    """
    name = re.escape(entry_point)
    if re.search(rf"^(?:async\s+def|def|class)\s+{name}\b|^{name}\s*(?::[^=\n]*)?=(?!=)", answer, re.MULTILINE):
        return prompt, answer
    first = next((line for line in answer.split("\n") if line.strip()), "")
    if first[:1] in (" ", "\t"):
        return (prompt + answer,)
    if re.search(r"^return\b", answer, re.MULTILINE):
        return (prompt + textwrap.indent(answer, "    "),)
    return prompt, answer
