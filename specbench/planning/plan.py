"""Plan: the one list of run options. The command line, Python's keyword arguments and the record come from it.

An option is one field here, and its use.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import field_validator

from specbench.common import Flags, UsageError, flag, flag_of, parse_flags, temperature_fault, unknown_name
from specbench.models import DEFAULT_MODEL, DTYPES

if TYPE_CHECKING:
    from specbench.results import SamplingSpec

#: What decodes where neither ``--method`` nor the model's alias says.
DEFAULT_METHODS = "ar,jacobi"

#: The task where neither ``--task`` nor a preset says.
DEFAULT_TASK = "humaneval"

#: Where runs and sweeps go; in a clone git ignores what is put there.
RESULTS = Path("results")

#: Where profiles go, and are looked for.
PROFILES = Path("profiles")

# Beyond these a number is a slip: no cache holds so many sequences, no patience so many repetitions.
_MOST_SEQUENCES, _MOST_REPEATS, _MOST_TOKENS, _MOST_SECONDS = 4096, 1000, 1 << 20, 1_000_000


class Loading(Flags):
    """Loading: which model, where and in what precision, and where data are; of every command that has a model."""

    model: str = flag(DEFAULT_MODEL, "--model", help="Alias, hub id, folder, .gguf file or config:NAME.")
    dtype: str = flag(
        "auto", "--dtype", help="float32, bfloat16, float16; int8 on a CPU; auto: fp32 on CPU, else bf16."
    )
    device: str = flag("auto", "--device", help="cpu, cuda, cuda:N or auto.")
    revision: str | None = flag(None, "--revision", help="Hub revision of the model.")
    trust_remote_code: bool = flag(False, "--trust-remote-code", help="Run Python code that comes with a model.")
    data_dir: Path | None = flag(
        None, "--data-dir", help="Folder with task data files.", exists="folder", recorded=False
    )

    @field_validator("dtype")
    @classmethod
    def _known(cls, dtype: str) -> str:
        if dtype != "auto" and dtype not in DTYPES:
            raise unknown_name("dtype", dtype, ["auto", *DTYPES])
        return dtype

    @field_validator("device")
    @classmethod
    def _written(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", device):
            raise UsageError(f"unknown device '{device}'; write cpu, cuda, cuda:N or auto")
        return device


class Noting(Flags):
    """Noting: whether a command says what it does."""

    quiet: bool = flag(False, "--quiet", help="No progress and no notes.", recorded=False)


class Wordy(Flags):
    """Whether a command prints all that it knows, and not the answer alone."""

    verbose: bool = flag(False, "--verbose", help="Print every table and note.", recorded=False)


class Stepping(Flags):
    """Stepping: on which GPU and by which kernels a model steps."""

    gpu: str = flag("auto", "--gpu", help="Refuse to run on any other GPU; see list gpus.", recorded=False)
    attention: Literal["auto", "reference", "triton", "flash", "flash3", "flash4"] = flag(
        "auto", "--attention", help="auto, reference, triton, or FlashAttention for chains: flash, flash3, flash4."
    )
    graphs: Literal["auto", "on", "off"] = flag("auto", "--graphs", help="CUDA graphs: on, off; auto: on for CUDA.")
    compile: bool = flag(False, "--compile", help="torch.compile on the model's layers.")
    native: Literal["auto", "on", "off"] = flag(
        "auto", "--native", help="Layers by our own code (CPU: C++; GPU: Triton): on, off; auto: on where it can be."
    )


class Drawing(Flags):
    """Drawing: which prompts of all that there are."""

    limit: int | None = flag(
        None, "--limit", help="N prompts of each task, drawn by lot; a larger N extends a smaller.", ge=1
    )
    prompt_seed: int | None = flag(None, "--prompt-seed", help="Of the draw of prompts.", shown="0", ge=0)
    first: bool = flag(False, "--first", help="--limit takes the first N of the data instead.")

    @property
    def drawn_by(self) -> int | None:
        """The seed by which ``--limit`` draws; None takes the first of the data."""
        if self.first and self.prompt_seed is not None:
            raise UsageError(
                "--first takes prompts in the order of the data, by no seed; leave one of --first, --prompt-seed out"
            )
        if self.first and self.limit is None:
            raise UsageError("--first selects the prompts of --limit; add --limit N, or remove --first for all prompts")
        return None if self.first else self.prompt_seed or 0


class _Asking(Flags):
    """What is asked of which methods, and how tokens are chosen."""

    method: str | None = flag(
        None,
        "--method",
        help="Methods, comma-separated; ar is always added.",
        shown=f"{DEFAULT_METHODS}, or the alias's",
    )
    task: str | None = flag(None, "--task", help="Tasks, comma-separated.", shown=f"{DEFAULT_TASK}, or the preset's")
    max_new_tokens: int | None = flag(
        None, "--max-new-tokens", help="Per answer; default is the task's.", ge=1, le=_MOST_TOKENS
    )
    temperature: float | None = flag(
        None, "--temperature", help="0 is greedy.", shown="0, or the preset's", ge=0, allow_inf_nan=False
    )
    top_k: int = flag(0, "--top-k", help="Keep the k most probable tokens; 0 is off.", ge=0)
    top_p: float = flag(1.0, "--top-p", help="Keep the most probable mass; 1 is off.", gt=0, le=1)
    seed: int = flag(0, "--seed", help="Seed of sampling, drafting and the order of requests.", ge=0, lt=1 << 63)
    settings: Sequence[str] = flag(
        (), "--set", help="A method's option, as jacobi.n=16; repeatable.", metavar="M.OPT=V"
    )
    head: str | None = flag(
        None, "--head", help="Draft head: folder or hub id; stands for --set METHOD.head=.", metavar="HEAD"
    )
    task_settings: Sequence[str] = flag((), "--task-set", help="A task's option; repeatable.", metavar="T.OPT=V")
    data_file: Path | None = flag(
        None, "--data-file", help="Your prompts, for --task prompts, or speed-bench's.", exists="file"
    )

    @field_validator("temperature")
    @classmethod
    def _divides(cls, temperature: float | None) -> float | None:
        if fault := temperature_fault(temperature or 0.0):
            raise UsageError(f"--{fault}")
        return temperature


class Decoding(Noting, Loading, Stepping, Drawing, _Asking):
    """Decoding: the options of every command that decodes prompts with methods."""

    threads: int | None = flag(
        None, "--threads", help="Of a step on a CPU.", shown="torch's choice, mostly one a core", ge=1, le=1024
    )
    simulate: Sequence[str] = flag(
        (),
        "--simulate-acceptance",
        help="Tokens per forward, drawn at random: MEAN[:SPREAD] or METHOD=MEAN[:SPREAD]. The text means nothing.",
        metavar="SPEC",
    )
    step_timeout: float = flag(
        600.0,
        "--step-timeout",
        help="Seconds for a step before its method is given up; 0: for ever.",
        ge=0,
        le=_MOST_SECONDS,
        allow_inf_nan=False,
        recorded=False,
    )
    deterministic: bool = flag(False, "--deterministic", help="Let no measured time choose kernels or row counts.")
    no_score: bool = flag(False, "--no-score", help="Do not judge the answers.", recorded=False)
    out: Path = flag(RESULTS, "--out", help="Folder that receives the run's folder.", recorded=False)

    @property
    def sampling(self) -> SamplingSpec:
        """How tokens are chosen."""
        from specbench.results import SamplingSpec  # --help does without the models of records

        return SamplingSpec(temperature=self.temperature or 0.0, top_k=self.top_k, top_p=self.top_p, seed=self.seed)

    def plan(self, **more: Any) -> Plan:
        """The run of these options; ``more`` are further fields or other values."""
        shared = (Concurrent if isinstance(self, Concurrent) else Decoding).model_fields
        return parse_flags(Plan, {**{name: getattr(self, name) for name in shared}, **more})


class Concurrent(Decoding):
    """Concurrent: those of them that step several sequences together."""

    concurrency: int = flag(1, "--concurrency", help="Sequences stepped together.", ge=1, le=_MOST_SEQUENCES)


class Waiting(Flags):
    """Waiting: whether a measurement waits for a quiet machine; of those that read memory beside what they time."""

    patience: float = flag(
        0.0,
        "--patience",
        help="Seconds in all to wait, on a CPU, while memory gives less than it gave before in this run.",
        ge=0,
        le=_MOST_SECONDS,
        allow_inf_nan=False,
        recorded=False,
    )


class Plan(Concurrent, Waiting, Wordy):
    """Plan: what ``specbench run`` takes, checked as far as one option by itself can be.

    A name is looked up, and an alias or a preset decides what was left open, in :mod:`specbench.planning.resolving`.
    """

    backend_url: Sequence[str] = flag(
        (),
        "--backend-url",
        help="A server of yours for rows of another engine: vllm=http://HOST:PORT; repeatable.",
        metavar="ENGINE=URL",
        recorded=False,
    )
    base: str = flag(
        "auto",
        "--base",
        help="What the model was made from, to run AR of too; none. auto: an adapter's.",
        metavar="MODEL",
    )
    preset: str | None = flag(None, "--preset", help="A published protocol: task, prompt, budget; see list presets.")
    repeats: int = flag(1, "--repeats", help="Times each prompt is decoded by each method.", ge=1, le=_MOST_REPEATS)
    again: bool = flag(False, "--again", help="Measure anew what a finished run in --out has already.", recorded=False)
    trace: bool = flag(False, "--trace", help="Split each step's time into phases (slows steps down a bit).")
    project: str | None = flag(
        None, "--project", help="Add what this would be on another GPU; see list gpus.", metavar="GPU", recorded=False
    )
    profile: Path | None = flag(
        None, "--profile", help="Step times for --project; else they are measured.", exists="folder", recorded=False
    )

    def recorded(self) -> dict[str, Any]:
        """What of it decides a run and is not as it is by default; JSON-ready, without folders of this machine."""
        kept = {name for name in type(self).model_fields if flag_of(type(self), name).recorded}
        found = self.model_dump(mode="json", include=kept, exclude_defaults=True)
        return {name: _nameless(value) for name, value in found.items()}

    def command(self) -> str:
        """The command line that gives this plan, without folders of this machine."""
        return command(self.recorded())


def command(recorded: Mapping[str, Any]) -> str:
    """The command line of a run, from what its record says of its plan."""
    found = ["specbench", "run"]
    for name, value in recorded.items():
        written = flag_of(Plan, name).name
        if value is True:
            found.append(written)
        else:
            found += [part for each in (value if isinstance(value, list) else [value]) for part in (written, str(each))]
    return shlex.join(found)


def _nameless(value: Any) -> Any:
    """A value whose path, where it is one or an option's, has lost its folders."""
    if isinstance(value, list):
        return [_nameless(each) for each in value]
    if not isinstance(value, str) or "/" not in value:
        return value
    option, equals, path = value.rpartition("=")
    place = Path(path).expanduser()
    return f"{option}{equals}{place.name}" if place.is_absolute() or place.exists() else value


def split_names(text: str) -> list[str]:
    """Comma-separated names."""
    return [name.strip() for name in text.split(",") if name.strip()]
