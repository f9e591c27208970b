"""All options of a run, each defined once.

Command line, Python keyword arguments and the record are derived from it.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import field_validator

from specbench.common import Flags, UsageError, flag, flag_of, parse_count, parse_flags, temperature_fault, unknown_name
from specbench.models import DEFAULT_MODEL, DTYPES, parse_template_args

if TYPE_CHECKING:
    from specbench.results import SamplingSpec

#: Methods if neither ``--method`` nor the model's alias names any.
DEFAULT_METHODS = "ar,jacobi"

#: Task if neither ``--task`` nor a preset names one.
DEFAULT_TASK = "humaneval"

#: Default folder of runs and sweeps; git ignores it in a clone.
RESULTS = Path("results")

#: Folder where profiles are stored and found.
PROFILES = Path("profiles")

# A larger number is a typing error: no cache holds as many sequences, and no run would finish as many repeats.
_MOST_SEQUENCES, _MOST_REPEATS, _MOST_TOKENS, _MOST_SECONDS = 4096, 1000, 1 << 20, 1_000_000


#: Arrivals of ``--arrivals`` that need ``--rate``; everything else is a file.
EVENLY = ("poisson", "constant")


class Loading(Flags):
    """Options of every command that loads a model: which model, device, precision and data folder."""

    model: str = flag(DEFAULT_MODEL, "--model", help="Alias, hub id, folder, .gguf file or config:NAME.")
    dtype: str = flag(
        "auto",
        "--dtype",
        help="float32, bfloat16, float16; on a CPU int8, or packed: a GGUF file's own weights; auto: float32 on a "
        "CPU, else bfloat16.",
    )
    quantize: Literal["int8", "int4", "fp8"] | None = flag(
        None, "--quantize", help="Linear layers in fewer bits, by torchao: int8, int4, fp8; inputs keep --dtype.",
    )  # fmt: skip
    device: str = flag("auto", "--device", help="cpu, cuda, cuda:N or auto.")
    revision: str | None = flag(None, "--revision", help="Hub revision of the model.")
    trust_remote_code: bool = flag(False, "--trust-remote-code", help="Allow the model's own Python code to run.")
    chat_template_arg: Sequence[str] = flag(
        (), "--chat-template-arg", help="The chat template's argument, as enable_thinking=false; repeatable.",
        metavar="NAME=VALUE",
    )  # fmt: skip
    data_dir: Path | None = flag(
        None, "--data-dir", help="Folder with task data files.", exists="folder", recorded=False
    )

    @field_validator("dtype")
    @classmethod
    def _known(cls, dtype: str) -> str:
        if dtype != "auto" and dtype not in DTYPES:
            raise unknown_name("dtype", dtype, ["auto", *DTYPES])
        return dtype

    @field_validator("chat_template_arg")
    @classmethod
    def _arguments(cls, written: Sequence[str]) -> Sequence[str]:
        parse_template_args(written)
        return written

    @property
    def template_args(self) -> dict[str, Any]:
        """Arguments for the model's chat template."""
        return parse_template_args(self.chat_template_arg)

    @field_validator("device")
    @classmethod
    def _written(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", device):
            raise UsageError(f"unknown device '{device}'; write cpu, cuda, cuda:N or auto")
        return device


class Noting(Flags):
    """Whether a command prints progress and notes."""

    quiet: bool = flag(False, "--quiet", help="No progress and no notes.", recorded=False)


class Wordy(Flags):
    """Whether a command prints all that it knows, and not the answer alone."""

    verbose: bool = flag(False, "--verbose", help="Print every table and note.", recorded=False)


class Stepping(Flags):
    """Options for the GPU and kernels of a model's forwards."""

    gpu: str = flag("auto", "--gpu", help="Refuse to run on any other GPU; see list gpus.", recorded=False)
    attention: Literal["auto", "reference", "triton", "flash", "flash3", "flash4"] = flag(
        "auto", "--attention", help="auto, reference, triton, or FlashAttention for chains: flash, flash3, flash4."
    )
    graphs: Literal["auto", "on", "off"] = flag("auto", "--graphs", help="CUDA graphs: on, off; auto: on for CUDA.")
    compile: bool = flag(False, "--compile", help="torch.compile on the model's layers.")
    native: Literal["auto", "on", "off"] = flag(
        "auto", "--native", help="Own code for the layers (CPU: C++; GPU: Triton): on, off; auto: on if available."
    )


class Drawing(Flags):
    """Options that select the prompts of a task."""

    limit: int | None = flag(
        None, "--limit", help="N random prompts of each task; a larger N extends a smaller one.", ge=1
    )
    prompt_seed: int | None = flag(
        None, "--prompt-seed", help="Random seed for the selection of prompts.", shown="0", ge=0
    )
    first: bool = flag(False, "--first", help="Let --limit select the first N prompts instead of random ones.")

    @property
    def drawn_by(self) -> int | None:
        """Seed of the prompts that ``--limit`` selects; None selects the first prompts of the data."""
        if self.first and self.prompt_seed is not None:
            raise UsageError(
                "--first selects prompts in the order of the data, without a seed; remove --first or --prompt-seed"
            )
        if self.first and self.limit is None:
            raise UsageError("--first selects the prompts of --limit; add --limit N, or remove --first for all prompts")
        return None if self.first else self.prompt_seed or 0


class _Asking(Flags):
    """Options for methods, tasks and sampling."""

    method: str | None = flag(
        None,
        "--method",
        help="Methods, comma-separated; ar is always added.",
        shown=f"{DEFAULT_METHODS}, or the alias's",
    )
    task: str | None = flag(None, "--task", help="Tasks, comma-separated.", shown=f"{DEFAULT_TASK}, or the preset's")
    max_new_tokens: int | None = flag(
        None, "--max-new-tokens", help="Token budget of an answer; the default is the task's.", ge=1, le=_MOST_TOKENS
    )
    temperature: float | None = flag(
        None, "--temperature", help="0 is greedy.", shown="0, or the preset's", ge=0, allow_inf_nan=False
    )
    top_k: int = flag(0, "--top-k", help="Keep the k most probable tokens; 0 is off.", ge=0)
    top_p: float = flag(1.0, "--top-p", help="Keep the most probable mass; 1 is off.", gt=0, le=1)
    min_p: float = flag(
        0.0, "--min-p", help="Keep tokens with this share of the best one's probability; 0 is off.", ge=0, le=1
    )
    repetition_penalty: float = flag(
        1.0, "--repetition-penalty", help="Factor against tokens of prompt and output; 1 is off.", ge=0.01, le=100
    )
    presence_penalty: float = flag(
        0.0, "--presence-penalty", help="Subtracted from logits of tokens in the output.", ge=-2, le=2
    )
    frequency_penalty: float = flag(
        0.0, "--frequency-penalty", help="Subtracted for each occurrence in the output.", ge=-2, le=2
    )
    logit_bias: Sequence[str] = flag(
        (), "--logit-bias", help="Add X to the logit of a token, by id or text; repeatable.", metavar="TOKEN=X"
    )
    grammar: Path | None = flag(
        None, "--grammar", help="Grammar of every answer: a JSON schema .json, .lark or .regex file.", exists="file"
    )
    seed: int = flag(0, "--seed", help="Seed of sampling, drafting and the order of requests.", ge=0, lt=1 << 63)
    settings: Sequence[str] = flag(
        (),
        "--set",
        metavar="M.OPT=V",
        help="A method's option, as jacobi.n=16; repeatable. M#2.OPT=V: of a second row of M, which takes nothing from "
        "the first.",
    )
    head: str | None = flag(
        None, "--head", help="Draft head: folder or hub id; short for --set METHOD.head=.", metavar="HEAD"
    )
    task_settings: Sequence[str] = flag((), "--task-set", help="A task's option; repeatable.", metavar="T.OPT=V")
    data_file: Path | None = flag(
        None, "--data-file", help="Data file for --task prompts, traces (your own) or speed-bench.", exists="file"
    )

    @field_validator("temperature")
    @classmethod
    def _divides(cls, temperature: float | None) -> float | None:
        if fault := temperature_fault(temperature or 0.0):
            raise UsageError(f"--{fault}")
        return temperature

    @field_validator("logit_bias")
    @classmethod
    def _biases(cls, written: Sequence[str]) -> Sequence[str]:
        _parse_bias(written)
        return written


class Decoding(Noting, Loading, Stepping, Drawing, _Asking):
    """Options of every command that decodes prompts with methods."""

    threads: int | None = flag(
        None, "--threads", help="CPU threads of a step.", shown="torch's choice, usually one per core", ge=1, le=1024
    )
    simulate: Sequence[str] = flag(
        (),
        "--simulate-acceptance",
        help="Random tokens per forward: MEAN[:SPREAD] or METHOD=MEAN[:SPREAD]. The text means nothing.",
        metavar="SPEC",
    )
    step_timeout: float = flag(
        600.0,
        "--step-timeout",
        help="Seconds for a step before its method is stopped; 0: no limit.",
        ge=0,
        le=_MOST_SECONDS,
        allow_inf_nan=False,
        recorded=False,
    )
    deterministic: bool = flag(False, "--deterministic", help="Choose kernels and row counts without measured times.")
    no_score: bool = flag(False, "--no-score", help="Do not score the answers.", recorded=False)
    out: Path = flag(RESULTS, "--out", help="Folder that receives the run's folder.", recorded=False)

    @property
    def sampling(self) -> SamplingSpec:
        """How tokens are chosen."""
        from specbench.planning.grammar import read_grammar  # imported here to keep --help fast
        from specbench.results import SamplingSpec

        same = ("top_k", "top_p", "seed", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
        return SamplingSpec(
            temperature=self.temperature or 0.0,
            **{name: getattr(self, name) for name in same},
            logit_bias=_parse_bias(self.logit_bias),
            grammar=read_grammar(self.grammar) if self.grammar else None,
        )

    def plan(self, **more: Any) -> Plan:
        """Return a :class:`Plan` with these options; ``more`` adds or replaces fields."""
        shared = (Concurrent if isinstance(self, Concurrent) else Decoding).model_fields
        return parse_flags(Plan, {**{name: getattr(self, name) for name in shared}, **more})


class Concurrent(Decoding):
    """Options of commands that can step several sequences together."""

    concurrency: int = flag(1, "--concurrency", help="Sequences stepped together.", ge=1, le=_MOST_SEQUENCES)


class Waiting(Flags):
    """Options of commands that measure memory bandwidth during a run and can wait for a quiet machine."""

    patience: float = flag(
        0.0,
        "--patience",
        help="On a CPU: seconds in total to wait while memory bandwidth is lower than earlier in the run.",
        ge=0,
        le=_MOST_SECONDS,
        allow_inf_nan=False,
        recorded=False,
    )


class Plan(Concurrent, Waiting, Wordy):
    """Plan: what ``specbench run`` takes, checked as far as one option by itself can be.

    :mod:`specbench.planning.resolving` looks up names and fills in what an alias or a preset sets.
    """

    backend_url: Sequence[str] = flag(
        (),
        "--backend-url",
        help="Your server for rows of another engine: vllm=http://HOST:PORT; repeatable.",
        metavar="ENGINE=URL",
        recorded=False,
    )
    base: str = flag(
        "auto",
        "--base",
        help="Base model to run AR of too, or none; auto: the base of an adapter.",
        metavar="MODEL",
    )
    preset: str | None = flag(
        None, "--preset", help="A published protocol (task, prompt, token budget); see list presets."
    )
    repeats: int = flag(1, "--repeats", help="How often each method decodes each prompt.", ge=1, le=_MOST_REPEATS)
    contexts: str | None = flag(
        None,
        "--contexts",
        help="Grow each prompt to these lengths in tokens, as 1k,4k,16k, by text in front of it; not scored.",
        metavar="N,N",
    )
    context_file: Path | None = flag(
        None, "--context-file", help="Text for --contexts.", shown="the task's other prompts", exists="file"
    )
    keep_prefix: bool = flag(
        False, "--keep-prefix", help="Keep the KV of what a recorded conversation's turn shares with the one before."
    )
    rate: str | None = flag(
        None,
        "--rate",
        help="Requests per second that arrive, answered or not: 1,2,4; or 1-8: a ramp. Each rate decodes all prompts.",
        metavar="R,R",
    )
    arrivals: str = flag(
        "poisson", "--arrivals", help="When requests arrive: poisson, constant, or a file with times.", metavar="HOW"
    )
    slo: str | None = flag(
        None, "--slo", help="Limits that make a request good, as ttft=500ms,tpot=50ms.", metavar="T=X,T=X"
    )
    again: bool = flag(False, "--again", help="Measure again even if --out has a finished run.", recorded=False)
    trace: bool = flag(False, "--trace", help="Time the phases of each step (slows steps down slightly).")
    project: str | None = flag(
        None, "--project", help="Add a projection to another GPU; see list gpus.", metavar="GPU", recorded=False
    )
    profile: Path | None = flag(
        None,
        "--profile",
        help="Profile with step times for --project; by default they are measured.",
        exists="folder",
        recorded=False,
    )

    @property
    def loaded(self) -> bool:
        """Whether requests arrive by the clock."""
        return self.rate is not None or self.arrivals not in EVENLY

    @field_validator("contexts")
    @classmethod
    def _counted(cls, contexts: str | None) -> str | None:
        if contexts is not None:
            parse_contexts(contexts)
        return contexts

    @property
    def grown(self) -> list[int]:
        """Lengths that prompts are grown to, in tokens; empty for prompts as they are."""
        if self.context_file is not None and self.contexts is None:
            raise UsageError("cannot use --context-file without lengths; add --contexts 1k,4k,16k")
        return [] if self.contexts is None else parse_contexts(self.contexts)

    def recorded(self) -> dict[str, Any]:
        """Return the options that affect the run and differ from their defaults; JSON-ready, without local folders."""
        kept = {name for name in type(self).model_fields if flag_of(type(self), name).recorded}
        found = self.model_dump(mode="json", include=kept, exclude_defaults=True)
        return {name: _nameless(value) for name, value in found.items()}

    def command(self) -> str:
        """Return the command line for this plan, without local folders."""
        return command(self.recorded())


def command(recorded: Mapping[str, Any]) -> str:
    """Return the command line for a run's recorded options."""
    found = ["specbench", "run"]
    for name, value in recorded.items():
        written = flag_of(Plan, name).name
        if value is True:
            found.append(written)
        else:
            found += [part for each in (value if isinstance(value, list) else [value]) for part in (written, str(each))]
    return shlex.join(found)


def _parse_bias(written: Sequence[str]) -> dict[str, float]:
    """Parse ``TOKEN=X`` of ``--logit-bias``; X is from -100 to 100, as in OpenAI's API."""
    found: dict[str, float] = {}
    for each in written:
        token, equals, text = each.rpartition("=")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (token and equals and abs(value) <= 100):
            raise UsageError(f"--logit-bias {each[:40]!r}: write TOKEN=X with X from -100 to 100")
        if token.isdecimal() and parse_count(token) is None:
            raise UsageError(f"--logit-bias {each[:40]!r}: the token id is too large; give that of a token")
        try:
            token.encode()
        except UnicodeEncodeError:
            raise UsageError(f"--logit-bias {each[:40]!r}: the token is not UTF-8; give its id") from None
        if token in found:
            raise UsageError(f"--logit-bias {each}: the token has two values; keep one")
        found[token] = value
    return found


def _nameless(value: Any) -> Any:
    """Strip the folders from a value that is a path, or ``OPTION=PATH``."""
    if isinstance(value, list):
        return [_nameless(each) for each in value]
    if not isinstance(value, str) or "/" not in value:
        return value
    option, equals, path = value.rpartition("=")
    place = Path(path).expanduser()
    return f"{option}{equals}{place.name}" if place.is_absolute() or place.exists() else value


def parse_contexts(text: str) -> list[int]:
    """Parse lengths in tokens such as ``512,1k,32k``, where k is 1,024; raise UsageError if they do not increase."""
    found = []
    for each in split_names(text):
        number, times = (each[:-1], 1024) if each[-1:] in ("k", "K") else (each, 1)
        found.append(times * (parse_count(number) or 0))
    if not found or found != sorted(set(found)) or not 0 < found[0] <= found[-1] <= _MOST_TOKENS:
        raise UsageError(f"cannot read --contexts {text!r}: give lengths in increasing order, such as 1k,4k,16k")
    return found


def split_names(text: str) -> list[str]:
    """Split comma-separated names."""
    return [name.strip() for name in text.split(",") if name.strip()]
