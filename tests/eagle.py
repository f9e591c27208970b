"""An autoregressive draft head of EAGLE-3's shape, as a method drafts with it and written down without a cache.

One decoder layer reads, beside the embedding of a token, the fused outputs of three layers of the target for the token
before it (Li et al. 2025, arXiv:2503.01840). Drafts have no features: the layer's own output takes their place. The
weights are random, so what it drafts is right by chance only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

from specbench import decoding
from specbench.decoding import Context, StepResult, Target, TokenTree
from specbench.engine import HeadPass, HeadRows

TAPS = (0, 1, 3)
WIDTH, SECOND = 3, 4  # rows of the two tree passes
DEPTH = 3  # of the tree: what the second pass says comes behind its rows

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class EagleHead(nn.Module):
    """Its layer; embedding and LM head are the target's."""

    def __init__(self, model: Any, seed: int = 0) -> None:
        super().__init__()
        config, hidden, size = model.config, model.config.hidden_size, model.config.head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.size = size
        self.fc = nn.Linear(len(TAPS) * hidden, hidden, bias=False)
        self.input_layernorm, self.hidden_norm = LlamaRMSNorm(hidden), LlamaRMSNorm(hidden)
        self.q_proj = nn.Linear(2 * hidden, heads * size, bias=False)
        self.k_proj = nn.Linear(2 * hidden, kv_heads * size, bias=False)
        self.v_proj = nn.Linear(2 * hidden, kv_heads * size, bias=False)
        self.o_proj = nn.Linear(heads * size, hidden, bias=False)
        self.post_attention_layernorm, self.norm = LlamaRMSNorm(hidden), LlamaRMSNorm(hidden)
        self.mlp = LlamaMLP(config)
        self.rotary_emb = LlamaRotaryEmbedding(config)
        self.borrowed = model.get_input_embeddings(), model.get_output_embeddings()  # a tuple: not its parameters
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(1 + 0.3 * noise if parameter.dim() == 1 else 0.3 * noise)
        self.to(model.dtype).to(model.device).requires_grad_(False)

    def forward(self, tokens: Tensor, before: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Outputs [S, n, H] for tokens [S, n], from what comes before each: fused features, or the layer's outputs."""
        inner = torch.cat([self.input_layernorm(self.borrowed[0](tokens)), self.hidden_norm(before)], dim=-1)
        query, key, value = (
            projection(inner).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = apply_rotary_pos_emb(query, key, *self.rotary_emb(inner, positions))
        rows = before + self.o_proj(attend(query, key, value).flatten(2))
        out: Tensor = rows + self.mlp(self.post_attention_layernorm(rows))
        return out

    def logp(self, outputs: Tensor) -> Tensor:
        """Log-probabilities [S, n, V] of the token behind each row."""
        found: Tensor = self.borrowed[1](self.norm(outputs)).log_softmax(-1)
        return found

    @torch.inference_mode()
    def uncached(self, features: Tensor, tokens: Sequence[int], drafts: Sequence[int]) -> Tensor:
        """:meth:`logp` [V] behind a text and drafts, everything computed from the text's first row on.

        Args:
            features: [n, T × H].
            tokens: n, each the one behind the token that its features are of.
            drafts: a path of the tree.
        """

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            out = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
            return out.transpose(1, 2)

        before = self.fc(features)[None]
        for upto in range(len(drafts) + 1):
            text = torch.tensor([[*tokens, *drafts[:upto]]], device=features.device)
            out = self(text, before, torch.arange(text.shape[1], device=features.device)[None], attend)
            before = torch.cat([before, out[:, -1:]], dim=1)
        return self.logp(out[:, -1:])[0, 0]


class EagleDrafts:
    """Its rounds: new rows say the first candidates; a pass over these the second, a pass over these the third."""

    def __init__(self, head: EagleHead, target: Target) -> None:
        config = target.model.config
        self.head = head
        self.passes = HeadPass(
            target, self._read, self._draft,
            shapes={0: (config.num_key_value_heads, head.size, head.size)},
            new_rows=1 + DEPTH, draft_rows=WIDTH + SECOND, features=head.fc.in_features, modules=[head],
        )  # fmt: skip

    def _layer(self, rows: HeadRows, before: Tensor) -> Tensor:
        return self.head(rows.tokens, before, rows.positions, lambda *qkv: rows.attend(0, *qkv))

    def _read(self, rows: HeadRows) -> Tensor:
        assert rows.features is not None
        return self._layer(rows, self.head.fc(rows.features))

    def _draft(self, rows: HeadRows, outputs: Tensor) -> Sequence[Tensor]:
        last = rows.last(outputs)
        behind_text = self.head.logp(last)
        best, ids = behind_text[:, 0].topk(WIDTH)
        first = rows.branch(ids)
        outputs = self._layer(first, last.expand(-1, WIDTH, -1))
        behind_first = self.head.logp(outputs)
        # The most probable paths of two tokens, so which rows they hang under is known on the device alone.
        _, at = (best[:, :, None] + behind_first).flatten(1).topk(SECOND)
        vocab = behind_first.shape[-1]
        parents, deeper = at // vocab, at % vocab
        second = first.branch(deeper, parents)
        outputs = self._layer(second, outputs.gather(1, parents[:, :, None].expand(-1, -1, outputs.shape[2])))
        behind_second = self.head.logp(outputs)
        said = torch.cat([behind_text, behind_first, behind_second], dim=1)
        return ids, deeper, parents, behind_second.argmax(-1), said


@dataclass(frozen=True)
class Round:
    """What a head was told and what it said.

    Attributes:
        features: of the text.
        tokens: behind each of them.
        paths: drafts before each row, the text's last row first.
        said: log-probabilities [1 + rows, V] behind each.
    """

    features: Tensor
    tokens: list[int]
    paths: list[list[int]]
    said: Tensor


class EagleDecoder(decoding.Decoder):
    """Tells the head what the target computed, and drafts the tree that it grows."""

    rounds: list[Round] = []  # noqa: RUF012 -- emptied and read by the tests

    def __init__(self, options: Any, context: Context) -> None:
        self._passes: HeadPass = context.shared.passes
        self._slot = -1
        self._unread: list[int] = []
        self._tokens: list[int] = []
        self._features: list[Tensor] = []

    @staticmethod
    def max_rows(options: Any) -> int:
        return 1 + WIDTH + 2 * SECOND

    @staticmethod
    def prepare(options: Any, target: Target) -> EagleDrafts:
        return EagleDrafts(EagleHead(target.model), target)

    @staticmethod
    def taps(options: Any, shared: Any) -> tuple[int, ...]:
        return TAPS

    def begin(self, prompt: Sequence[int]) -> None:
        self._slot = self._passes.open()
        self._unread = list(prompt[1:])

    def observe(self, result: StepResult) -> None:
        assert result.hidden is not None
        tokens = self._unread + result.emitted
        self._unread = []
        self._passes.append(self._slot, tokens, result.hidden)
        self._tokens += tokens
        self._features.append(result.hidden.clone())

    def draft(self) -> TokenTree:
        self.draft_forwards += 1
        ids, deeper, parents, leaves, said = self._passes.draft(self._slot)
        first = [[token] for token in ids.tolist()]
        second = [[*first[at], token] for at, token in zip(parents.tolist(), deeper.tolist(), strict=True)]
        self.rounds.append(Round(torch.cat(self._features), [*self._tokens], [[], *first, *second], said))
        tokens = [self._tokens[-1], *ids.tolist(), *deeper.tolist(), *leaves.tolist()]
        above = [-1, *[0] * WIDTH, *(1 + parents).tolist(), *range(1 + WIDTH, 1 + WIDTH + SECOND)]
        return TokenTree(tokens, above, origins="head")

    def end(self) -> None:
        self._passes.close(self._slot)
