"""Methods of a plan that are other engines', ENGINE:MODE with checked options."""

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
    """Another engine in one mode, ready to be started. It has what a method has, for whoever lists both.

    Attributes:
        url: of the server that the user runs; None where it is started here.
    """

    label: str
    name: str
    options: EngineOptions
    backend: type[Backend]
    url: str | None = None

    #: At a temperature above 0 an engine draws with noise of its own.
    own_noise = True

    @property
    def engine(self) -> str:
        """The engine's name."""
        return self.name.partition(":")[0]

    @property
    def mode(self) -> str:
        """The mode's name."""
        return self.name.partition(":")[2]

    @property
    def kind(self) -> Mode:
        """What the mode is."""
        return self.backend.modes[self.mode]

    @property
    def lossless(self) -> bool:
        """Whether it claims to emit what plain decoding emits."""
        return self.kind.lossless

    @property
    def plain(self) -> bool:
        """Whether it decodes without speculation."""
        return self.mode == PLAIN

    def spec(self) -> MethodSpec:
        """The record. Of a server's address it has a digest: enough to tell two servers apart, and names no machine."""
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
    """A row with options as written."""
    backend, _, mode = engine_mode(name)
    options = parse_options(mode.options, raw, name)
    owner = name.partition(":")[0]
    if url is not None and backend.by_url == "no":
        raise UsageError(f"--backend-url {label}: {owner} runs in this process; leave the address out")
    if url is None and backend.by_url == "has to be":
        raise UsageError(
            f"{label} is a server that you run; give its address: --backend-url {owner}=http://HOST:PORT/v1"
        )
    return Row(label, name, options, backend, url)


def _digest(url: str) -> str:
    return hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:8]
