"""Checkpoint checks: what transformers would hang on, or fill all memory with, is refused before it sees a file."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from specbench.common import (
    UsageError,
    damaged,
    json_object,
    one_line,
    parse_json,
    read_bytes,
    short_number,
    unreadable,
)
from specbench.models import weights
from specbench.models.memory import check_memory

CONFIG = "config.json"

_TODO = "take a whole copy of the model, or give another"
_LARGEST = 16 << 20  # bytes of a configuration
_LARGEST_BESIDE = 256 << 20  # of any other file that is read at once; the largest vocabularies have 35 MB
_BESIDE = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".vocab")
# Modules are made one by one, also without memory for their weights: a number like this is a slip or an attack.
# Experts are often rows of one tensor; a family names 16,384 of them by default, also where it makes none.
_MOST_LAYERS, _MOST_EXPERTS = 10_000, 1 << 16
# A tokenizer's steps write a few letters for one, and pad to no more than a context.
_LONGEST, _PADDED = 256, 1 << 22
# They add a few tokens to a text, and have a few parts; tables of letters and of control tokens have thousands.
_MOST_ADDED, _MOST_STEPS = 4096, 100_000
_KINDS = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_EXPERTS = ("num_experts", "num_local_experts")
_MOST = {**dict.fromkeys(_LAYERS, _MOST_LAYERS), **dict.fromkeys(_EXPERTS, _MOST_EXPERTS)}


def check(folder: Path) -> None:
    """Looks at a checkpoint's folder."""
    check_files(folder)
    read_config(folder / CONFIG)
    _check_tokenizer(folder / "tokenizer.json")


def _check_tokenizer(file: Path) -> None:
    """Refuses a tokenizer that makes gigabytes of a line: its steps run in a library that nothing stops."""
    if not file.is_file():
        return
    found = json_object(parse_json(read_bytes(file, _TODO, _LARGEST_BESIDE), file, _TODO, nan=True), file, _TODO)
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        if _growth(found.get(part)) > _LONGEST:
            raise damaged(file, f"its {part} makes a text more than {_LONGEST} times as long", _TODO)
    if (most := _added(found.get("post_processor"))) > _MOST_ADDED:
        raise damaged(file, f"its post_processor adds {short_number(most)} tokens to every text", _TODO)
    steps = {name: value for name, value in found.items() if name not in ("model", "added_tokens")}
    if (most := _size(steps)) > _MOST_STEPS:
        raise damaged(file, f"its steps before and after the model have {short_number(most)} parts", _TODO)
    padding = found.get("padding")
    for name, size in _numbers(padding if isinstance(padding, dict) else {}):
        if name in ("Fixed", "pad_to_multiple_of") and size > _PADDED:
            raise damaged(file, f"it pads every text to {short_number(size)} tokens", _TODO)


def _size(part: Any) -> int:
    """How many values something has, inner ones too."""
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return 1 + sum(map(_size, inner))


def _added(part: Any) -> int:
    """Tokens that a post-processor adds to a text at most: for each place of a template those of its token."""
    if not isinstance(part, dict):
        return 0
    inner = part.get("processors")
    most = sum(map(_added, inner)) if isinstance(inner, list) else 0
    tokens = part.get("special_tokens")
    lengths = {
        name: len(held["ids"])
        for name, held in (tokens.items() if isinstance(tokens, dict) else ())
        if isinstance(held, dict) and isinstance(held.get("ids"), list)
    }
    for way in ("single", "pair"):
        for place in part[way] if isinstance(part.get(way), list) else ():
            special = place.get("SpecialToken") if isinstance(place, dict) else None
            named = special.get("id") if isinstance(special, dict) else None
            most += lengths.get(named, 1) if isinstance(named, str) else 1
    return most


def _growth(part: Any) -> int:
    """How much longer a text can become where each step replaces every letter by what it may write."""
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    longer = 1
    for each in inner:
        longer = min(longer * _growth(each), _LONGEST + 1)
    content = part.get("content") if isinstance(part, dict) else None
    return min(longer * max(1, len(content)), _LONGEST + 1) if isinstance(content, str) else longer


def check_files(folder: Path) -> None:
    """Refuses a folder that a library would hang on: one with a pipe or a device in it, or a text without an end."""
    for path in sorted(folder.iterdir()):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise unreadable(path, "not an ordinary file", _TODO)
        if path.suffix in _BESIDE and path.is_file() and path.stat().st_size > _LARGEST_BESIDE:
            raise unreadable(path, f"larger than the {_LARGEST_BESIDE >> 20} MiB that such a file may have", _TODO)


