"""Measure the times for automatic settings once on a machine, and use them in every later run.

They are stored under ``$XDG_CACHE_HOME/specbench/times``, keyed by everything that they depend on. A run keeps the
times that it used in its own folder, for when it is resumed. Times that turn out to be slow are measured again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from specbench.common import EnvironmentRefused, cache_folder, write_json_atomic
from specbench.results import StoredTimes

T = TypeVar("T")


class _Stored(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    of: dict[str, Any]
    times: dict[str, StoredTimes]


class Calibration:
    """The times of one model on one machine.

    ``of``: everything that they depend on, as JSON; ``known`` times are preferred to those stored in ``folder``;
    ``used``: the times requested so far.
    """

    def __init__(
        self, of: Mapping[str, Any], folder: Path | None = None, known: Mapping[str, StoredTimes] | None = None
    ) -> None:
        self._of = dict(of)
        self._place = None if folder is None else folder / f"{_digest(self._of)}.json"
        self._known = dict(known or {})
        self.used: dict[str, StoredTimes] = {}

    @classmethod
    def here(cls, of: Mapping[str, Any]) -> Calibration:
        """The times in this user's cache."""
        return cls(of, cache_folder("times"))

    def once(self, what: str, measure: Callable[[], Any], by_rows: bool = False) -> Any:
        """Times by name, measured by ``measure`` if they are not stored: seconds, or with ``by_rows`` a list of
        (rows, seconds).
        """
        if what not in self.used or self.used[what].by_rows != by_rows:
            stored = (known.get(what) for known in (self._known, self._stored()))
            found = next((each for each in stored if each and each.by_rows == by_rows), None)
            self.used[what] = found or self._store(what, measure())
        return self.used[what].times

    def take(self, known: Mapping[str, StoredTimes]) -> bool:
        """Use the times that a run began with; return whether any time used so far differs."""
        self._known |= known
        changed = any(self.used[what] != known[what] for what in self.used.keys() & known.keys())
        self.used = {what: known.get(what, used) for what, used in self.used.items()}
        return changed

    def forget(self, what: str) -> None:
        """Let the next run measure the times ``what`` again, unless others than those used here are stored by now."""
        stored = self._stored()
        if stored.get(what) == self.used[what]:
            del stored[what]
            self._write(stored)

    def _stored(self) -> dict[str, StoredTimes]:
        if self._place is None:
            return {}
        try:
            found = _Stored.model_validate_json(self._place.read_bytes())
        except (OSError, ValidationError):  # damaged: measure again and overwrite
            return {}
        return found.times if found.of == self._of else {}

    def _store(self, what: str, times: Any) -> StoredTimes:
        made = StoredTimes(times=times, measured_utc=datetime.now(timezone.utc).isoformat(timespec="seconds"))
        stored = self._stored()
        meanwhile = stored.get(what)
        if meanwhile is not None and meanwhile.by_rows == made.by_rows:
            return meanwhile  # times stored meanwhile by another process win
        self._write({**stored, what: made})
        return made

    def _write(self, times: Mapping[str, StoredTimes]) -> None:
        if self._place is None:
            return
        with suppress(OSError, EnvironmentRefused):  # without write access there is no cache
            self._place.parent.mkdir(parents=True, exist_ok=True)
            written = {name: each.model_dump(mode="json") for name, each in times.items()}
            write_json_atomic(self._place, {"of": self._of, "times": written})


def _digest(of: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:24]
