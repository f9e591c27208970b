"""Configuration that all kinds of draft heads share: sizes, rope, tapped layers, and ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from specbench.common import UsageError, validate

C = TypeVar("C", bound="HeadConfig")

HEAD_FILE, HEAD_TODO = "the head's config.json", "use a complete copy of the head"
HEAD_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads")
#: Fields with the same names in every producer's ``config.json`` and in transformers' configurations.
_SHAPE = (
    *HEAD_SIZES, "num_hidden_layers", "num_key_value_heads", "head_dim", "rms_norm_eps", "hidden_act", "attention_bias",
    "max_position_embeddings",
)  # fmt: skip
#: Rope types whose frequencies do not depend on the text's length: a captured CUDA graph could not change them.
_ROPES = ("default", "linear", "yarn", "llama3")
_LARGEST = 1 << 24  # largest size: products of two larger sizes would overflow


def head_size(most: int = _LARGEST) -> Any:
    """Return a pydantic field for an optional positive size."""
    return Field(None, ge=1, le=most)


class PublishedHead(BaseModel):
    """Types of fields that any published ``config.json`` may have; each kind of head adds its own fields."""

    model_config = ConfigDict(strict=True)

    hidden_size: int | None = head_size()
    intermediate_size: int | None = head_size()
    num_hidden_layers: int | None = Field(None, ge=0, le=1024)  # 0 for a head without layers
    num_attention_heads: int | None = head_size()
    num_key_value_heads: int | None = head_size()
    head_dim: int | None = head_size()
    vocab_size: int | None = Field(None, ge=0, le=_LARGEST)
    draft_vocab_size: int | None = Field(None, ge=0, le=_LARGEST)
    taps: list[int] | None = None
    mask_token_id: int | None = Field(None, ge=0)
    rms_norm_eps: float | None = Field(None, gt=0)
    hidden_act: str | None = None
    attention_bias: bool | None = None
    layer_types: list[str] | None = None
    sliding_window: int | None = None
    max_position_embeddings: int | None = None
    rope_theta: float | None = Field(None, gt=0)
    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """Configuration of a draft head. The sizes are those of the head's own decoder layers, if it has any.

    A new kind of head adds its fields here in a subclass, and their types in a subclass of :class:`PublishedHead`.

    Attributes:
        taps: indices, from 0, of the target layers whose outputs the head reads, in the order of its ``fc``.
        vocab_size: size of the target's vocabulary.
        draft_vocab_size: number of tokens that the head can draft; 0, or ``vocab_size``, is all. If it is smaller, the
            tensor ``d2t`` in the head's file names the tokens.
        rope: ``rope_type``, ``rope_theta`` and further parameters of the type.
        layer_types: "full_attention" or "sliding_attention" for each layer; empty without sliding layers.
        max_position_embeddings: kept for ``config.json``; no parameter depends on it.
    """

    FIELDS: ClassVar[type[PublishedHead]] = PublishedHead
    POSITIONS: ClassVar[int] = 2048  # default of max_position_embeddings

    taps: tuple[int, ...]
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rope: Mapping[str, Any]
    draft_vocab_size: int = 0
    mask_token_id: int | None = None
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    attention_bias: bool = False
    layer_types: tuple[str, ...] = ()
    sliding_window: int | None = None
    max_position_embeddings: int = 2048

    def __post_init__(self) -> None:
        """Refuse a rope type that is not supported.

        Raises:
            UsageError: names the type.
        """
        kind = self.rope.get("rope_type", "default")
        if kind not in _ROPES:
            raise UsageError(
                f"cannot use the head: its rope type '{kind}' is not supported; use a head with {', '.join(_ROPES)}"
            )

    @property
    def whole(self) -> bool:
        """Whether the head can draft every token, so that its ids are the target's."""
        return self.draft_vocab_size in (0, self.vocab_size)

    @classmethod
    def from_json(cls: type[C], values: Mapping[str, Any], target_layers: int | None = None) -> C:
        """Return the configuration in the content of a ``config.json``.

        Args:
            target_layers: number of the target's layers; None if unknown.
        """
        found = cls.known(values)
        missing = [name for name in (*HEAD_SIZES, "taps") if found.get(name) is None]
        if missing:
            raise UsageError(f"cannot read {HEAD_FILE}: it has no {', '.join(missing)}; {HEAD_TODO}")
        sizes = layer_sizes(found, cls.POSITIONS)
        own = {each.name: found[each.name] for each in fields(cls) if each.name in found and each.name not in sizes}
        return cls(**{"vocab_size": 0, **own, "taps": tuple(found["taps"])}, **sizes)

    @classmethod
    def known(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Validate the fields that a head of this kind may have; fields without a value are left out."""
        found = validate(cls.FIELDS, dict(values), HEAD_FILE, HEAD_TODO).model_dump()
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def for_target(cls: type[C], target: Any, *, layers: int = 1, **own: Any) -> C:
        """Return the configuration of a new head for a target's configuration; ``own`` are further fields."""
        return cls(**{**target_sizes(target.get_text_config(), layers, cls.POSITIONS), **own})

    @classmethod
    def untrained(cls: type[C], name: str, target: Any, last_token: int) -> C | None:
        """Return the configuration of an untrained head with this ``--head`` name, or None for other names."""
        return cls.for_target(target) if name == "random" else None

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``config.json``."""
        return self.written(*(each.name for each in fields(self) if each.name != "rope"))

    def check_target(self, head: str, target: Any) -> None:
        """Check that the head was made for a target of this configuration.

        Raises:
            UsageError: a size differs from the target's.
        """
        for what, (own, theirs) in self.agrees_with(target).items():
            if own != theirs:
                raise UsageError(
                    f"cannot use head {head}: it is for a target with {what} {own} and this target has {theirs}; give "
                    "a head for this target"
                )
        if self.draft_vocab_size > target.vocab_size:
            raise UsageError(
                f"cannot use head {head}: it drafts {self.draft_vocab_size} tokens and the target has "
                f"{target.vocab_size}; give a head for this target"
            )
        if self.mask_token_id is not None and not 0 <= self.mask_token_id < target.vocab_size:
            raise UsageError(
                f"cannot use head {head}: its mask token is {self.mask_token_id} and the target has "
                f"{target.vocab_size} tokens; give a head for this target"
            )

    def agrees_with(self, target: Any) -> dict[str, tuple[int, int]]:
        """Return the (head's, target's) sizes that must be equal, by description."""
        return {"hidden size": (self.hidden_size, target.hidden_size)}

    def layer_config(self, kind: Any, **own: Any) -> Any:
        """Return a transformers configuration of class ``kind`` for the head's layers, without an embedding."""
        shared = {name: getattr(self, name) for name in _SHAPE}
        return kind(**shared, rope_parameters=dict(self.rope), vocab_size=1, **own)

    def written(self, *names: str) -> dict[str, Any]:
        """Return the content of ``config.json``: the fields common to all producers, and ``names``."""
        rope = dict(self.rope)
        return {
            "rope_theta": rope.pop("rope_theta"),
            "rope_scaling": rope if rope.get("rope_type", "default") != "default" else None,
            **{name: getattr(self, name) for name in (*_SHAPE, "vocab_size", *names)},
            "tie_word_embeddings": False,
        }


def layer_sizes(found: Mapping[str, Any], positions: int) -> dict[str, Any]:
    """Return :class:`HeadConfig`'s arguments on its layers, from a ``config.json`` that has all :data:`HEAD_SIZES`."""
    heads = found["num_attention_heads"]
    slides = "sliding_attention" in found.get("layer_types", ())
    rope = {
        "rope_theta": found.get("rope_theta", 10000.0),
        # transformers 5 writes rope_parameters, older versions rope_scaling
        **(found.get("rope_parameters") or found.get("rope_scaling") or {}),
    }
    rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type", "default")
    return {
        **{"num_hidden_layers": 1, "num_key_value_heads": heads, "head_dim": found["hidden_size"] // heads},
        "max_position_embeddings": positions,
        **{name: found[name] for name in _SHAPE if name in found},
        "rope": rope,
        "layer_types": tuple(found["layer_types"]) if slides else (),
        "sliding_window": found.get("sliding_window") if slides else None,
    }


def target_sizes(config: Any, layers: int, positions: int) -> dict[str, Any]:
    """Return :class:`HeadConfig`'s arguments for a head whose layers have the target's sizes.

    Args:
        positions: default if the target's configuration has no number of positions.
    """
    hidden, heads = config.hidden_size, config.num_attention_heads
    rope = getattr(config, "rope_parameters", None) or {}
    theta = rope.get("rope_theta") if isinstance(rope, Mapping) else None
    return {
        "hidden_size": hidden,
        "intermediate_size": getattr(config, "intermediate_size", None) or 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or hidden // heads,
        "vocab_size": config.vocab_size,
        "rope": {"rope_type": "default", "rope_theta": theta or 10000.0},
        "max_position_embeddings": getattr(config, "max_position_embeddings", None) or positions,
    }