def check_weights(folder: Path, dtype: torch.dtype, device: torch.device, *, short: bool, shown: str) -> None:
    """Compares the weights of a folder with its configuration and with the memory that there is, by headers alone.

    Args:
        short: they become eight bits, beside the ones that they are rounded from.
    """
    config = read_config(folder / CONFIG)
    stored = weights.headers(weights.files_of(folder, config.get("transformers_weights")))
    for name, count in _numbers(config):
        if name in _LAYERS and count > len(stored):
            raise damaged(
                folder / CONFIG, f"field '{name}': {short_number(count)} layers of {len(stored)} tensors", _TODO
            )
    nbytes = sum(held.count * (dtype.itemsize if held.floats else 1) for held in stored.values())
    made = None if "auto_map" in config or "quantization_config" in config else _made(folder, dtype)
    if made is not None:
        weights.check_shapes(stored, {name: held.shape for name, held in made.state_dict().items()}, shown)
        nbytes = sum(held.nbytes for held in (*made.parameters(), *made.buffers()))
    on_the_way = max((held.count for held in stored.values()), default=0) * dtype.itemsize
    nbytes += nbytes // 4 if short else 0
    # Weights that go elsewhere as they are in their files are read through a mapping, which takes no memory of its own.
    if device.type == "cpu" or any(held.floats and held.kind != _KINDS.get(dtype) for held in stored.values()):
        check_memory(nbytes + on_the_way, torch.device("cpu"), shown)
    if device.type != "cpu":
        check_memory(nbytes, device, shown)


def _made(folder: Path, dtype: torch.dtype) -> Any:
    """The model of a configuration without memory for its weights; None where it cannot be made: loading says why."""
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    except Exception:  # wrong types, unknown families: whatever transformers makes of them
        return None


def check_whole(missing: Iterable[str], shown: str) -> None:
    """Refuses a model of which parameters were in no file: transformers puts noise in their place."""
    names = sorted(missing)
    if names:
        raise UsageError(
            f"{shown} cannot be loaded: its weights lack {len(names)} of the tensors that its config.json asks for, "
            f"such as {one_line(names[0], 120)}; {_TODO}"
        )


def check_numbers(model: Any, shown: str) -> None:
    """Looks at what a model computes with."""
    rows, read = (part().weight.shape[0] for part in (model.get_output_embeddings, model.get_input_embeddings))
    if rows > read:
        raise UsageError(f"{shown} cannot be loaded: its LM head has {rows} tokens, its embedding {read}; {_TODO}")
    turned = (
        (name, held) for name, held in model.named_buffers() if name.endswith("inv_freq")
    )  # masks may be infinite
    name = weights.first_not_finite(itertools.chain(model.named_parameters(), turned))
    if name is not None:
        dtype = str(model.dtype).removeprefix("torch.")
        raise UsageError(
            f"{shown} cannot be used: {name} holds a number that is NaN or infinite in {dtype}; {_TODO}, or choose a "
            "--dtype with more range"
        )


def read_config(file: Path) -> dict[str, Any]:
    """A model's configuration, ``Infinity`` included, which transformers writes."""
    found = json_object(parse_json(read_bytes(file, _TODO, _LARGEST), file, _TODO, nan=True), file, _TODO)
    for name, count in _numbers(found):
        if name in _LAYERS and count < 1:
            raise damaged(file, f"field '{name}': {short_number(count)} layers", _TODO)
        if count > _MOST.get(name, count):
            raise damaged(file, f"field '{name}': {short_number(count)} is more than {_MOST[name]:,}", _TODO)
    for name, held in _parts(found):
        if name in ("rope_parameters", "rope_scaling"):
            _check_rope(held, file)
        if name == "quantization_config":
            _check_quantised(held, file)
    return found


def _parts(values: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every inner configuration by its name, those of inner configurations too."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield name, value
            yield from _parts(value)


def _check_rope(rope: dict[str, Any], file: Path) -> None:
    """Refuses factors that turn positions backwards, or all to one place; transformers warns of them at most."""
    for name, value in rope.items():
        if isinstance(value, dict):  # one for each kind of layer
            _check_rope(value, file)
        for number in value if isinstance(value, list) else [value]:
            if "factor" in name and type(number) in (int, float) and not number > 0:
                raise damaged(
                    file, f"a rope has {one_line(name, 40)} {short_number(number)}, where it is above 0", _TODO
                )


def _check_quantised(quantised: dict[str, Any], file: Path) -> None:
    """Refuses a method that transformers does not know: it would take the packed weights for plain ones."""
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

    method = quantised.get("quant_method")
    if isinstance(method, str) and not {method, f"{method}_4bit", f"{method}_8bit"} & AUTO_QUANTIZER_MAPPING.keys():
        raise UsageError(
            f"cannot use {file}: its weights are quantised by '{one_line(method, 60)}', which transformers does not "
            "know; give a copy with plain weights"
        )


def _numbers(values: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Every number by its name, those of inner configurations too."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif isinstance(value, (int, float)):
            yield name, value
