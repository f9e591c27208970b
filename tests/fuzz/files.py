"""Fuzz all kinds of files and replies that are read, and model folders."""

from __future__ import annotations

import gzip
import json
import os
import random
import struct
import tempfile
import zlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from kinds_read import KINDS
from mutants import mutant
from support.models import save

from fuzz.cases import Kind, Kinds
from specbench.common.prompt import Prompt
from specbench.models import gguf_header
from specbench.models.loader import load

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a folder a case is too much for a disk

_RUNS = (
    "run", "requests", "summary", "bandwidth", "watch", "verdicts",
    "likelihoods", "branches", "quality", "judgments", "projection", "folder of a run",
    "folder of an unfinished run", "folder of a sweep", "sweep", "task of a run", "profile",
)  # fmt: skip
_GRIDS = ("grid", "recipe", "method.toml", "task.toml", "data of a task.toml", "pyproject.toml", "claims.toml",
          "tree of msn", "tree of recycling")  # fmt: skip
_MODELS = ("adapter", "card of an adapter", "config of a model", "config of a head", "record of a copy",
           "weights of a head", "settings of a training", "figures of a training", "trajectories", "shard")  # fmt: skip
_REPLIES = ("reply of a judge", "stream of a server", "steps of a worker")


def _in_a_folder(file: str, read: Callable[[Path], Any], content: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        path = Path(folder, file)
        path.write_bytes(content)
        read(path)


def _of_a_file(name: str) -> Kind:
    kind = KINDS[name]
    return Kind(kind.make, partial(_in_a_folder, kind.file, kind.read), kind.form)


def runs() -> Kinds:
    """Files of runs, sweeps and profiles."""
    return {name: _of_a_file(name) for name in _RUNS}


def replies() -> Kinds:
    """What judges and other engines answer."""
    return {name: _of_a_file(name) for name in _REPLIES}


# --------------------------------------------------------------------------------------------------------------- data


@cache
def _bombs() -> tuple[bytes, ...]:
    blank, line = b" " * (64 << 20), b"{}\n" * (8 << 20)
    return tuple(gzip.compress(content, mtime=0) for content in (blank, line, b"\n" * (32 << 20), b"[" * (16 << 20)))


def _packed(draw: random.Random, content: bytes) -> bytes:
    """Another compressed file: damaged, of other lines, of several parts, or one that unpacks to a thousandfold."""
    match draw.randrange(8):
        case 0:
            return draw.choice(_bombs())
        case 1:
            return content + mutant(draw, content, "binary")
        case 2:
            return mutant(draw, content, "binary")
        case _:
            try:
                inner = gzip.decompress(content[: 1 << 16])
            except (OSError, EOFError, ValueError, zlib.error):
                return mutant(draw, content, "binary")
            return gzip.compress(mutant(draw, inner[: 1 << 16], "lines"), 1, mtime=0)


def rows() -> Kinds:
    """Rows of every task's data, and users' own prompts."""
    others = (*_RUNS, *_GRIDS, *_MODELS, *_REPLIES)
    found = {name: _of_a_file(name) for name in KINDS if name not in others}
    # What is unpacked is read to its end, up to a limit of size; that takes its time.
    found["compressed"] = Kind(found["compressed"].good, found["compressed"].read, "binary", vary=_packed, seconds=20.0)
    return found


# ------------------------------------------------------------------------------------------------------------- models

_SIZES = (0, 1, 2, 7, 8, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def _lengths(draw: random.Random, content: bytes) -> bytes:
    """Another number where a header has one of 4 or 8 bytes: counts, lengths, types and offsets."""
    found = bytearray(content)
    for _ in range(draw.randint(1, 3)):
        form = draw.choice(("<Q", "<Q", "<I"))
        size = struct.calcsize(form)
        if len(found) < size:
            break
        # Most of the numbers of a header stand in its beginning.
        at = draw.randrange(min(len(found), draw.choice((32, 400, len(found)))) - size + 1) if len(found) > size else 0
        value = draw.choice((*_SIZES, len(content), len(content) - at, draw.randrange(40)))
        struct.pack_into(form, found, at, value % 2 ** (8 * size))
    return bytes(found)


def _header_of_safetensors(draw: random.Random, content: bytes) -> bytes:
    """Another JSON header, with its length right or not; or other numbers and bytes."""
    if draw.random() < 0.3 or len(content) < 8:
        return _lengths(draw, content) if draw.random() < 0.5 else mutant(draw, content, "binary")
    size = int.from_bytes(content[:8], "little")
    head, rest = content[8 : 8 + size], content[8 + min(size, len(content)) :]
    try:
        other = mutant(draw, head, "json")
    except (ValueError, RecursionError):
        other = mutant(draw, head, "text")
    length = len(other) if draw.random() < 0.9 else draw.choice(_SIZES)
    return struct.pack("<Q", length) + other + rest


def _gguf_varied(draw: random.Random, content: bytes) -> bytes:
    return _lengths(draw, content) if draw.random() < 0.6 else mutant(draw, content, "binary")


def _gguf() -> bytes:
    """A small file: three fields, one of them a list, and two tensors with room for what they hold."""
    number, size = struct.Struct("<Q").pack, struct.Struct("<I").pack

    def text(value: bytes) -> bytes:
        return number(len(value)) + value

    fields = [
        text(b"general.architecture") + size(8) + text(b"llama"),
        text(b"llama.block_count") + size(4) + size(1),
        text(b"tokenizer.ggml.tokens") + size(9) + size(8) + number(2) + text(b"a") + text(b"b"),
    ]
    tensors = [
        text(b"token_embd.weight") + size(2) + number(8) + number(4) + size(0) + number(0),
        text(b"blk.0.attn_norm.weight") + size(1) + number(8) + size(0) + number(128),
    ]
    head = b"GGUF" + size(3) + number(len(tensors)) + number(len(fields)) + b"".join(fields) + b"".join(tensors)
    return head + b"\0" * (-len(head) % 32 + 160)


@cache
def _folder_of_a_model() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        save(Path(folder))
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


def _model_with(file: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        for name, good in _folder_of_a_model().items():
            Path(folder, name).write_bytes(content if name == file else good)
        if file.endswith(".index.json"):
            Path(folder, "model.safetensors").rename(Path(folder, "model-00001-of-00001.safetensors"))
            Path(folder, file).write_bytes(content)
        loaded = load(folder)
        loaded.decode(loaded.encode(Prompt("p", "Hi", chat=False)))


def _index() -> bytes:
    good = _folder_of_a_model()["model.safetensors"]
    names = [name for name in json.loads(good[8 : 8 + int.from_bytes(good[:8], "little")]) if name != "__metadata__"]
    return json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}).encode()


def _of_a_folder(file: str, form: str, vary: Any = None) -> Kind:
    # A model of some size may be what the file asks for, and is then made.
    return Kind(lambda: _folder_of_a_model()[file], partial(_model_with, file), form, vary=vary, seconds=20.0)


def models() -> Kinds:
    """Configurations, tokenizers, adapters, heads, and headers of weights."""
    found = {name: _of_a_file(name) for name in _MODELS}
    head = found["weights of a head"]
    found["weights of a head"] = Kind(head.good, head.read, "binary", vary=_header_of_safetensors)
    found["header of a GGUF file"] = Kind(
        _gguf, partial(_in_a_folder, "x.gguf", gguf_header.read), "binary", vary=_gguf_varied
    )
    for file in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        found[f"model with {file}"] = _of_a_folder(file, "json")
    found["model with model.safetensors"] = _of_a_folder("model.safetensors", "binary", _header_of_safetensors)
    index = "model.safetensors.index.json"
    found[f"model with {index}"] = Kind(_index, partial(_model_with, index), "json", seconds=20.0)
    return found
