"""Arguments of a model's chat template, such as ``enable_thinking=false``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from specbench.common import UsageError, one_line

_FLAG = "--chat-template-arg"
# Arguments that the program sets itself, and names with which a template could be replaced.
_OWN = frozenset(
    {"messages", "conversations", "chat_template", "add_generation_prompt", "continue_final_message", "tokenize"}
    | {"return_assistant_tokens_mask", "specbench_now"}
)


def parse_template_args(written: Sequence[str]) -> dict[str, Any]:
    """Parse ``NAME=VALUE`` texts, whose values are JSON (``false``, ``3``, ``[1]``) or else plain text.

    Raises:
        UsageError: a text has no name, the name cannot be set, or a name is given twice.
    """
    found: dict[str, Any] = {}
    for each in written:
        name, separator, value = each.partition("=")
        name = name.strip()
        if not separator or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(f"cannot read {_FLAG} {one_line(each, 60)}: write NAME=VALUE, as enable_thinking=false")
        if name in _OWN:
            raise UsageError(f"cannot set {name} with {_FLAG}: specbench sets it; remove it")
        if name in found:
            raise UsageError(f"cannot set {name} with {_FLAG} twice; remove one of the two")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def check_template_args(args: Mapping[str, Any], template: str | None, model: str) -> None:
    """Refuse arguments that a model's chat template does not read, so that a misspelt one is not ignored."""
    if not args:
        return
    if template is None:
        raise UsageError(f"cannot use {_FLAG} with {model}: it has no chat template; remove the argument")
    unread = [name for name in args if not re.search(rf"\b{name}\b", template)]
    if unread:
        raise UsageError(
            f"cannot set {unread[0]} with {_FLAG}: the chat template of {model} does not use it; check the name, or "
            "remove it"
        )
