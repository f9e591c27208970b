"""Read an EAGLE-3 head's ``config.json`` with the meaning that its producer gives to the keys.

Producers build the decoder layer in the same way but differ in everything around it, and use the same keys with
different meanings:

- *original* (SafeAILab/EAGLE): ``midlayer.*``; reads the outputs of layers 1, L/2 - 1 and L - 4.
- *specforge* (SpecForge, SGLang, NVIDIA): ``midlayer.*``; ``eagle_config.eagle_aux_hidden_state_layer_ids`` are layers
  whose outputs are read; ``norm_output``: whether the norm comes before the LM head (default true).
- *speculators* (vLLM): ``layers.i.*`` and ``transformer_layer_config``; ``eagle_aux_hidden_state_layer_ids`` are layers
  whose inputs are read; ``norm_output``: whether the output that is fed back is taken after the norm (EAGLE-3.1;
  default false).
- *deepspec* (DeepSeek's DeepSpec): ``layers.0.*`` of Qwen3; ``target_layer_ids`` are layers whose outputs are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import Field

from specbench.common import UsageError
from specbench.heads import HEAD_FILE, HEAD_SIZES, HEAD_TODO, PublishedHead, head_size, layer_sizes
from specbench.heads import HeadConfig as HeadConfigBase

Producer = Literal["original", "specforge", "speculators", "deepspec"]
PRODUCERS: tuple[Producer, ...] = get_args(Producer)

#: Untrained heads without files: (number of layers, whether all drafts come from one pass). P-EAGLE's published heads
#: have four layers.
RANDOM: Mapping[str, tuple[int, bool]] = {"random": (1, False), "random-parallel": (4, True)}
_SIZES = (*HEAD_SIZES, "vocab_size")
_BLOCKS = ("block_size", "jetspec_config")  # fields of other kinds of heads
_SPECFORGE = ("LlamaForCausalLMEagle3", "PEagleDraftModel")
_MASKS = ("mask_token_id", "pard_token", "ptd_token_id")  # P-EAGLE's names for the mask token, in vLLM's order


class _Published(PublishedHead):
    """Types of the fields of EAGLE-3's ``config.json``; other fields are ignored."""

    num_hidden_layers: int | None = head_size(1024)
    target_hidden_size: int | None = head_size()
    vocab_size: int | None = head_size()
    draft_vocab_size: int | None = head_size()
    eagle_aux_hidden_state_layer_ids: list[int] | None = None
    target_layer_ids: list[int] | None = None
    num_aux_hidden_states: int | None = head_size(1024)
    use_aux_hidden_state: bool | None = None
    norm_before_residual: bool | None = None
    norm_before_fc: bool | None = None
    fc_norm: bool | None = None
    norm_output: bool | None = None
    pard_token: int | None = Field(None, ge=0)
    ptd_token_id: int | None = Field(None, ge=0)
    mlp_bias: bool | None = None


