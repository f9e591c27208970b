"""Find the MTP layer of a target in its checkpoint, and read only that."""

from __future__ import annotations

from typing import Any

import torch

from specbench.common import UsageError
from specbench.decoding import Target
from specbench.heads import Head
from specbench.methods.mtp.head import MtpConfig, MtpHead, merged
from specbench.methods.mtp.layouts import LAYOUTS, layout_of

#: Names of the number of MTP layers in configurations: DeepSeek, GLM and MiMo; Qwen3.5; transformers.
_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")


def prepared(options: Any, target: Target) -> tuple[MtpHead, dict[str, str]]:
    """Return the layer that the options name, loaded once per run, and facts on it for the record."""
    found: tuple[MtpHead, dict[str, str]] = target.once(
        ("mtp", options.head, options.feed), lambda: _prepared(options, target)
    )
    return found


def _prepared(options: Any, target: Target) -> tuple[MtpHead, dict[str, str]]:
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
        head, facts = read(options.head, target, options.feed)
    head.eval().requires_grad_(False)
    return head, facts | {"head_parameters": str(sum(parameter.numel() for parameter in head.parameters()))}


def layers_of(config: Any) -> int | None:
    """Return the number of MTP layers that a configuration names; None if it names none."""
    text = config.get_text_config()
    counts = (getattr(text, name, None) for name in _COUNTS)
    return next((count for count in counts if isinstance(count, int)), None)


def read(name: str | None, target: Target, feed: str = "auto") -> tuple[MtpHead, dict[str, str]]:
    """Read the layer from a folder or hub repository; None is the target's own checkpoint.

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
            f"(num_nextn_predict_layers is {named} in the configuration); use the original checkpoint, not a repack"
        )
    layout = LAYOUTS[kind]
    start = layout.start(depth)
    names = [each for each in stored if each.startswith(start)]
    for each in names:
        if not stored[each].floats or stored[each].kind.startswith("F8"):
            raise UsageError(
                f"cannot draft with mtp: {each} of {files.name} is quantised ({stored[each].kind}); use a checkpoint "
                "in bfloat16"
            )
    if count and count > 1:
        target.warn(f"{files.name} has {count} MTP layers, and the first of them drafts all tokens")
    tensors = {
        layout.named(each, start): tensor for each, tensor in files.tensors(model.device, model.dtype, names).items()
    }
    for part, module in (("embed_tokens", model.get_input_embeddings()), ("lm_head", model.get_output_embeddings())):
        copied = tensors.get(f"{part}.weight")
        if copied is not None and torch.equal(copied, module.weight.to(copied.dtype)):
            del tensors[f"{part}.weight"]  # usually a copy of the target's, which is not needed twice
    config = MtpConfig.of(model, kind, feed)
    parts = {"embeds": "embed_tokens.weight" in tensors, "scores": "lm_head.weight" in tensors}
    try:
        tensors = merged(tensors)
    except UsageError as error:
        raise UsageError(f"cannot load head {files.name}: {error}; use a complete copy of the checkpoint") from error
    head = MtpHead.filled(files.name, config, tensors, model.device, **parts)
    return head, {"head": files.shown} | ({"head_revision": files.revision} if files.revision else {})
