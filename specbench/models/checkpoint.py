"""Check a model's files before transformers reads them, which could hang on damaged ones or fill all memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.hub import extract_commit_hash

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
from specbench.models.configs.layouts import Layout, layout_of, translated
from specbench.models.memory import check_memory
from specbench.models.stored import stored

CONFIG = "config.json"

_TODO = "use a complete copy of the model, or choose another"
_LARGEST = 16 << 20  # bytes of a configuration
_LARGEST_OTHER = 256 << 20  # bytes of other files that are read at once; the largest vocabularies have 35 MB
_OTHER = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".vocab")
# Even modules without memory for weights are created one by one: larger numbers are a mistake or an attack. Experts are
# often rows of one tensor; one family's default configuration names 16,384 experts although it creates none.
_MOST_LAYERS, _MOST_EXPERTS = 10_000, 1 << 16
# Longest expansion of one character by a tokenizer's steps (usually a few characters), and longest padding.
_LONGEST, _PADDED = 256, 1 << 22
# Most tokens that a post-processor adds (usually a few), and most values in a tokenizer's steps: tables of characters
# and of control tokens have thousands.
_MOST_ADDED, _MOST_STEPS = 4096, 100_000
_KINDS = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_EXPERTS = ("num_experts", "num_local_experts")
_MOST = {**dict.fromkeys(_LAYERS, _MOST_LAYERS), **dict.fromkeys(_EXPERTS, _MOST_EXPERTS)}


def check(folder: Path) -> None:
    """Check the files, configuration and tokenizer of a checkpoint's folder."""
    check_files(folder)
    read_config(folder / CONFIG)
    _check_tokenizer(folder / "tokenizer.json")


def _check_tokenizer(file: Path) -> None:
    """Refuse a tokenizer that turns a line into gigabytes: the library that runs its steps cannot be interrupted."""
    if not file.is_file():
        return
    found = json_object(parse_json(read_bytes(file, _TODO, _LARGEST_OTHER), file, _TODO, nan=True), file, _TODO)
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
    """Return the number of values in a nested structure."""
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return 1 + sum(map(_size, inner))


def _added(part: Any) -> int:
    """Return the most tokens that a post-processor adds to a text."""
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
    """Return the factor by which a text can grow if each step replaces every character by its longest output."""
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    longer = 1
    for each in inner:
        longer = min(longer * _growth(each), _LONGEST + 1)
    content = part.get("content") if isinstance(part, dict) else None
    return min(longer * max(1, len(content)), _LONGEST + 1) if isinstance(content, str) else longer


def check_files(folder: Path) -> None:
    """Refuse a folder with pipes, devices or huge text files, on which a library would hang."""
    for path in sorted(folder.iterdir()):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise unreadable(path, "not an ordinary file", _TODO)
        if path.suffix in _OTHER and path.is_file() and path.stat().st_size > _LARGEST_OTHER:
            raise unreadable(path, f"larger than {_LARGEST_OTHER >> 20} MiB, the limit for such files", _TODO)


def check_weights(folder: Path, dtype: torch.dtype, device: torch.device, *, short: bool, shown: str) -> None:
    """Compare the headers of a folder's weights with its configuration and with the free memory.

    Args:
        short: the model will also hold its weights in 8 bits.
    """
    config = read_config(folder / CONFIG)
    files = weights.headers(weights.files_of(folder, config.get("transformers_weights")))
    layout, own = published(folder)
    if layout is not None:
        files = {layout.renamed(name): held for name, held in files.items()}
    for name, count in _numbers(config):
        if name in _LAYERS and count > len(files):
            raise damaged(
                folder / CONFIG, f"field '{name}': {short_number(count)} layers for {len(files)} tensors", _TODO
            )
    nbytes = sum(held.count * (dtype.itemsize if held.floats else 1) for held in files.values())
    made = None if "auto_map" in config or "quantization_config" in config else _made(folder, dtype, own)
    if made is not None:
        weights.check_shapes(files, {name: held.shape for name, held in made.state_dict().items()}, shown)
        nbytes = sum(held.nbytes for held in (*made.parameters(), *made.buffers()))
    on_the_way = max((held.count for held in files.values()), default=0) * dtype.itemsize
    nbytes += nbytes // 4 if short else 0
    # Weights that are moved to a GPU without conversion are read through a memory map, which needs no RAM.
    if device.type == "cpu" or any(held.floats and held.kind != _KINDS.get(dtype) for held in files.values()):
        check_memory(nbytes + on_the_way, torch.device("cpu"), shown)
    if device.type != "cpu":
        check_memory(nbytes, device, shown)


