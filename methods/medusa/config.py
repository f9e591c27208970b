"""Read a Medusa head's ``config.json`` and the shapes in its file, in every published layout.

- *original* (FasterDecoding/Medusa, TGI, TensorRT-LLM): ``{head}.{block}.linear.weight`` and ``.bias``, and as the last
  part ``{head}.{blocks}.weight``, the head's own LM head. Its ``config.json`` has no sizes, and published ones state 2
  heads for files of 5: the tensors decide.
- *v0.1*, and TGI's shared heads: the same without an LM head; the heads use the target's.
- *vLLM*: ``blocks.{head}.layers.{block}.weight`` (``.bias`` with ``medusa_fc_bias``), ``lm_heads.{head}.weight`` or,
  with ``original_lm_head``, one ``lm_head.weight`` for all heads, and ``token_map`` with ``truncated_vocab_size``.
- *Medusa-2*: a checkpoint of the target and its heads, whose names are the original's after ``medusa_head.``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from specbench.common import UsageError
from specbench.heads import HEAD_FILE, HEAD_TODO, PublishedHead, head_size
from specbench.heads import HeadConfig as HeadConfigBase

Scorer = Literal["own", "shared", "target"]

WITH_TARGET = "medusa_head."  # beginning of the heads' names in a checkpoint of target and heads

_SPARSE = 8  # a file with so many times fewer blocks than its largest index says is damaged

_BLOCK = re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)")
_LAST = re.compile(r"(\d+)\.\d+\.weight")
_VLLM_BLOCK = re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)")
_OWN = re.compile(r"blocks\.(\d+)\.(\d+)\.(weight|bias)")
_LM_HEAD = re.compile(r"lm_heads\.(\d+)\.weight")


class _Published(PublishedHead):
    """Types of the fields of a Medusa head's ``config.json``; other fields are ignored."""

    medusa_num_heads: int | None = head_size(1024)
    medusa_num_layers: int | None = Field(None, ge=0, le=1024)
    num_heads: int | None = head_size(1024)
    truncated_vocab_size: int | None = head_size()
    original_lm_head: bool | None = None
    medusa_fc_bias: bool | None = None
    logit_scale: float | None = None


