"""Detect changes of state that methods share and must not change.

If a method leaves a setting changed (default dtype, number of threads, working directory) or writes to the target's
weights, it changes the other methods' speed or answers. So both are compared around each call to ``prepare`` and around
each request, untimed. A setting is restored, the method is named, and the others go on. A changed model cannot be
restored, so the run stops, names the method, and keeps the finished requests.
"""

from __future__ import annotations

import gc
import locale
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from specbench.common import PluginFault
from specbench.decoding import Method
from specbench.models import inside

_VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "CXX", "HF_HOME", "HF_HUB_OFFLINE", "HOME", "LANG", "LC_ALL", "MKL_NUM_THREADS",
    "OMP_NUM_THREADS", "PATH", "SPECBENCH_DATA", "TMPDIR", "TZ", "XDG_CACHE_HOME",
)  # fmt: skip
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGALRM)
_SAMPLE = 32  # compared values of each parameter

_left_inference: list[Any] = []  # a torch guard applies as long as it exists


class Setting(NamedTuple):
    """A setting of the process: its name in errors, how it is read (compared by ``==``) and how it is restored."""

    words: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


def _set_device(name: str) -> None:
    torch.set_default_device(None if name == "cpu" else name)  # setting a default device costs time in each call


def _set_inference(wanted: bool) -> None:
    _left_inference.append(torch.inference_mode(wanted))
    _left_inference[-1].__enter__()


def _set_flags(flags: dict[str, Any]) -> None:
    for path, value in flags.items():
        owner, _, name = path.rpartition(".")
        setattr(_backend(owner), name, value)


def _backend(path: str) -> Any:
    found: Any = torch.backends
    for name in filter(None, path.split(".")):
        found = getattr(found, name)
    return found


_FLAGS = (
    "cuda.matmul.fp32_precision", "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction", "cudnn.benchmark", "cudnn.deterministic", "cudnn.enabled",
    "mkldnn.enabled", "mkldnn.matmul.fp32_precision", "mkldnn.deterministic",
)  # fmt: skip


def _flags() -> dict[str, Any]:
    found = {}
    for path in _FLAGS:
        owner, _, name = path.rpartition(".")
        try:
            found[path] = getattr(_backend(owner), name)
        except (AttributeError, RuntimeError):  # another version of torch, or a mix of old and new names
            continue
    return found


def _attention_kernels() -> tuple[bool, ...]:
    of = torch.backends.cuda
    return of.flash_sdp_enabled(), of.mem_efficient_sdp_enabled(), of.math_sdp_enabled(), of.cudnn_sdp_enabled()


def _set_attention_kernels(wanted: Sequence[bool]) -> None:
    of = torch.backends.cuda
    for enable, value in zip(
        (of.enable_flash_sdp, of.enable_mem_efficient_sdp, of.enable_math_sdp, of.enable_cudnn_sdp), wanted, strict=True
    ):
        enable(value)


def _set_autocast(wanted: dict[str, bool]) -> None:
    for device, enabled in wanted.items():
        torch.set_autocast_enabled(device, enabled)