def _made(folder: Path, dtype: torch.dtype, config: Any) -> Any:
    """Create a configuration's model on the meta device; return None if that fails, since loading reports why."""
    try:
        config = config or AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    except Exception:  # wrong types or unknown families may make transformers raise any error
        return None


def published(folder: Path) -> tuple[Layout | None, Any]:
    """Return a checkpoint's layout and its configuration, in transformers' class; None of both for its own families."""
    file = folder / CONFIG
    layout = layout_of(json_object(parse_json(read_bytes(file, _TODO, _LARGEST), file, _TODO, nan=True), file, _TODO))
    if layout is None:
        return None, None
    config = AutoConfig.for_model(**read_config(file))
    config._commit_hash = extract_commit_hash(str(file), None)
    return layout, config


def check_whole(missing: Iterable[str], shown: str) -> None:
    """Refuse a model with parameters that no file has: transformers would initialise them randomly."""
    names = sorted(missing)
    if names:
        raise UsageError(
            f"cannot load {shown}: its files lack {len(names)} of the tensors that its config.json requires, such as "
            f"{one_line(names[0], 120)}; {_TODO}"
        )


def check_numbers(model: Any, shown: str) -> None:
    """Refuse a model with NaN or infinite weights, or with more rows in its LM head than in its embedding."""
    rows, read = (part().weight.shape[0] for part in (model.get_output_embeddings, model.get_input_embeddings))
    if rows > read:
        raise UsageError(f"cannot load {shown}: its LM head has {rows} tokens and its embedding {read}; {_TODO}")
    # Masks may be infinite.
    turned = ((name, held) for name, held in model.named_buffers() if name.endswith("inv_freq"))
    name = weights.first_not_finite(itertools.chain(stored(model), turned))
    if name is not None:
        dtype = str(model.dtype).removeprefix("torch.")
        raise UsageError(
            f"cannot use {shown}: {name} has a value that is NaN or infinite in {dtype}; use a complete copy of the "
            "model, or a --dtype with a larger range"
        )


def read_config(file: Path) -> dict[str, Any]:
    """Read and check a model's configuration, in transformers' fields; accepts ``Infinity``, which it writes."""
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
    return translated(found, file)


def _parts(values: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every nested configuration with its name, at any depth."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield name, value
            yield from _parts(value)


def _check_rope(rope: dict[str, Any], file: Path) -> None:
    """Refuse rope factors that are not positive; transformers only warns of them."""
    for name, value in rope.items():
        if isinstance(value, dict):  # separate parameters per layer type
            _check_rope(value, file)
        for number in value if isinstance(value, list) else [value]:
            if "factor" in name and type(number) in (int, float) and not number > 0:
                raise damaged(
                    file, f"rope field {one_line(name, 40)} is {short_number(number)} and must be above 0", _TODO
                )


def _check_quantised(quantised: dict[str, Any], file: Path) -> None:
    """Refuse a quantisation method unknown to transformers, which would read the packed weights as plain ones."""
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

    method = quantised.get("quant_method")
    if isinstance(method, str) and not {method, f"{method}_4bit", f"{method}_8bit"} & AUTO_QUANTIZER_MAPPING.keys():
        raise UsageError(
            f"cannot use {file}: transformers does not support its quantisation '{one_line(method, 60)}'; give a copy "
            "with unquantised weights"
        )


def _numbers(values: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield every number with its name, at any depth."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif isinstance(value, (int, float)):
            yield name, value