@dataclass(frozen=True, kw_only=True)
class HeadConfig(HeadConfigBase):
    """A configuration of n heads over the target's last hidden state, without decoder layers.

    Attributes:
        heads: number of heads, each of which predicts one position.
        blocks: residual blocks of each head.
        bias: whether the blocks' linear layers have a bias; None is what the file has.
        scorer: which LM head scores a head's output: one of its own, one for all heads, or the target's; None is what
            the file has.
        stated: number of heads according to ``config.json``, which may be wrong; 0 if it has none.
    """

    FIELDS = _Published

    heads: int = 0
    blocks: int = 0
    bias: bool | None = None
    scorer: Scorer | None = None
    stated: int = 0

    @property
    def drafted(self) -> int:
        """Number of tokens that the heads can draft."""
        return self.draft_vocab_size or self.vocab_size

    @classmethod
    def from_json(cls, values: Mapping[str, Any], target_layers: int | None = None) -> HeadConfig:
        """Return what a ``config.json`` states; :meth:`sized` adds what the file's tensors show."""
        found = cls.known(values)
        if found.get("logit_scale", 1.0) != 1.0:
            raise UsageError(
                f"cannot use the head: {HEAD_FILE} has logit_scale {found['logit_scale']:g}, which is not supported; "
                "use a head without it"
            )
        vocabulary = found.get("vocab_size", 0)
        size = found.get("truncated_vocab_size", 0)
        stated = found.get("medusa_num_heads", found.get("num_heads", 0))
        return cls(
            **_no_layers(found.get("hidden_size", 0)),
            taps=() if target_layers is None else (target_layers,),
            vocab_size=vocabulary,
            draft_vocab_size=0 if size == vocabulary else size,
            heads=stated,
            blocks=found.get("medusa_num_layers", found.get("num_hidden_layers", 0)),
            bias=found.get("medusa_fc_bias"),
            scorer={True: "shared", False: "own", None: None}[found.get("original_lm_head")],
            stated=stated,
        )

    def sized(self, head: str, shapes: Mapping[str, Sequence[int]], vocabulary: int) -> HeadConfig:
        """Return the configuration with the sizes of a file's tensors.

        Args:
            head: name of the head, for errors.
            shapes: shapes of the tensors by :func:`own_name`.
            vocabulary: the target's, for heads without an LM head whose ``config.json`` does not state it.
        """
        blocks = {(int(k), int(j)) for k, j, _ in _matches(_OWN, shapes)}
        scored = {int(k) for (k,) in _matches(_LM_HEAD, shapes)}
        stacks = [shape for name, shape in shapes.items() if name.endswith("weight") and len(shape) == 2]
        if not blocks | {(k, 0) for k in scored} or not stacks:
            raise UsageError(
                f"cannot use head {head}: its file has no Medusa heads; choose another --head or another method"
            )
        stated, heads = self.blocks, 1 + max([*(k for k, _ in blocks), *(scored if self.scorer != "shared" else ())])
        each = max((1 + j for _, j in blocks), default=0)
        # Single tensors that are missing are found when the head is filled.
        sparse = heads * max(each, 1) > _SPARSE * max(len(blocks), len(scored))
        if each < stated or sparse or (self.scorer == "own" and not scored):
            raise UsageError(
                f"cannot use head {head}: its file lacks tensors of its {heads} heads with {max(each, stated)} blocks; "
                f"{HEAD_TODO}"
            )
        scorer: Scorer = "own" if scored else "target"
        if "lm_head.weight" in shapes or (scored and self.scorer == "shared"):
            scorer = "shared"
        rows = next((shape[0] for name, shape in shapes.items() if name.startswith("lm_head")), vocabulary)
        return replace(
            self,
            heads=heads,
            blocks=each,
            hidden_size=stacks[0][1],
            vocab_size=self.vocab_size or rows,
            bias=any(name.endswith(".bias") for name in shapes) if self.bias is None else self.bias,
            scorer=scorer,
        )

    @classmethod
    def for_target(cls, target: Any, **own: Any) -> HeadConfig:
        """The published shape for any target: five heads of one block, each with its own LM head."""
        config = target.get_text_config()
        taps = (config.num_hidden_layers,)
        known: dict[str, Any] = {"heads": 5, "blocks": 1, "bias": True, "scorer": "own", "taps": taps, **own}
        return cls(**_no_layers(config.hidden_size), vocab_size=config.vocab_size, **known)

    def agrees_with(self, target: Any) -> dict[str, tuple[int, int]]:
        return {**super().agrees_with(target), "vocabulary": (self.vocab_size, target.vocab_size)}

    def to_json(self) -> dict[str, Any]:
        """The form that vLLM reads."""
        return {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "num_heads": self.heads,
            "num_hidden_layers": self.blocks,
            "hidden_size": self.hidden_size,
            "vocab_size": self.vocab_size,
            "truncated_vocab_size": self.drafted,
            "medusa_fc_bias": bool(self.bias),
            "original_lm_head": self.scorer != "own",
        }


def own_name(name: str) -> str:
    """Return our name of a stored tensor: ``blocks.{head}.{block}.…``, ``lm_heads.{head}.weight``; others unchanged."""
    name = name.removeprefix("medusa_heads.").removeprefix(WITH_TARGET)
    if found := _BLOCK.fullmatch(name) or _VLLM_BLOCK.fullmatch(name):
        return "blocks.{}.{}.{}".format(*found.groups())
    if found := _LAST.fullmatch(name):
        return f"lm_heads.{found[1]}.weight"
    return name


def stored_name(name: str) -> str:
    """Return vLLM's name of a tensor."""
    found = _OWN.fullmatch(name)
    return "blocks.{}.layers.{}.{}".format(*found.groups()) if found else name


def _matches(pattern: re.Pattern[str], names: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [found.groups() for name in names if (found := pattern.fullmatch(name))]


def _no_layers(hidden: int) -> dict[str, Any]:
    """Sizes of a head without decoder layers."""
    sizes = ("intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
    return {**dict.fromkeys(sizes, 0), "hidden_size": hidden, "rope": {}}
