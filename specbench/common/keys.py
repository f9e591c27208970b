"""API keys: named by an environment variable, kept from child processes and out of every text that is shown."""

from __future__ import annotations

import os
import re

from specbench.common.errors import UsageError

HIDDEN = "[key]"

# A shorter key would be found in ordinary words, and replacing it would change a judgment.
_SHORTEST = 4
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,40}")
_named: set[str] = set()


class Secret:
    """A key in the form for a header.

    Raises:
        UsageError: it cannot be in a header, or is too short to be removed from texts; the text does not show it.
    """

    def __init__(self, key: str) -> None:
        if fault := fault_of(key):
            raise UsageError(f"the key {fault}")
        self.key = key
        self._pattern = re.compile(re.escape(key), re.IGNORECASE)

    def __repr__(self) -> str:
        return f"Secret({HIDDEN})"

    def scrub(self, text: str) -> str:
        """Return ``text`` with ``[key]`` in place of the key. Scrub before shortening: half a key is not found."""
        return self._pattern.sub(HIDDEN, text)


def fault_of(key: str) -> str | None:
    """Why this cannot be a key, as the end of a sentence about it; None if it can."""
    if not key.strip():
        return "is blank"
    if not key.isascii() or not key.isprintable() or key != key.strip():
        return "contains characters that no key has"
    if len(key) < _SHORTEST:
        return f"is shorter than {_SHORTEST} characters, too short to be kept out of the records"
    return None


def is_variable(name: str) -> bool:
    """Whether a name is written like an environment variable; otherwise it may be the key itself, given by mistake."""
    return bool(_VARIABLE.fullmatch(name))


def named(variable: str) -> str:
    """Register the variable named by the option ``api_key_env`` as containing a key; "" is none.

    Raises:
        UsageError: it is not written like a variable; the text does not show it.
    """
    if variable and not is_variable(variable):
        raise UsageError(
            "api_key_env must name an environment variable, in capital letters; export the key, and give its name"
        )
    _named.add(variable)
    return variable


def environment() -> dict[str, str]:
    """Return this process's environment for a child, without the keys."""
    return {name: value for name, value in os.environ.items() if name not in _named}
