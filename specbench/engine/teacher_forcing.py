"""Run chains that start anywhere inside cached texts, many in one forward, without a commit (teacher forcing).

A step (:mod:`specbench.engine.engine`) drafts only after the end of a text. If the whole text is known, drafts can
start at many of its positions at once: a chain sees the cache up to its own start, and itself. The rows of all chains
are concatenated in one batch row, without padding; only attention works per text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from specbench.engine.attention.backends import dense_attention
from specbench.engine.attention.interface import LayerAttention, Sight
from specbench.engine.cache import Answering
from specbench.engine.engine import Engine
from specbench.engine.sampler import scores


@dataclass(frozen=True)
class Chain:
    """Tokens from position ``start`` on, which see the slot's cached tokens before it."""

    slot: int
    start: int
    tokens: Sequence[int]


@torch.inference_mode()
def next_tokens(engine: Engine, chains: Sequence[Chain]) -> list[list[int]]:
    """Return the target's own next token after each token of each chain, without changing the cache.

    Chains of one slot must be adjacent. Raises ValueError if they are not, if a slot is free, or if a chain starts
    after the end of its slot's text.
    """
    logits, position = _forward(engine, chains)
    chosen = iter(scores(logits, position + 1, engine.sampling).argmax(-1)[0].tolist())
    return [[next(chosen) for _ in chain.tokens] for chain in chains]


