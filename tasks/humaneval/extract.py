"""Turn an answer's code into the Python to run. It uses only regular expressions: answers are never parsed here."""

from __future__ import annotations

import re
import textwrap


def sources(prompt: str, entry_point: str, answer: str) -> tuple[str, ...]:
    """The sources to execute in order for the code of a chat answer, without fences.

    There are three kinds of answers:
    - one that defines the entry point runs after the prompt, whose imports and helper functions it may use;
    - one that continues the body (its first line is indented) is appended to the prompt;
    - a body without indentation (it has a ``return`` in the first column) is indented and appended.
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
