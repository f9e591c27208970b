"""Give vLLM a draft head in the layout that it reads; a head that needs changes is written into the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.common import read_json_object, write_json_atomic

if TYPE_CHECKING:
    from specbench.models import LoadedModel

_TODO = "use a complete copy of the head"
_CAUSAL = ("causal_head", "causal", "is_causal")  # names under which published heads say that they are causal


def head_for_vllm(method: str, name: str, model: LoadedModel) -> str:
    """Return what ``speculative_config`` takes as a head: a folder, or the name of a repository as it is.

    Args:
        name: folder or hub id, with optional ``::SUBFOLDER``, as ``--head`` takes it.
        model: the target, whose LM head some heads use.
    """
    base, _, inner = name.partition("::")
    folder = Path(base).expanduser() / inner
    if not folder.is_dir():
        return name
    folder = folder.absolute()
    file = folder / "config.json"
    config = read_json_object(file, _TODO) if file.is_file() else {}
    if method == "medusa" and config.get("original_lm_head"):
        return str(_written(folder, config, model))
    own = config.get("dflash_config")
    if method == "dflash" and isinstance(own, dict) and any(own.get(name) or config.get(name) for name in _CAUSAL):
        return str(_written(folder, {**config, "dflash_config": {**own, "causal": True}}, None))
    return str(folder)


def _written(folder: Path, config: Mapping[str, Any], target: LoadedModel | None) -> Path:
    """Write a head with another configuration; with a target, a Medusa head that scores with the target's LM head.

    vLLM reads that LM head from the head's file, and does not load a file with a ``token_map``.
    """
    from specbench.models import kept

    files = sorted(folder.glob("*.safetensors"))
    digest = hashlib.sha256(repr((sorted(config.items()), target and target.spec.fingerprint)).encode())
    for file in files:
        digest.update(file.read_bytes())

    def make(draft: Path) -> None:
        from safetensors.torch import load_file, save_file

        draft.mkdir()
        tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
        values = dict(config)
        if target is not None:
            tensors.pop("token_map", None)
            values["truncated_vocab_size"] = values["vocab_size"]
            lm_head = target.model.get_output_embeddings().weight.detach().cpu().contiguous()
            tensors = {**{n: t for n, t in tensors.items() if "lm_head" not in n}, "lm_heads.0.weight": lm_head.clone()}
        save_file(tensors, draft / "model.safetensors")
        write_json_atomic(draft / "config.json", values)

    return kept(f"vllm-head-{digest.hexdigest()[:24]}", make)[0]
