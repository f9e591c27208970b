"""Medusa's heads: a few residual blocks and an LM head each, over the target's last hidden state.

Cai et al. 2024, arXiv:2401.10774, §2.1.1. The target's own LM head predicts the next token from this state; head k
(from 0) predicts the token k + 1 positions after that one. The heads see nothing but this state: they have no KV cache
and do not depend on one another.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import torch
from torch import Tensor, nn

from specbench.common import UsageError
from specbench.heads import Head, HeadFiles
from specbench.methods.medusa.config import WITH_TARGET, HeadConfig, own_name, stored_name


class DraftHead(Head):
    """All heads. The blocks of a head run in their order, where the released code may apply one block several times.

    Shapes: H the target's hidden size, n heads, Vd tokens that can be drafted.
    """

    CONFIG = HeadConfig
    CONVERT = "python -m specbench.heads.convert"

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        hidden = config.hidden_size
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Linear(hidden, hidden, bias=bool(config.bias)) for _ in range(config.blocks))
            for _ in range(config.heads)
        )
        if config.scorer == "own":
            self.lm_heads = nn.ModuleList(nn.Linear(hidden, config.drafted, bias=False) for _ in range(config.heads))
        elif config.scorer == "shared":
            self.lm_head = nn.Linear(hidden, config.drafted, bias=False)
        self.finish()

    @property
    def features(self) -> int:
        return int(self.config.hidden_size)

    def forward(self, states: Tensor, heads: int) -> Tensor:
        """Outputs [..., heads, H] of the first heads from the target's last hidden states [..., H]."""
        found = []
        for head in range(heads):
            rows, blocks = states, self.blocks[head]
            for linear in cast("nn.ModuleList", blocks):
                rows = rows + nn.functional.silu(linear(rows))
            found.append(rows)
        return torch.stack(found, dim=-2)

    def scores(self, outputs: Tensor, scorer: Any) -> Tensor:
        """Logits [..., n, Vd] of :meth:`forward`'s outputs; ``scorer``: :meth:`scorer` of the target's LM head."""
        if self.config.scorer == "own":
            rows = outputs.unbind(-2)
            own = self.lm_heads[: len(rows)]
            return torch.stack([score(row) for score, row in zip(own, rows, strict=True)], dim=-2)
        shared = self.lm_head if self.config.scorer == "shared" else scorer
        found: Tensor = shared(outputs.to(shared.weight.dtype))
        return found

    @classmethod
    def sized(cls, files: HeadFiles, config: HeadConfig, target: Any) -> HeadConfig:
        stored = files.stored()
        shapes = {own_name(name): stored[name].shape for name in cls.wanted(stored)}
        return config.sized(files.name, shapes, 0 if target is None else target.vocab_size)

    @classmethod
    def wanted(cls, stored: Collection[str]) -> Collection[str]:
        return [name for name in stored if name.startswith(WITH_TARGET)] or stored

    @classmethod
    def from_file(cls, name: str, config: HeadConfig, tensors: dict[str, Tensor]) -> dict[str, Any]:
        for old in [*tensors]:
            tensor, own = tensors.pop(old), own_name(old)
            if own in tensors:
                raise UsageError(
                    f"cannot use head {name}: its file has {own} twice, once as {old}; use a complete copy of the head"
                )
            tensors[own] = tensor
        if config.scorer == "shared":  # vLLM reads the first of several LM heads, and only if there is no common one
            several = [tensors.pop(each) for each in sorted(tensors) if each.startswith("lm_heads.")]
            if several:
                tensors.setdefault("lm_head.weight", several[0])
        ids = tensors.pop("token_map", None)
        if ids is not None and not config.whole:
            _cut(name, config, tensors, ids)
        return {}

    def to_file(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """In vLLM's layout; heads that use the target's LM head leave it out, and vLLM cannot run them without it."""
        found = {stored_name(name): tensor for name, tensor in tensors.items() if name != "d2t"}
        ids = self.draft_ids
        return found if ids is None else {**found, "token_map": ids.cpu()}


def _cut(name: str, config: HeadConfig, tensors: dict[str, Tensor], ids: Tensor) -> None:
    """Replace the tokens of ``token_map`` by ``d2t``, and LM heads over all tokens by their rows for these tokens."""
    if ids.dim() == 1 and not ids.is_floating_point():
        low, high = torch.aminmax(ids) if len(ids) else (ids, ids)
        if len(ids.unique()) < len(ids) or not len(ids) or low < 0 or high >= config.vocab_size:
            raise UsageError(
                f"cannot use head {name}: its token_map has a token twice or tokens that the target lacks; use a "
                "complete copy of the head"
            )
        for each, tensor in tensors.items():
            if each.startswith("lm_head") and len(tensor) == config.vocab_size:
                tensors[each] = tensor[ids.long()]
        ids = ids.long() - torch.arange(len(ids), device=ids.device)
    tensors["d2t"] = ids
