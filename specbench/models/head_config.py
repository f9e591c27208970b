"""The base of draft heads' configurations: sizes, rope, tapped layers, and ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from specbench.common import UsageError, validate

C = TypeVar("C", bound="HeadConfig")

HEAD_FILE, HEAD_TODO = "the head's config.json", "take a whole copy of the head"
HEAD_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads")
#: Fields that every producer's ``config.json``, and transformers' configurations, spell alike.
_SHAPE = (
    *HEAD_SIZES, "num_hidden_layers", "num_key_value_heads", "head_dim", "rms_norm_eps", "hidden_act", "attention_bias",
    "max_position_embeddings",
)  # fmt: skip
#: Types of rope whose frequencies do not depend on the length of the text: a captured pass could not follow the others.
_ROPES = ("default", "linear", "yarn", "llama3")
_LARGEST = 1 << 24  # of a size: beyond it products of two no longer fit where they are counted


def head_size(most: int = _LARGEST) -> Any:
    """A field for a positive size that may be missing."""
    return Field(None, ge=1, le=most)


class PublishedHead(BaseModel):
    """Types of the fields that every published ``config.json`` may have; each kind of head adds its own."""

    model_config = ConfigDict(strict=True)

    hidden_size: int | None = head_size()
    intermediate_size: int | None = head_size()
    num_hidden_layers: int | None = Field(None, ge=0, le=1024)  # 0 of a head without layers
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
    """A draft head without its weights. Its own decoder layers, if it has any, have these sizes.

    A new kind of head adds its fields, and their types to a subclass of :class:`PublishedHead`.

    Attributes:
        taps: layers of the target, from 0, whose outputs it reads, in the order of its ``fc``.
        vocab_size: the target's.
        draft_vocab_size: tokens that it can draft; 0, or ``vocab_size``, is all. With fewer, its file says in ``d2t``
            which they are.
        rope: ``rope_type``, ``rope_theta`` and what the type needs.
        layer_types: "full_attention" or "sliding_attention" of each layer; empty where none slides.
        max_position_embeddings: for the record; no parameter depends on it.
    """

    FIELDS: ClassVar[type[PublishedHead]] = PublishedHead
    POSITIONS: ClassVar[int] = 2048  # where neither the file nor the target says how many there are

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
        """Refuse what no pass can run.

        Raises:
            UsageError: names the field.
        """
        kind = self.rope.get("rope_type", "default")
        if kind not in _ROPES:
            raise UsageError(f"the head has '{kind}' rope, which is not expressed yet; known: {', '.join(_ROPES)}")

    @property
    def whole(self) -> bool:
        """It can draft every token, so that its ids are the target's."""
        return self.draft_vocab_size in (0, self.vocab_size)

    @classmethod
    def from_json(cls: type[C], values: Mapping[str, Any], target_layers: int | None = None) -> C:
        """A configuration from the content of a ``config.json``.

        Args:
            target_layers: of the target; None where it is not known.
        """
        found = cls.known(values)
        missing = [name for name in (*HEAD_SIZES, "taps") if found.get(name) is None]
        if missing:
            raise UsageError(f"{HEAD_FILE} has no {', '.join(missing)}; {HEAD_TODO}")
        sizes = layer_sizes(found, cls.POSITIONS)
        own = {each.name: found[each.name] for each in fields(cls) if each.name in found and each.name not in sizes}
        return cls(**{"vocab_size": 0, **own, "taps": tuple(found["taps"])}, **sizes)

    @classmethod
    def known(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that a head of this kind may have, of the right types; those without a value are left out."""
        found = validate(cls.FIELDS, dict(values), HEAD_FILE, HEAD_TODO).model_dump()
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def for_target(cls: type[C], target: Any, *, layers: int = 1, **own: Any) -> C:
        """The configuration of a new head for a target's configuration; ``own``: further fields."""
        return cls(**{**target_sizes(target.get_text_config(), layers, cls.POSITIONS), **own})

    @classmethod
    def untrained(cls: type[C], name: str, target: Any, last_token: int) -> C | None:
        """The configuration of an untrained head by the name that ``--head`` takes; None of another name."""
        return cls.for_target(target) if name == "random" else None

    def to_json(self) -> dict[str, Any]:
        """The content of ``config.json``."""
        return self.written(*(each.name for each in fields(self) if each.name != "rope"))

    def check_target(self, head: str, target: Any) -> None:
        """Check that the head was made for a target of this configuration.

        Raises:
            UsageError: it was not.
        """
        for what, (own, theirs) in self.agrees_with(target).items():
            if own != theirs:
                raise UsageError(f"head {head} is for a target with a {what} of {own}, this one's is {theirs}")
        if self.draft_vocab_size > target.vocab_size:
            raise UsageError(f"head {head} drafts {self.draft_vocab_size} tokens, the target has {target.vocab_size}")
        if self.mask_token_id is not None and not 0 <= self.mask_token_id < target.vocab_size:
            raise UsageError(f"head {head} has mask token {self.mask_token_id}, the target {target.vocab_size} tokens")

    def agrees_with(self, target: Any) -> dict[str, tuple[int, int]]:
        """The head's sizes and the target's that have to be equal, by what they are."""
        return {"hidden size": (self.hidden_size, target.hidden_size)}

    def layer_config(self, kind: Any, **own: Any) -> Any:
        """The configuration of its layers for transformers' classes, of ``kind``; the head has no embedding there."""
        shared = {name: getattr(self, name) for name in _SHAPE}
        return kind(**shared, rope_parameters=dict(self.rope), vocab_size=1, **own)

    def written(self, *names: str) -> dict[str, Any]:
        """The fields that every producer's ``config.json`` spells alike, and ``names``."""
        rope = dict(self.rope)
        return {
            "rope_theta": rope.pop("rope_theta"),
            "rope_scaling": rope if rope.get("rope_type", "default") != "default" else None,
            **{name: getattr(self, name) for name in (*_SHAPE, "vocab_size", *names)},
            "tie_word_embeddings": False,
        }


def layer_sizes(found: Mapping[str, Any], positions: int) -> dict[str, Any]:
    """Arguments of :class:`HeadConfig` about its layers, from a ``config.json`` whose :data:`HEAD_SIZES` are there."""
    heads = found["num_attention_heads"]
    slides = "sliding_attention" in found.get("layer_types", ())
    rope = {
        "rope_theta": found.get("rope_theta", 10000.0),
        # transformers 5 has rope_parameters, the versions before it rope_scaling
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
    """Arguments of :class:`HeadConfig` for a head whose layers are shaped like a target's.

    Args:
        positions: where the target does not say how many it has.
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
