"""Configuration of a run as it is recorded, and base types of all records. Times are in seconds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from specbench.common import one_line

#: Increased when a field changes its meaning or is removed and, from the first release on, when a field is added:
#: readers refuse unknown fields, and their error should be "newer version", not "damaged file".
SCHEMA_VERSION = 2


#: Label of the baseline method. Every run contains it, so every row can be compared with AR.
BASELINE = "ar"

#: Label of the second baseline of a fine-tuned model: AR of its base model.
BASE = "ar@base"

#: Values of ``--graphs`` and ``--native`` for the engine; None means on if available.
SWITCH: Mapping[str, bool | None] = {"auto": None, "on": True, "off": False}

#: Fields of :class:`SamplingSpec` that change logits before temperature, top-k and top-p.
PROCESSORS = ("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "grammar")

#: Key of the memory of each method, by label, in the engine's report.
MEMORY = "memory"

#: Integers of 64 bits, which tables and JSON readers of other languages can hold.
Whole = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]

#: Integers from 0.
Count = Annotated[int, Field(ge=0, lt=1 << 63)]

#: Measured figures, small enough that sums of them stay finite.
Figure = Annotated[float, Field(ge=-1e15, le=1e15)]

FinishReason = Literal["stop", "stop-string", "length"]


class Record(BaseModel):
    """Base class of everything written: unknown fields are errors, instances are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class MethodSpec(Record):
    """One row of a run: a method with its resolved options."""

    label: str
    name: str
    options: dict[str, Any]
    lossless: bool
    measures: dict[str, str] = Field(
        default_factory=dict, description="description of each figure that the method defines itself, by name"
    )
    weights: dict[str, str] = Field(
        default_factory=dict, description="weights that the method drafted with, such as a draft head"
    )
    own_noise: bool = Field(
        default=False,
        description="whether the method samples with random numbers of its own, so that sampled texts cannot equal "
        "AR's",
    )
    engine: str = Field(default="", description="name of the other engine that decodes this row; absent for our engine")
    stateful: bool = Field(
        default=False,
        description="whether requests learn from earlier ones, so that figures depend on the order of the prompts (see "
        "place); absent if every request starts without state",
    )

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out ``engine`` and ``stateful`` at their defaults, so that digests of older runs stay the same."""
        written: dict[str, Any] = write(self)
        for name in ("engine", "stateful"):
            if not written.get(name):
                written.pop(name, None)
        return written


class GrammarSpec(Record):
    """A grammar that every answer follows, as it was written."""

    kind: Literal["json", "lark", "regex"] = Field(description="json is a JSON schema")
    text: str

    def __str__(self) -> str:
        name = "JSON schema" if self.kind == "json" else self.kind
        return f"{name} {hashlib.sha256(self.text.encode()).hexdigest()[:8]}"


class SamplingSpec(Record):
    """How tokens are chosen; temperature 0 is greedy. Absent fields after ``seed`` are off."""

    temperature: float
    top_k: int
    top_p: float
    seed: int
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, float] = Field(default_factory=dict, description="by token: digits are its id, else its text")
    grammar: GrammarSpec | None = None

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out processors that are off, so that digests of older runs stay the same."""
        written: dict[str, Any] = write(self)
        return {name: value for name, value in written.items() if name not in PROCESSORS or name in self.processors}

    @property
    def processors(self) -> dict[str, Any]:
        """The logit processors that are on, with their values."""
        off = {name: info.get_default(call_default_factory=True) for name, info in type(self).model_fields.items()}
        return {name: value for name in PROCESSORS if (value := getattr(self, name)) != off[name]}

    @property
    def words(self) -> str:
        """The logit processors that are on, for a title; empty without any."""
        shown = self.processors | ({"logit_bias": f"on {len(self.logit_bias)} tokens"} if self.logit_bias else {})
        return ", ".join(f"{name.replace('_', ' ').replace('min p', 'min-p')} {value}" for name, value in shown.items())


