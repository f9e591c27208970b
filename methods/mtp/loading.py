"""Find the MTP layers of a target in its checkpoint, and read only those."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from specbench.common import UsageError
from specbench.decoding import Target
from specbench.heads import Head, HeadFiles
from specbench.methods.mtp.head import MtpConfig, MtpHead, merged
from specbench.methods.mtp.layouts import LAYOUTS, Layout, layout_of

#: Names of the number of MTP layers in configurations: DeepSeek, GLM and MiMo; Qwen3.5; transformers.
_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")


def prepared(options: Any, target: Target) -> tuple[MtpHead, dict[str, str]]:
    """Return the layers that the options name, loaded once per run, and facts on them for the record."""
    most = options.depth if options.layers == "own" and options.tree == "chain" else 1
    found: tuple[MtpHead, dict[str, str]] = target.once(
        ("mtp", options.head, options.feed, most), lambda: _prepared(options, target, most)
    )
    return found


def _prepared(options: Any, target: Target, most: int) -> tuple[MtpHead, dict[str, str]]:
    model = target.model
    if options.head == "random":
        try:
            MtpHead.checked(model)
            config = MtpConfig.of(model, "deepseek", options.feed)
        except UsageError:
            config = MtpConfig.plain(model, "deepseek")
        head, facts = MtpHead.random(config, device=model.device, dtype=model.dtype), {"head": "random"}
    else:
        MtpHead.checked(model)
        head, facts = read(options.head, target, options.feed, most)
    head.eval().requires_grad_(False)
    return head, facts | {"head_parameters": str(sum(parameter.numel() for parameter in head.parameters()))}


def layers_of(config: Any) -> int | None:
    """Return the number of MTP layers that a configuration names; None if it names none."""
    text = config.get_text_config()
    counts = (getattr(text, name, None) for name in _COUNTS)
    return next((count for count in counts if isinstance(count, int)), None)


def read(name: str | None, target: Target, feed: str = "auto", most: int = 1) -> tuple[MtpHead, dict[str, str]]:
    """Read layers from a folder or hub repository; None is the target's own checkpoint.

    ``most``: number of layers to read; a checkpoint may have fewer.

    Raises:
        UsageError: the checkpoint has no MTP layer, or one that is quantised, incomplete or of another target.
    """
    model = target.model
    own = name or str(getattr(model.config, "_name_or_path", ""))
    count, depth = layers_of(model.config), model.config.get_text_config().num_hidden_layers
    if not own or (name is None and count == 0):
        raise UsageError(
            f"cannot draft with mtp: {target.name} has no MTP layer (num_nextn_predict_layers is {count or 0}); choose "
            "a model with one, give a checkpoint with --head, or time an untrained one with --head random"
        )
    files = Head.find(own)
    stored = files.stored()
    kind = layout_of(stored, depth)
    if kind is None:
        named = "not given" if count is None else count
        raise UsageError(
            f"cannot draft with mtp: {files.name} has no MTP tensors after its {depth} layers "
            f"(num_nextn_predict_layers is {named} in the configuration); use the original checkpoint, not a repack, "
            "or give one with --head"
        )
    layout = LAYOUTS[kind]
    starts = layout.starts(stored, depth)
    promised = count if name is None else next((files.config[each] for each in _COUNTS if each in files.config), None)
    if isinstance(promised, int) and len(starts) < min(most, promised):
        raise UsageError(
            f"cannot draft with mtp: {files.name} has {len(starts)} of the {promised} MTP layers of its configuration; "
            "use a complete copy of the checkpoint"
        )
    if min(most, len(starts)) == 1 and max(len(starts), count or 0) > 1:
        target.warn(f"{files.name} has {max(len(starts), count or 0)} MTP layers, and the first drafts all tokens")
    tables, tensors = [], dict[str, torch.Tensor]()
    for index, start in enumerate(starts[:most]):
        found = _layer(files, stored, layout, start, model)
        tables.append(("embed_tokens.weight" in found, "lm_head.weight" in found))
        tensors |= {f"depths.{index}.{each}": tensor for each, tensor in found.items()}
    config = MtpConfig.of(model, kind, feed, len(tables))
    head = MtpHead.filled(files.name, config, tensors, model.device, tables=tables)
    return head, {"head": files.shown} | ({"head_revision": files.revision} if files.revision else {})


def _layer(files: HeadFiles, stored: Mapping[str, Any], layout: Layout, start: str, model: Any) -> dict[str, Tensor]:
    """Tensors of the layer whose names begin with ``start``, under the head's names."""
    names = [each for each in stored if each.startswith(start)]
    for each in names:
        if not stored[each].floats or stored[each].kind.startswith("F8"):
            raise UsageError(
                f"cannot draft with mtp: {each} of {files.name} is quantised ({stored[each].kind}); use a checkpoint "
                "in bfloat16"
            )
    tensors = {
        layout.named(each, start): tensor for each, tensor in files.tensors(model.device, model.dtype, names).items()
    }
    for part, module in (("embed_tokens", model.get_input_embeddings()), ("lm_head", model.get_output_embeddings())):
        copied = tensors.get(f"{part}.weight")
        if copied is not None and torch.equal(copied, module.weight.to(copied.dtype)):
            del tensors[f"{part}.weight"]  # usually a copy of the target's, which is not needed twice
    try:
        return merged(tensors)
    except UsageError as error:
        raise UsageError(f"cannot load head {files.name}: {error}; use a complete copy of the checkpoint") from error