def _set_deterministic(wanted: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(wanted[0], warn_only=wanted[1])


def _handlers() -> list[Any]:
    return [signal.getsignal(number) for number in _SIGNALS]


def _set_handlers(handlers: Sequence[Any]) -> None:
    if threading.current_thread() is threading.main_thread():
        for number, handler in zip(_SIGNALS, handlers, strict=True):
            if handler is not None:  # a handler set from C cannot be restored
                signal.signal(number, handler)


def _set_variables(wanted: dict[str, str | None]) -> None:
    for name, value in wanted.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # the variable was removed
        return None


def _go_back(folder: str | None) -> None:
    if folder is not None:
        os.chdir(folder)


_SETTINGS = (
    Setting("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    Setting("the default device", lambda: str(torch.get_default_device()), _set_device),
    Setting("the number of torch's threads", torch.get_num_threads, torch.set_num_threads),
    Setting("inference mode", torch.is_inference_mode_enabled, _set_inference),
    Setting("grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
    Setting("autocast", lambda: {each: torch.is_autocast_enabled(each) for each in ("cpu", "cuda")}, _set_autocast),
    Setting(
        "deterministic algorithms",
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        _set_deterministic,
    ),
    Setting("the precision of products", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    Setting("flags of torch's backends", _flags, _set_flags),
    Setting("torch's attention kernels", _attention_kernels, _set_attention_kernels),
    Setting("how small numbers round to zero", lambda: 5e-324 * 1.0 == 0.0, torch.set_flush_denormal),
    Setting("numpy's handling of errors", np.geterr, lambda wanted: np.seterr(**wanted)),
    Setting("the working directory", _folder, _go_back),
    Setting("the locale", lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name)),
    Setting("environment variables", lambda: {name: os.environ.get(name) for name in _VARIABLES}, _set_variables),
    Setting("handlers of signals", _handlers, _set_handlers),
    Setting("garbage collection", gc.isenabled, lambda wanted: (gc.enable if wanted else gc.disable)()),
    Setting("a trace function", sys.gettrace, sys.settrace),
    Setting("a profile function", sys.getprofile, sys.setprofile),
)  # fmt: skip

_RANDOM = (
    Setting("the random numbers of Python", random.getstate, random.setstate),
    Setting(
        "the random numbers of numpy",
        lambda: tuple(
            each.tobytes() if isinstance(each, np.ndarray) else each for each in np.random.get_state(legacy=True)
        ),
        lambda state: np.random.set_state((state[0], np.frombuffer(state[1], dtype=np.uint32), *state[2:])),
    ),
    Setting(
        "the random numbers of torch",
        lambda: torch.get_rng_state().numpy().tobytes(),
        lambda state: torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8)),
    ),
)


class SharedState:
    """Compare settings of the process and a model with their earlier values.

    For the model it compares the identity of parameters, their addresses, shapes and version counters (which torch
    increases at every in-place write) and, because writes through ``.data`` or numpy do not increase them, 32 evenly
    spread values of each parameter; also hooks and the training mode of modules. It can miss such writes to other
    values, buffers such as rotary frequencies, the engine's copies of weights, replaced code, and changes that are
    undone within one request.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.modules())
        self._weights = self._found()
        self._samples = _samples(self._weights)
        self._facts = _facts(self._weights)
        self._before: list[Any] = []
        self.take()

    def take(self) -> None:
        """Remember the current values."""
        self._before = [setting.read() for setting in (*_SETTINGS, *_RANDOM)]
        weights, facts = self._found(), _facts(self._weights)
        if not _same(weights, self._weights) or facts != self._facts:  # changed by specbench itself, as in training
            self._weights, self._samples = weights, _samples(weights)
            facts = _facts(weights)
        self._facts, self._values, self._states = facts, _values(self._samples), self._hooked()

    def check(self, method: Method, *, random_numbers: bool = True) -> None:
        """Compare with the remembered values and restore settings; PluginFault names the ``method`` that has run since.

        With ``random_numbers``, using the shared random generators is a fault, too (loading uses them for a layer's
        first weights).
        """
        changed = []
        for setting, before in zip((*_SETTINGS, *_RANDOM), self._before, strict=True):
            if setting.read() != before:
                setting.write(before)
                if random_numbers or setting not in _RANDOM:
                    changed.append(setting.words)
        weights = self._found()
        spoilt = ""
        same = _same(weights, self._weights) and _facts(weights) == self._facts
        if not (same and all(map(torch.equal, _values(self._samples), self._values))):
            spoilt = "the target's weights"
        elif self._hooked() != self._states:
            spoilt = "the target's modules (hooks, or training mode)"
        if spoilt:
            raise PluginFault(
                f"{method.who} changed {spoilt}, which all methods decode with; finished requests are kept, fix it or "
                "leave it out",
                method.label,
                spoils_all=True,
            )
        if changed:
            raise PluginFault(
                f"{method.who} changed {', '.join(changed)}, which all methods share; it was restored, fix the "
                "method or leave it out",
                method.label,
            )

    def _found(self) -> list[Tensor]:
        """Parameters, and the packed weights of a model in int8 or of a GGUF file."""
        found: list[Tensor] = []
        for module in self._modules:
            for each in module._parameters.values():
                found += [] if each is None else [tensor for _, tensor in inside("", each)]
            packed = module.__dict__.get("packed")
            found += [] if packed is None else packed.tensors
        return found

    def _hooked(self) -> list[tuple[bool, int, int]]:
        return [(each.training, len(each._forward_hooks), len(each._forward_pre_hooks)) for each in self._modules]


def _same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(some) == len(others) and all(map(lambda one, other: one is other, some, others))


def _facts(weights: Sequence[Tensor]) -> list[tuple[int, torch.Size, int]]:
    return [(each.data_ptr(), each.shape, 0 if each.is_inference() else each._version) for each in weights]


def _samples(weights: Sequence[Tensor]) -> list[list[Tensor]]:
    """Views of some values of each parameter, grouped so that one call can read several."""
    found: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for each in weights:
        if each.numel() and each.is_contiguous():
            flat = each.detach().view(-1)
            found.setdefault((each.dtype, each.device), []).append(flat[:: max(1, flat.numel() // _SAMPLE)])
    return list(found.values())


def _values(samples: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """The values on the host, so that no device work is pending when a clock starts."""
    with torch.inference_mode(False), torch.no_grad():
        return [torch.cat([*views]).view(torch.uint8).cpu() for views in samples]