@dataclass(frozen=True, kw_only=True)
class HeadConfig(HeadConfigBase):
    """A head's configuration, with one meaning for the files of all producers.

    Attributes:
        num_hidden_layers: the first layer reads embedding and features, the others are plain layers.
        head_norms: queries and keys are normalised, as in Qwen3.
        norm_before_residual: the first layer's residual is the normalised feature.
        norm_before_fc: ``fc`` is preceded by one norm over all features.
        fc_norm: ``fc`` is preceded by a norm for each tapped layer.
        feeds_norm: the output that replaces features for drafts is taken after the final norm (EAGLE-3.1).
        norm_before_scores: the final norm comes before the LM head.
        mask_token_id: for a head that drafts in one pass (P-EAGLE); None for a head that drafts token by token.
        usual: the head reads the default layers of all engines.
    """

    FIELDS = _Published

    target_hidden_size: int
    mlp_bias: bool = False
    head_norms: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    feeds_norm: bool = False
    norm_before_scores: bool = True
    usual: bool = True

    def __post_init__(self) -> None:
        if self.norm_before_fc and self.fc_norm:
            raise UsageError(
                f"{HEAD_FILE} has norm_before_fc and fc_norm, and a head has one of them at most; {HEAD_TODO}"
            )
        if self.draft_vocab_size > self.vocab_size:
            raise UsageError(f"the head drafts {self.draft_vocab_size} tokens of {self.vocab_size}; {HEAD_TODO}")
        super().__post_init__()

    @property
    def parallel(self) -> bool:
        """Whether all drafts come from one pass."""
        return self.mask_token_id is not None

    @classmethod
    def from_json(
        cls, values: Mapping[str, Any], target_layers: int | None = None, producer: Producer | None = None
    ) -> HeadConfig:
        """A configuration from a published ``config.json``.

        ``producer``: the producer whose meaning of the keys applies; None: detect it (:func:`producer_of`).
        """
        producer = producer or producer_of(values)
        found = _flat(values)
        if found.get("use_aux_hidden_state") is False:
            raise UsageError(
                "cannot use the head: it reads only the target's last hidden state (use_aux_hidden_state is false), "
                "which EAGLE-3 heads do not; if its fc has two inputs, as in EAGLE-1 and EAGLE-2, use --method eagle"
            )
        if any(name in values for name in _BLOCKS):
            raise UsageError(
                f"{HEAD_FILE} belongs to a head that drafts blocks (JetSpec, DFlash), not to an EAGLE-3 head"
            )
        missing = [name for name in _SIZES if found.get(name) is None]
        if missing:
            raise UsageError(
                f"{HEAD_FILE} has no {', '.join(missing)}; it is not an EAGLE-3 head; choose another --head or another "
                "method"
            )
        norm_output = found.get("norm_output")
        return cls(
            **layer_sizes(found, cls.POSITIONS),
            taps=_taps(found, target_layers or 0, producer),
            target_hidden_size=found.get("target_hidden_size") or found["hidden_size"],
            vocab_size=found["vocab_size"],
            draft_vocab_size=found.get("draft_vocab_size") or found["vocab_size"],
            mlp_bias=bool(found.get("mlp_bias")),
            head_norms=producer == "deepspec" or _head_norms(values),
            norm_before_residual=bool(found.get("norm_before_residual")),
            norm_before_fc=bool(found.get("norm_before_fc")),
            fc_norm=bool(found.get("fc_norm")),
            feeds_norm=producer == "speculators" and bool(norm_output),
            norm_before_scores=producer != "specforge" or norm_output is not False,
            mask_token_id=_mask(values, found),
        )

    @classmethod
    def for_target(
        cls, target: Any, *, intermediate_size: int | None = None, draft_vocab_size: int = 0, **own: Any
    ) -> HeadConfig:
        """The published shape for any target: one layer with the target's sizes.

        ``intermediate_size``: None means the target's; ``draft_vocab_size``: 0 means all of the target's tokens;
        ``own``: ``layers`` and further fields.
        """
        config = target.get_text_config()
        taps, usual = _taps_of(config.num_hidden_layers)
        wide = {"intermediate_size": intermediate_size} if intermediate_size else {}
        return super().for_target(
            target,
            taps=taps,
            usual=usual,
            target_hidden_size=config.hidden_size,
            draft_vocab_size=draft_vocab_size or config.vocab_size,
            rms_norm_eps=getattr(config, "rms_norm_eps", None) or 1e-6,
            **wide,
            **own,
        )

    @classmethod
    def untrained(cls, name: str, target: Any, last_token: int) -> HeadConfig | None:
        if name not in RANDOM:
            return None
        layers, parallel = RANDOM[name]
        return cls.for_target(target, layers=layers, mask_token_id=last_token if parallel else None)

    def agrees_with(self, target: Any) -> dict[str, tuple[int, int]]:
        return {
            "hidden size": (self.target_hidden_size, target.hidden_size),
            "vocabulary": (self.vocab_size, target.vocab_size),
        }

    def to_json(self) -> dict[str, Any]:
        """A ``config.json`` for a head of :meth:`for_target` that SGLang, vLLM and SpecForge read in the same way.

        It leaves out ``norm_output`` and, if the target is deep enough, the layers to read: all engines have the right
        defaults but give explicit values different meanings. For a shallow target, the layers are written as SGLang and
        SpecForge count them.
        """
        ids = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": list(self.taps)}
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            **self.written("draft_vocab_size"),
            **({} if self.usual else {"eagle_config": ids}),
        }