class ModelSpec(Record):
    """The model's weights. ``fingerprint`` hashes samples of every tensor, whatever the file format."""

    name: str
    source: str
    revision: str | None
    fingerprint: str
    dtype: str
    device: str
    parameters: int
    weight_bytes: int
    dummy: bool
    template: str | None = Field(
        default=None, description="chat template that the alias sets; None for the model's own, if any"
    )
    base: str | None = Field(
        default=None, description="model that the adapter was merged into; None if it is not an adapter"
    )
    remote_code: bool = Field(
        default=False, description="whether Python code of the model was allowed to run; absent if not"
    )

    quantised: str | None = Field(
        default=None, description="how linear layers store their weights in fewer bits; absent if they do not"
    )
    template_args: dict[str, Any] = Field(
        default_factory=dict, description="further arguments of the chat template; absent without any"
    )

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out some fields if unused, so that digests of older runs stay the same."""
        written: dict[str, Any] = write(self)
        for name in ("remote_code", "quantised", "template_args"):
            if not getattr(self, name):
                written.pop(name, None)
        return written


class PromptDraw(Record):
    """How the prompts of a run were selected from all prompts of the task: see :mod:`specbench.evals.prompt_draw`."""

    of: int = Field(description="number of prompts that the task has with its options")
    seed: int | None = Field(
        description="seed of the permutation whose first prompts were used; None for the first prompts of the data"
    )
    held_out: int = Field(
        default=0, description="number of held-out prompts of a sweep, from the other end of the permutation"
    )


class TaskData(Record):
    """A data file that a task read: its prompts, or the references for scoring its answers."""

    name: str = Field(description="name of the file in --data-dir")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="sha256 of the file that was read")
    bytes: Count
    revision: str | None = Field(
        pattern=r"^[0-9a-f]{40}$",
        description="commit of the data set on the Hugging Face hub; None for a file from elsewhere",
    )
    verified: bool = Field(description="whether the hash equals that of the published file, as the task records it")

    @property
    def shown(self) -> str:
        """The file's name, made safe to print within one line."""
        return one_line(self.name, 80)

    @property
    def description(self) -> str:
        """Name and hash of the file, as text."""
        return f"{self.shown}, sha256 {self.sha256}"


class Dated(Record):
    """The time that a chat template wrote into all prompts: the local time at the start of the run."""

    at: str = Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?$", description="local time without time zone")
    undated_sha256: str = Field(
        pattern=r"^[0-9a-f]{64}$",
        description="prompts_sha256 computed with a fixed time, to find an interrupted run again",
    )


