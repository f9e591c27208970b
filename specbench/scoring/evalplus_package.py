"""The evalplus package (extra ``eval``), asked through its worker process."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from specbench.errors import EnvironmentRefused
from specbench.scoring.workers import DiedError, TimedOutError, Workers

_SANITISE_S = 30.0
_INPUTS_S = 60.0


def version() -> str | None:
    """Of the installed package; None when there is none."""
    try:
        return importlib.metadata.version("evalplus")
    except importlib.metadata.PackageNotFoundError:
        return None


class EvalPlus:
    """Safe to share between threads. Nothing is started or imported before it is needed."""

    def __init__(self, needed_for: str) -> None:
        """
        Args:
            needed_for: an option and its value, for the error.

        Raises:
            EnvironmentRefused: the package is not installed.
        """
        if version() is None:
            raise EnvironmentRefused(
                f"{needed_for} needs the evalplus package: pip install 'specbench-llm[eval]', or choose another value"
            )
        self._workers = Workers("specbench.scoring.evalplus_worker")

    def sanitise(self, text: str, entry_point: str) -> str:
        """What EvalPlus's sanitiser leaves: imports, and the definitions that ``entry_point`` needs.

        Text that it takes too long over, or dies of, is returned as it is.
        """
        try:
            return str(self._workers.ask({"text": text, "entry_point": entry_point}, _SANITISE_S)["code"])
        except (TimedOutError, DiedError):
            return text

    def mbpp_inputs(self, id: str, entry_point: str, base: list[Any], plus: list[Any]) -> tuple[list[Any], Any, str]:
        """(packed base inputs, packed plus inputs, rule of comparison) of an MBPP problem.

        Raises:
            EnvironmentRefused: evalplus cannot read the inputs.
        """
        try:
            found = self._workers.ask({"id": id, "entry_point": entry_point, "base": base, "plus": plus}, _INPUTS_S)
            return found["base"], found["plus"], found["rule"]
        except (TimedOutError, DiedError, KeyError) as error:
            raise EnvironmentRefused(
                f"evalplus {version()} did not read the inputs of {id} ({error}); install evalplus 0.3.1"
            ) from error
