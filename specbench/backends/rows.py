"""Create the rows of other engines in a plan: ENGINE:MODE with checked options."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specbench.backends.catalog import engine_mode
from specbench.backends.protocol import PLAIN, Backend, EngineOptions, Mode
from specbench.common import UsageError, parse_options
from specbench.results import MethodSpec


@dataclass(frozen=True)
class Row:
    """Another engine in one mode, ready to be started. Shares attributes with a method, so that both can be listed.

    Attributes:
        url: URL of a server that the user runs; None if the engine is started here.
    """

    label: str
    name: str
    options: EngineOptions
    backend: type[Backend]
    url: str | None = None

    #: Above temperature 0 an engine samples with random numbers of its own.
    own_noise = True

    @property
    def engine(self) -> str:
        """Name of the engine."""
        return self.name.partition(":")[0]

    @property
    def mode(self) -> str:
        """Name of the mode."""
        return self.name.partition(":")[2]

    @property
    def kind(self) -> Mode:
        """Description of the mode."""
        return self.backend.modes[self.mode]

    @property
    def lossless(self) -> bool:
        """Whether the mode claims to emit plain decoding's tokens."""
        return self.kind.lossless

    @property
    def plain(self) -> bool:
        """Whether the mode decodes without speculation."""
        return self.mode == PLAIN

    def spec(self) -> MethodSpec:
        """Return the row's record, in which a hash replaces a server's URL: it distinguishes servers but names none."""
        return MethodSpec(
            label=self.label,
            name=self.name,
            options=self.options.model_dump(mode="json") | ({"url": _digest(self.url)} if self.url else {}),
            lossless=self.lossless,
            measures=dict(self.kind.measures),
            own_noise=self.own_noise,
            engine=self.engine,
        )


def make_row(label: str, name: str, raw: Mapping[str, Any], url: str | None = None) -> Row:
    """Create a row from options as written on the command line."""
    backend, _, mode = engine_mode(name)
    options = parse_options(mode.options, raw, name)
    owner = name.partition(":")[0]
    if url is not None and backend.by_url == "no":
        raise UsageError(f"cannot use --backend-url for {label}: {owner} runs in this process; remove it")
    if url is None and backend.by_url == "has to be":
        raise UsageError(
            f"cannot run {label} without its server's address; give --backend-url {owner}=http://HOST:PORT/v1"
        )
    return Row(label, name, options, backend, url)


def _digest(url: str) -> str:
    return hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:8]
