"""Engines: what is known of the other engines of a run, and which rows failed: the content of ``engines.json``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specbench.results.attachment import Attachment
from specbench.results.columns import NO_COLUMN
from specbench.results.run_file import REPEAT
from specbench.results.schema import Count, Figure, Record

#: Mode of an engine's row without speculation: the part of its name behind the colon. Every engine has it.
PLAIN = "ar"


class ServedWeights(Record):
    """Which weights an engine decoded with."""

    format: str = Field(description="gguf or hf, as they were exported; the run's own: those of our engine, in memory")
    sha256: str | None = Field(default=None, description="of the exported file, or over a folder's weight files")
    fingerprint: str | None = Field(default=None, description="of the values: equal to that of the run's model, or not")
    verified: bool = Field(description="they are the values of the run's model, bit for bit at the row's precision")


class EngineFacts(Record):
    """What a row of another engine was measured with."""

    engine: str = Field(description="its name, as of the row's label before the colon")
    version: str
    package: str = Field(default="", description="what it was installed from, where that is not its makers' own")
    how: Literal["in process", "worker", "server", "url"]
    command: list[str] = Field(
        default_factory=list,
        description="what decides it, without folders of this machine",
        json_schema_extra=NO_COLUMN,
    )
    dtype: str
    weights: ServedWeights
    ids: bool = Field(default=True, description="token ids go in and come out; else text, and ids are tokenised anew")
    counts: Literal["forwards", "total", "nothing"] = Field(
        description="it tells each forward apart, or their number in all, or neither"
    )
    start_s: Figure = Field(description="from the start of its process to its first answer")
    memory_bytes: Count | None = Field(default=None, description="resident in its processes behind the warm-up")
    cores: Figure | None = Field(default=None, description="kept busy by its processes while it was timed")
    idle_share: Figure | None = Field(
        default=None, description="of a core, taken by its processes while other rows were timed, warm-up left out"
    )
    stopped: bool = Field(default=False, description="it was stopped by signal while others were timed")


class Engines(Record):
    """The content of ``engines.json``: row label -> facts."""

    rows: dict[str, EngineFacts] = Field(default_factory=dict)
    failed: dict[str, str] = Field(
        default_factory=dict, description="row, ours too -> why it has not answered all it was asked"
    )


ENGINES = Attachment("engines.json", Engines, REPEAT)
