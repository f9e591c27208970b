"""Look up the other engines that a run can measure, by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from specbench.backends.protocol import Backend, Mode
from specbench.common import unknown_name

#: Name -> module of this package with a class ``Backend``.
_MODULES = {
    "hf": "hf", "llama.cpp": "llama.llama_cpp", "lmdeploy": "servers.lmdeploy", "openai": "openai",
    "openvino": "openvino",     "sglang": "servers.sglang", "tensorrt-llm": "servers.tensorrt_llm", "vllm": "vllm",
}  # fmt: skip


def is_row(name: str) -> bool:
    """Return whether a method's name means another engine, written ENGINE:MODE."""
    return ":" in name


def engines() -> Mapping[str, type[Backend]]:
    """Return all engines by name."""
    return {name: engine(name) for name in _MODULES}


def engine(name: str) -> type[Backend]:
    """Return the engine of this name."""
    if name not in _MODULES:
        raise unknown_name("engine", name, _MODULES)
    found: type[Backend] = import_module(f"specbench.backends.{_MODULES[name]}").Backend
    return found


def engine_mode(name: str) -> tuple[type[Backend], str, Mode]:
    """Return the engine, its mode's name, and the mode of a row named ENGINE:MODE."""
    owner, _, mode = name.partition(":")
    backend = engine(owner)
    if mode not in backend.modes:
        raise unknown_name("mode", mode, backend.modes, f"of {owner}")
    return backend, mode, backend.modes[mode]