@torch.inference_mode()
def log_probabilities(engine: Engine, chains: Sequence[Chain], following: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return natural log-probabilities of given tokens after each token of each chain, without changing the cache.

    They are those of the plain softmax of the logits, in float32, regardless of the engine's sampling.

    ``following``: for each chain, a token after each of its tokens.
    """
    return [[value for value, _ in chain] for chain in rate_tokens(engine, chains, following)]


@torch.inference_mode()
def rate_tokens(
    engine: Engine, chains: Sequence[Chain], following: Sequence[Sequence[int]]
) -> list[list[tuple[float, bool]]]:
    """Return (log-probability as in :func:`log_probabilities`, whether it is the most probable) of each given token."""
    logits, _ = _forward(engine, chains)
    given = torch.tensor([token for tokens in following for token in tokens], dtype=torch.int64, device=engine.device)
    found = logits[0].float()
    chosen = found.gather(1, given[:, None])[:, 0] - found.logsumexp(-1)
    values = zip(chosen.tolist(), (found.argmax(-1) == given).tolist(), strict=True)
    return [[next(values) for _ in chain.tokens] for chain in chains]


def _forward(engine: Engine, chains: Sequence[Chain]) -> tuple[Tensor, Tensor]:
    """Logits [1, rows, V] of all chains, and the position [1, rows] of each row."""
    for chain in chains:
        if not 0 <= chain.start <= engine.length(chain.slot):
            raise ValueError(f"slot {chain.slot} holds {engine.length(chain.slot)} tokens, not {chain.start}")
    if engine.cache.recurrent is not None:
        return _from_texts(engine, chains)
    groups, positions, first = [], [], 0
    for slot, mine in groupby(chains, lambda chain: chain.slot):
        group = _Group.of(slot, first, list(mine), engine.device)
        groups.append(group)
        positions.append(group.position)
        first = group.rows.stop
    if len({group.slot for group in groups}) < len(groups):
        raise ValueError("the chains of a slot must be adjacent")
    position = torch.cat(positions)[None]
    ids = [token for chain in chains for token in chain.tokens]
    tokens = torch.tensor([ids], dtype=torch.int64, device=engine.device)
    reading = _Reading(engine, groups)
    logits = engine.model(
        input_ids=tokens,
        position_ids=position if engine.positions is None else position.clamp(max=engine.positions - 1),
        past_key_values=reading,
        use_cache=True,
        step=reading.attend,
    ).logits
    return logits, position


def _from_texts(engine: Engine, chains: Sequence[Chain]) -> tuple[Tensor, Tensor]:
    """:func:`_forward` of a model with recurrent layers, whose states inside a text are not kept: each chain is read
    with the text before it by the model's own forward."""
    found, positions = [], []
    with engine.detached():
        for chain in chains:
            ids = [*engine.text(chain.slot)[: chain.start], *chain.tokens]
            whole = torch.tensor([ids], dtype=torch.int64, device=engine.device)
            found.append(engine.model(input_ids=whole, use_cache=False, logits_to_keep=len(chain.tokens)).logits)
            positions.append(torch.arange(chain.start, len(ids), device=engine.device))
    return torch.cat(found, dim=1), torch.cat(positions)[None]


@dataclass
class _Group:
    """The chains of one slot: R rows after up to L cached cells.

    ``cells``: L, number of cells visible to the chain that starts last; ``position``: int64 [R]; ``visible``: bool
    [R, L + R], the cells and then the rows of the group that each row may see; ``masks``: additive masks, by sight.
    """

    slot: int
    rows: slice
    cells: int
    position: Tensor
    visible: Tensor
    masks: dict[Sight, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, slot: int, first: int, chains: Sequence[Chain], device: torch.device) -> _Group:
        whole: Any = {"dtype": torch.int64, "device": "cpu"}
        sizes = torch.tensor([len(chain.tokens) for chain in chains], **whole)
        start = torch.tensor([chain.start for chain in chains], **whole).repeat_interleave(sizes)
        chain = torch.arange(len(chains), **whole).repeat_interleave(sizes)
        count, cells = len(chain), max(each.start for each in chains)
        row = torch.arange(count, **whole)
        position = start + row - (sizes.cumsum(0) - sizes)[chain]
        own = (chain[:, None] == chain) & (row <= row[:, None])
        visible = torch.cat([torch.arange(cells, **whole) < start[:, None], own], dim=1)
        return cls(slot, slice(first, first + count), cells, position.to(device), visible.to(device))

    def mask(self, sight: Sight, dtype: torch.dtype) -> Tensor:
        """Additive mask [1, 1, R, L + R] of layers with this sight."""
        if sight not in self.masks:
            visible, position = self.visible, self.position
            if sight.limited:
                seen = torch.cat([torch.arange(self.cells, device=position.device), position])
                visible = visible & (seen >= sight.earliest(position)[:, None])
            hidden = torch.finfo(dtype).min
            self.masks[sight] = torch.zeros(visible.shape, dtype=dtype, device=position.device).masked_fill_(
                ~visible, hidden
            )[None, None]
        return self.masks[sight]


class _Reading(Answering):
    """Read-only cache for one forward: the stored cells, and the forward's own rows, which are not stored."""

    def __init__(self, engine: Engine, groups: Sequence[_Group]) -> None:
        self._cache = engine.cache
        self._groups = groups
        #: id of new keys -> (the keys, the layer that made them): layers without their own keys attend with another's.
        self._layers: dict[int, tuple[Tensor, int]] = {}
        self._last = 0

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Return only the layer's new keys and values; :meth:`attend` gets them and adds the stored ones."""
        self._layers[id(key)], self._last = (key, layer_idx), layer_idx
        return key, value

    def attend(self, query: Tensor, key: Tensor, value: Tensor, how: LayerAttention) -> Tensor:
        """Attend with [1, heads, Q, size] queries; a :class:`specbench.engine.attention.interface.Backend`."""
        _, layer = self._layers.get(id(key), (key, self._last))
        keys, values = self._cache.stored(layer)
        attended = [
            dense_attention(
                query[:, :, group.rows],
                torch.cat([keys[group.slot, None, :, : group.cells], key[:, :, group.rows]], dim=2),
                torch.cat([values[group.slot, None, :, : group.cells], value[:, :, group.rows]], dim=2),
                group.mask(how.sight, query.dtype),
                how,
            )
            for group in self._groups
        ]
        return torch.cat(attended, dim=2).transpose(1, 2)
