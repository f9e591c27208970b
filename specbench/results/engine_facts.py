"""Facts about the other engines of a run, and which rows failed: the content of ``engines.json``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specbench.results.attachment import Attachment
from specbench.results.columns import NO_COLUMN
from specbench.results.run_file import REPEAT
from specbench.results.schema import Count, Figure, Record

#: Mode of an engine's row without speculation (the part of the row's name after the colon). Every engine has it.
PLAIN = "ar"


class ServedWeights(Record):
    """Which weights an engine decoded with."""

    format: str = Field(
        description="gguf or hf for exported weights; the run's own: the weights of our engine, in memory"
    )
    sha256: str | None = Field(
        default=None, description="sha256 of the exported file, or of all weight files of a folder"
    )
    fingerprint: str | None = Field(
        default=None, description="hash of the weights' values, comparable with the fingerprint of the run's model"
    )
    verified: bool = Field(
        description="whether the weights equal those of the run's model, bit for bit at the row's precision"
    )


class EngineFacts(Record):
    """How another engine was started and what it reported, for one row."""

    engine: str = Field(description="name of the engine: the part of the row's label before the colon")
    version: str
    package: str = Field(default="", description="what the engine was installed from, if not its official package")
    how: Literal["in process", "worker", "server", "url"]
    command: list[str] = Field(
        default_factory=list,
        description="command line or options of the engine, without local folders",
        json_schema_extra=NO_COLUMN,
    )
    dtype: str
    weights: ServedWeights
    ids: bool = Field(
        default=True,
        description="whether token ids are exchanged; otherwise text is, and its ids come from tokenising it again",
    )
    counts: Literal["forwards", "total", "nothing"] = Field(
        description="what the engine reports about forwards: each one, only their total, or nothing"
    )
    start_s: Figure = Field(description="seconds from the start of the engine's process to its first answer")
    memory_bytes: Count | None = Field(
        default=None, description="resident memory of the engine's processes after the warm-up, in bytes"
    )
    cores: Figure | None = Field(
        default=None, description="CPU cores that the engine's processes kept busy while it was timed"
    )
    idle_share: Figure | None = Field(
        default=None,
        description="share of one core that the engine's processes used while other rows were timed, without warm-up",
    )
    stopped: bool = Field(
        default=False, description="whether the engine's processes were paused by a signal while other rows were timed"
    )


class Engines(Record):
    """Content of ``engines.json``: row label -> facts."""

    rows: dict[str, EngineFacts] = Field(default_factory=dict)
    failed: dict[str, str] = Field(
        default_factory=dict, description="label of a row (also one of ours) -> why it did not answer all requests"
    )


ENGINES = Attachment("engines.json", Engines, REPEAT)
