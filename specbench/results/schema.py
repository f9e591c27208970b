"""What a run writes, versioned (DESIGN §8). Times are seconds unless the name says otherwise."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from specbench.common import one_line

#: Raised whenever a field changes its meaning or disappears, and from the first release on whenever one is added:
#: readers refuse fields that they do not know, and should say "newer", not "damaged".
SCHEMA_VERSION = 2


#: Label of the baseline method. Every run contains it: no row is shown without its AR twin.
BASELINE = "ar"

#: Label of the second baseline of a fine-tuned model: plain decoding of what it was made from (DESIGN §5).
BASE = "ar@base"

#: Values of ``--graphs`` and ``--native`` as the engine takes them: None is on where it can be had.
SWITCH: Mapping[str, bool | None] = {"auto": None, "on": True, "off": False}

#: In what an engine reports, the memory that each method decodes in, by label.
MEMORY = "memory"

#: Whole numbers as tables and JSON readers of other languages have them.
Whole = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]

#: Those that count something.
Count = Annotated[int, Field(ge=0, lt=1 << 63)]

#: Measured figures: of no size at which a sum of many is infinite.
Figure = Annotated[float, Field(ge=-1e15, le=1e15)]

FinishReason = Literal["stop", "stop-string", "length"]


class Record(BaseModel):
    """Base of everything written: unknown fields are errors, values do not change after construction."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class MethodSpec(Record):
    """One row of a run: a method with its resolved options."""

    label: str
    name: str
    options: dict[str, Any]
    lossless: bool
    measures: dict[str, str] = Field(default_factory=dict, description="what its own figures are, by name")
    weights: dict[str, str] = Field(default_factory=dict, description="which weights of its own it drafted with")
    own_noise: bool = Field(default=False, description="sampled, it draws its own noise: its texts cannot equal AR's")
    engine: str = Field(default="", description="whose row it is where it is another engine's; absent where it is ours")
    stateful: bool = Field(
        default=False,
        description="its requests learn from those before them, so its figures depend on the order of the prompts, "
        "which place says; absent where each begins anew",
    )

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A row of our own engine without a state is written as ever: digests of such runs stay what they were."""
        written: dict[str, Any] = write(self)
        for name in ("engine", "stateful"):
            if not written.get(name):
                written.pop(name, None)
        return written


class SamplingSpec(Record):
    """How tokens are chosen; temperature 0 is greedy."""

    temperature: float
    top_k: int
    top_p: float
    seed: int


class ModelSpec(Record):
    """Which weights. ``fingerprint`` hashes samples of every tensor: equal for equal values in any file format."""

    name: str
    source: str
    revision: str | None
    fingerprint: str
    dtype: str
    device: str
    parameters: int
    weight_bytes: int
    dummy: bool
    template: str | None = Field(default=None, description="chat template of the alias; None: the model's own, if any")
    base: str | None = Field(default=None, description="what the adapter was merged into; None: it is no adapter")
    remote_code: bool = Field(default=False, description="Python that came with it was free to run; absent where not")

    @model_serializer(mode="wrap")
    def _said(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without code of its own it is written as ever: digests of such runs stay what they were."""
        written: dict[str, Any] = write(self)
        if not self.remote_code:
            written.pop("remote_code", None)
        return written


class PromptDraw(Record):
    """How the prompts of a run were chosen out of all that the task has: see :mod:`specbench.evals.prompt_draw`."""

    of: int = Field(description="prompts that the task has, with its options")
    seed: int | None = Field(description="of the permutation whose first ones they are; None: the first of the data")
    held_out: int = Field(default=0, description="of a sweep's prompts those it did not choose by, from the other end")


class TaskData(Record):
    """A data file that a task read: its prompts, or what its answers are judged by."""

    name: str = Field(description="as it is looked for in --data-dir")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="of the file that was read, as computed")
    bytes: Count
    revision: str | None = Field(
        pattern=r"^[0-9a-f]{40}$", description="commit of the hub's data set that it came from; None: from elsewhere"
    )
    verified: bool = Field(description="the task knows the published file's hash, and this is that file")

    @property
    def shown(self) -> str:
        """Its name as part of a line, whatever is in it."""
        return one_line(self.name, 80)

    @property
    def said(self) -> str:
        """Which file it was, in words."""
        return f"{self.shown}, sha256 {self.sha256}"


class Dated(Record):
    """The time that a chat template wrote into the prompts: the local time of the start, in all of them."""

    at: str = Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?$", description="local time, without a zone")
    undated_sha256: str = Field(
        pattern=r"^[0-9a-f]{64}$",
        description="prompts_sha256 as it would be at a fixed time: by it a run that was broken off is found again",
    )