class TaskSpec(Record):
    """The prompts of a run: ``prompts_sha256`` covers their ids, rendered token ids and order."""

    name: str
    version: int
    options: dict[str, Any]
    prompts: int
    requests: int = Field(
        default=0, description="answers per method and repeat: more than the prompts if prompts have several turns"
    )
    metric: str = Field(default="pass@1", description="the headline metric; empty if the task does not score answers")
    judge: bool = Field(
        default=False, description="whether a judge model can rate the answers (specbench score --judge)"
    )
    prompts_sha256: str
    taken: PromptDraw | None = Field(
        default=None,
        description="how --limit selected the prompts; absent if all were used, and in older runs",
    )
    data: list[TaskData] = Field(
        default_factory=list, description="data files that the task read; absent in older runs"
    )
    dated: Dated | None = Field(
        default=None, description="the time in the prompts; absent if the chat template does not use it"
    )
    lengths: list[Count] = Field(
        default_factory=list,
        description="lengths in tokens that each prompt was grown to (--contexts); absent for prompts as they are",
    )

    @property
    def unverified(self) -> str:
        """Text that lists the data files whose hash could not be verified; empty if there are none."""
        files = [file.description for file in self.data if not file.verified]
        return f"data unverified: {'; '.join(files)}" if files else ""

    @property
    def chain(self) -> int:
        """Number of problems that are chained in one conversation; 1 without chaining."""
        found = self.options.get("chain", 1)
        return found if isinstance(found, int) else 1

    @property
    def description(self) -> str:
        """Number of prompts and how they were selected, as text."""
        prompts = self.prompts // max(1, len(self.lengths))
        grown = f", each grown to {', '.join(map(str, self.lengths))} tokens" if self.lengths else ""
        if self.taken is None:
            return f"{prompts} prompts{grown}"
        chosen, taken = prompts - self.taken.held_out, self.taken
        some = f"first {chosen} of {taken.of}" if taken.seed is None else f"{chosen} of {taken.of}"
        by = "" if taken.seed is None else f", sampled with seed {taken.seed}"
        return f"prompts: {some}{by}{grown}{f', and {taken.held_out} held out' if taken.held_out else ''}"

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out fields added later if they are empty, so that older runs keep their form and digest."""
        written: dict[str, Any] = write(self)
        if self.taken is None:
            written.pop("taken", None)
        if not self.data:
            written.pop("data", None)
        if self.dated is None:
            written.pop("dated", None)
        if not self.lengths:
            written.pop("lengths", None)
        return written


class SimulatedAcceptance(Record):
    """Simulated tokens per forward of a method: mean over steps and standard deviation."""

    mean: float
    spread: float

    def __str__(self) -> str:
        return f"{self.mean:g} ± {float(f'{self.spread:.2g}'):g}"


class LoadPoint(Record):
    """One rate of arrivals, in requests per second; a ramp rises from ``rate`` to ``end`` within each block."""

    rate: float = Field(gt=0)
    end: float | None = Field(default=None, gt=0)

    def __str__(self) -> str:
        return f"{self.rate:g}" if self.end is None else f"{self.rate:g}-{self.end:g}"


class Load(Record):
    """Open-loop load: requests arrive by the clock, whether earlier ones have been answered or not.

    A run decodes each prompt once per point, and ``repeat`` of a request tells its point.
    """

    arrivals: Literal["poisson", "constant", "trace"]
    points: list[LoadPoint] = Field(min_length=1)
    trace_sha256: str | None = Field(default=None, description="sha256 of the file with the times of a trace")
    slo: dict[Literal["ttft", "tpot", "latency"], float] = Field(
        default_factory=dict, description="most seconds with which a request is good: service-level objectives"
    )

    def at(self, repeat: int) -> LoadPoint:
        """The point of a request."""
        return self.points[repeat % len(self.points)]


class RunConfig(Record):
    """Everything that determines what a run measures; its hash is part of the folder's name."""

    model: ModelSpec
    base: ModelSpec | None = Field(default=None, description="base model of a fine-tuned model; its row is ar@base")
    task: TaskSpec
    methods: list[MethodSpec] = Field(min_length=1)
    sampling: SamplingSpec
    max_new_tokens: int
    repeats: int
    concurrency: int = Field(ge=1)
    attention: str = Field(
        description="attention backend as requested; what auto chose is in summary.json under engine"
    )
    graphs: Literal["auto", "on", "off"] = Field(default="off", description="CUDA graphs; auto is on for CUDA")
    compile: bool = Field(
        default=False, description="whether torch.compile compiled the layers' elementwise operations"
    )
    deterministic: bool = Field(
        default=False, description="whether kernels and row buckets were chosen without measured times"
    )
    linears: str = Field(
        description="library for matrix products: torch, onednn (fp32 on a CPU), or own: layers and products in our C++"
    )
    simulated: dict[str, SimulatedAcceptance] = Field(
        default_factory=dict, description="methods with simulated acceptance, by label: their text means nothing"
    )
    order_seed: int
    trace: bool = Field(
        default=False, description="whether steps were timed by phase, with a device synchronisation after each phase"
    )
    keep_prefix: bool = Field(
        default=False,
        description="whether the KV of the ids that a turn shares with the turn before was kept, see prefix_tokens",
    )
    load: Load | None = Field(default=None, description="arrivals under load (--rate); absent in a closed loop")
    identity: dict[str, Any] = Field(
        description="facts about machine and software that must be equal to resume the run"
    )

    def undated(self) -> RunConfig:
        """Return the configuration with a fixed time if its prompts contain the time."""
        if self.task.dated is None:
            return self
        fixed = {"prompts_sha256": self.task.dated.undated_sha256, "dated": None}
        return self.model_copy(update={"task": self.task.model_copy(update=fixed)})

    def digest(self) -> str:
        """Return the sha256 of the canonical JSON.

        Left out are ``task.taken`` and ``task.data``, because ``prompts_sha256`` identifies the prompts, and later
        fields at their default, so that older digests stay valid. Prompts that contain the time are hashed with a fixed
        time.
        """
        later = [name for name in ("deterministic", "keep_prefix", "load") if not getattr(self, name)]
        content = self.undated().model_dump(exclude={"task": {"taken", "data"}, **dict.fromkeys(later, True)})
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
