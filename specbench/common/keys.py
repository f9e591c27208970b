"""Keys: environment variables that hold one. What is started does not get them: nothing of it asks by a key."""

from __future__ import annotations

import os
import re

from specbench.common.errors import UsageError

_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,40}")
_named: set[str] = set()


def is_variable(name: str) -> bool:
    """Whether a variable's name is written as they are; what is not may be the key itself, given by mistake."""
    return bool(_VARIABLE.fullmatch(name))


def named(variable: str) -> str:
    """Says that a variable, as the option ``api_key_env`` names it, holds a key; "" is none.

    Raises:
        UsageError: it is not written as variables are: it is not shown, and no record gets it.
    """
    if variable and not is_variable(variable):
        raise UsageError(
            "api_key_env is no name of an environment variable, in capital letters; export the key, and give its name"
        )
    _named.add(variable)
    return variable


def environment() -> dict[str, str]:
    """This process's environment for a child, without the keys."""
    return {name: value for name, value in os.environ.items() if name not in _named}