class TaskSpec(Record):
    """Which prompts: ``prompts_sha256`` covers ids, rendered token ids and order."""

    name: str
    version: int
    options: dict[str, Any]
    prompts: int
    requests: int = Field(
        default=0, description="answers per method and repeat: more than prompts where prompts have turns"
    )
    metric: str = Field(default="pass@1", description="the headline metric; empty where the task has no verdict")
    judge: bool = Field(default=False, description="a model can rate the answers: specbench score --judge")
    prompts_sha256: str
    taken: PromptDraw | None = Field(
        default=None,
        description="how a limit chose them; absent where all were taken, and in runs from before it said so",
    )
    data: list[TaskData] = Field(
        default_factory=list, description="files that the task read; absent in runs from before it said so"
    )
    dated: Dated | None = Field(
        default=None, description="the time in the prompts; absent where the chat template does not ask for one"
    )

    @property
    def unverified(self) -> str:
        """Which data files nobody has said the hash of, in words; empty where there is none."""
        files = [file.said for file in self.data if not file.verified]
        return f"data unverified: {'; '.join(files)}" if files else ""

    @property
    def chain(self) -> int:
        """Problems of a conversation; 1 where none are chained."""
        found = self.options.get("chain", 1)
        return found if isinstance(found, int) else 1

    @property
    def said(self) -> str:
        """How many prompts there are and how they were chosen, in words."""
        if self.taken is None:
            return f"{self.prompts} prompts"
        chosen, taken = self.prompts - self.taken.held_out, self.taken
        some = f"first {chosen} of {taken.of}" if taken.seed is None else f"{chosen} of {taken.of}"
        by = "" if taken.seed is None else f", drawn by seed {taken.seed}"
        return f"prompts: {some}{by}{f', and {taken.held_out} held out' if taken.held_out else ''}"

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """With all prompts, and without data files, it is written as ever."""
        written: dict[str, Any] = write(self)
        if self.taken is None:
            written.pop("taken", None)
        if not self.data:
            written.pop("data", None)
        if self.dated is None:
            written.pop("dated", None)
        return written


class SimulatedAcceptance(Record):
    """Tokens that a method's forwards are made to emit: mean over steps and standard deviation."""

    mean: float
    spread: float

    def __str__(self) -> str:
        return f"{self.mean:g} ± {float(f'{self.spread:.2g}'):g}"


class RunConfig(Record):
    """Everything that decides what a run measures; its hash names the run."""

    model: ModelSpec
    base: ModelSpec | None = Field(default=None, description="what the model was made from; its row is ar@base")
    task: TaskSpec
    methods: list[MethodSpec] = Field(min_length=1)
    sampling: SamplingSpec
    max_new_tokens: int
    repeats: int
    concurrency: int = Field(ge=1)
    attention: str = Field(description="backend as asked for; summary.json says under engine what auto chose")
    graphs: Literal["auto", "on", "off"] = Field(default="off", description="CUDA graphs; auto is on for CUDA")
    compile: bool = Field(default=False, description="torch.compile on the layers' elementwise work")
    deterministic: bool = Field(default=False, description="no measured time chose kernels or row buckets")
    linears: str = Field(
        description="what computes products: torch, onednn for fp32 on a CPU, or own: layers and products in our C++"
    )
    simulated: dict[str, SimulatedAcceptance] = Field(
        default_factory=dict, description="methods whose acceptance was decided by lot: their text means nothing"
    )
    order_seed: int
    trace: bool = Field(default=False, description="steps were split into phases, with a wait for the device at each")
    identity: dict[str, Any] = Field(description="what of machine and software must agree for a run to be resumed")

    def undated(self) -> RunConfig:
        """The same run at a fixed time, where the time is in its prompts."""
        if self.task.dated is None:
            return self
        fixed = {"prompts_sha256": self.task.dated.undated_sha256, "dated": None}
        return self.model_copy(update={"task": self.task.model_copy(update=fixed)})

    def digest(self) -> str:
        """sha256 of the canonical JSON.

        How prompts were chosen and which files they came from is left out (``prompts_sha256`` says which they are), and
        so is a later field at its default, so that older digests stay. Prompts with the time in them are hashed without
        it.
        """
        later = () if self.deterministic else ("deterministic",)
        said = self.undated().model_dump(exclude={"task": {"taken", "data"}, **dict.fromkeys(later, True)})
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
