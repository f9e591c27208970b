"""Read the ``config.json`` of an EAGLE head. EAGLE-1, EAGLE-2 and HASS have the same head, in three layouts.

- *original* (SafeAILab/EAGLE ``eagle/model/cnets1.py``, HASS ``model/cnets.py``): the keys of a Llama; ``bias``:
  whether ``fc`` has a bias; ``qkv_bias``: whether queries, keys and values have one.
- *vLLM* (``EAGLEConfig``): the same keys under ``model``, which keys at the top level override.
- *speculators* (``speculators_model_type`` "eagle"): keys that differ from Llama's defaults, under
  ``transformer_layer_config``; ``fusion_bias``: whether ``fusion_fc`` has a bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specbench.common import UsageError
from specbench.heads import HEAD_FILE, HEAD_SIZES, PublishedHead, head_size, layer_sizes
from specbench.heads import HeadConfig as HeadConfigBase

#: Defaults of transformers' Llama, which speculators leaves out of its files.
_LLAMA = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "vocab_size": 32000}
_NORMS = ("layernorms", "add_para_norm")  # speculators' and vLLM's keys
_EAGLE3 = ("eagle_config", "eagle_aux_hidden_state_layer_ids", "num_aux_hidden_states", "target_hidden_size")
_BLOCKS = ("block_size", "dflash_config", "jetspec_config")


class _Published(PublishedHead):
    """Types of the fields of an EAGLE head's ``config.json``; other fields are ignored."""

    num_hidden_layers: int | None = head_size(1024)
    vocab_size: int | None = head_size()
    truncated_vocab_size: int | None = head_size()
    bias: bool | None = None
    fusion_bias: bool | None = None
    qkv_bias: bool | None = None
    mlp_bias: bool | None = None


@dataclass(frozen=True, kw_only=True)
class HeadConfig(HeadConfigBase):
    """A head's configuration. It reads the target's last hidden state after the final norm.

    Attributes:
        bias: whether ``fc`` has a bias. None, as in files without the key, means yes if the file has one; the original
            expects one, vLLM expects none.
        qkv_bias: whether queries, keys and values have a bias but the output has none, as in Qwen2.
    """

    FIELDS = _Published

    bias: bool | None = None
    qkv_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        if self.layer_types:
            raise UsageError(
                "cannot use the head: it has sliding-window layers, and an EAGLE head has none; use an EAGLE head"
            )
        super().__post_init__()

    @classmethod
    def from_json(cls, values: Mapping[str, Any], target_layers: int | None = None) -> HeadConfig:
        kind = values.get("speculators_model_type")
        _check_kind(values, kind)
        inner = values.get("transformer_layer_config" if kind else "model")
        inner = inner if isinstance(inner, Mapping) else {}
        if kind and (named := inner.get("model_type", "llama")) != "llama":
            raise UsageError(f"cannot use the head: its layer is of type '{named}'; use a head with a llama layer")
        own = {name: value for name, value in values.items() if value is not None}
        found = cls.known({**(_LLAMA if kind else {}), **inner, **own})
        missing = [name for name in (*HEAD_SIZES, "vocab_size") if found.get(name) is None]
        if missing:
            raise UsageError(f"cannot read {HEAD_FILE}: it has no {', '.join(missing)}; use an EAGLE head")
        for name in ("truncated_vocab_size", "draft_vocab_size"):
            if found.get(name, 0) not in (0, found["vocab_size"]):
                raise UsageError(
                    f"cannot use the head: it drafts {found[name]} of {found['vocab_size']} tokens ({name}), "
                    "which only EAGLE-3 heads can; use a head for all tokens"
                )
        # speculators has one layer, whatever num_hidden_layers its transformer_layer_config copies from the target.
        layers = {"num_hidden_layers": 1} if kind else {}
        return cls(
            **{**layer_sizes(found, cls.POSITIONS), **layers},
            taps=() if target_layers is None else (target_layers,),
            vocab_size=found["vocab_size"],
            bias=bool(found.get("fusion_bias")) if kind else found.get("bias"),
            qkv_bias=bool(found.get("qkv_bias")),
            mlp_bias=bool(found.get("mlp_bias")),
        )

    @classmethod
    def for_target(cls, target: Any, *, layers: int = 1, **own: Any) -> HeadConfig:
        """Return the published shape for any target: one layer with the target's sizes, and a bias."""
        config = target.get_text_config()
        known = {"taps": (config.num_hidden_layers,), "bias": True}
        return super().for_target(
            target, layers=layers, **{**known, "rms_norm_eps": getattr(config, "rms_norm_eps", None) or 1e-6, **own}
        )

    def agrees_with(self, target: Any) -> dict[str, tuple[int, int]]:
        return {**super().agrees_with(target), "vocabulary": (self.vocab_size, target.vocab_size)}

    def to_json(self) -> dict[str, Any]:
        """Return the original layout, which vLLM reads, too."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **self.written("bias", "mlp_bias"),
            **({"qkv_bias": True} if self.qkv_bias else {}),
        }


def _check_kind(values: Mapping[str, Any], kind: Any) -> None:
    """Refuse heads of other methods, and variants whose engines disagree."""
    eagle3 = kind in ("eagle3", "peagle") or "Eagle3" in str(values.get("architectures"))
    if eagle3 or any(name in values for name in _EAGLE3):
        raise UsageError(f"{HEAD_FILE} belongs to an EAGLE-3 head; draft with --method eagle3")
    if any(name in values for name in _BLOCKS):
        raise UsageError(
            f"{HEAD_FILE} belongs to a head that drafts blocks (JetSpec, DFlash); draft with --method jetspec"
        )
    if kind not in (None, "eagle"):
        raise UsageError(f"{HEAD_FILE} belongs to a head of type '{kind}'; use an EAGLE head")
    for name in _NORMS:
        if values.get(name):
            raise UsageError(
                f"cannot use the head: it has further norms ({name}), which speculators and vLLM apply at different "
                "places; use a head without them"
            )