def producer_of(values: Mapping[str, Any]) -> Producer:
    """Detect the producer of a ``config.json`` by its fields."""
    if any(name in values for name in ("speculators_model_type", "speculators_config", "transformer_layer_config")):
        return "speculators"
    named = values.get("architectures")
    kinds = named if isinstance(named, list) else []
    if "Gemma4Eagle3Model" in kinds:
        raise UsageError(
            "cannot use the head: Gemma 4's decoder layer is not supported; use an EAGLE-3 head with a layer of Llama "
            "or Qwen3"
        )
    if "Qwen3Eagle3Model" in kinds:
        return "deepspec"
    return "specforge" if any(name in _SPECFORGE for name in kinds) else "original"


def default_taps(target_layers: int) -> tuple[int, ...]:
    """The layers whose outputs are read by default: a low, a middle and a high one.

    The original names them as the inputs of layers 2, L/2 and L - 3.
    """
    found = (1, target_layers // 2 - 1, target_layers - 4)
    if not 0 <= found[0] < found[1] < found[2]:
        raise UsageError(
            f"an EAGLE-3 head reads layers 1, L/2 - 1 and L - 4, which a target of {target_layers} has not"
        )
    return found


def _taps_of(target_layers: int) -> tuple[tuple[int, ...], bool]:
    """(:func:`default_taps`, True); for a shallow target (its first three layers, never the last one, False)."""
    if target_layers < 2:
        raise UsageError("a target of one layer has none that a head could read; choose another model")
    try:
        return default_taps(target_layers), True
    except UsageError:
        return tuple(range(target_layers - 1))[:3], False


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the head from all levels at which producers put them."""
    merged: dict[str, Any] = {}
    for part in (values, values.get("eagle_config"), values.get("transformer_layer_config")):
        if isinstance(part, Mapping):
            merged.update({name: value for name, value in part.items() if value is not None})
    return HeadConfig.known(merged)


def _head_norms(values: Mapping[str, Any]) -> bool:
    """Whether the head has Qwen3's layers, the default of speculators, and not Llama's."""
    inner = values.get("transformer_layer_config")
    return isinstance(inner, Mapping) and inner.get("model_type", "qwen3") == "qwen3"


def _taps(found: Mapping[str, Any], target_layers: int, producer: Producer) -> tuple[int, ...]:
    ids = found.get("target_layer_ids" if producer == "deepspec" else "eagle_aux_hidden_state_layer_ids")
    if ids is None:
        return default_taps(target_layers)
    taps = tuple(layer - 1 if producer == "speculators" else layer for layer in ids)
    # The last layer's output is ambiguous: transformers returns it after the final norm, other engines before it.
    if not taps or any(not 0 <= layer < target_layers - 1 for layer in taps):
        raise UsageError(
            f"the head reads the outputs of layers {', '.join(map(str, taps)) or 'none'} (as {producer} counts), and a "
            f"target of {target_layers} has 0 to {target_layers - 2}; choose the head's own target, or eagle3.producer"
        )
    return taps


def _mask(values: Mapping[str, Any], found: Mapping[str, Any]) -> int | None:
    """The token that a parallel head reads at positions not drafted yet; None for other heads."""
    named = values.get("architectures")
    kinds = {str(values.get("speculators_model_type")), *(map(str, named) if isinstance(named, list) else ())}
    if not kinds & {"peagle", "PEagleDraftModel", "PEagleSpeculator"} and not values.get("parallel_drafting"):
        return None
    inner = values.get("dflash_config")
    first = inner.get("mask_token_id") if isinstance(inner, Mapping) else None
    ids = [first, *(found.get(name) for name in _MASKS)]
    chosen = next((token for token in ids if isinstance(token, int) and token >= 0), None)
    if chosen is None:
        raise UsageError(
            f"{HEAD_FILE} is of a parallel head (P-EAGLE) and has no {' or '.join(_MASKS)}; add the token that it "
            "was "
            "trained with"
        )
    return chosen
