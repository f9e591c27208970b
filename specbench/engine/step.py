"""Step: the device side, from the packed trees to the packed outcome, without a host read in between.

The same code runs eagerly, on exact shapes, and under capture, on the shapes of a bucket (DESIGN §4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from specbench.decoding.tree import COMPUTED
from specbench.engine import pack
from specbench.engine.attention.interface import Backend, Calls, Visibility
from specbench.engine.cache import StaticCache
from specbench.engine.ops import Ancestry, Ops
from specbench.engine.pack import Live
from specbench.engine.sampler import Sampling, scores


def decoder_layers(model: Any) -> list[nn.Module]:
    """The elements of the model's lists of as many modules as it has layers."""
    count = model.config.get_text_config().num_hidden_layers
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    return [layer for modules in lists for layer in modules]


@contextmanager
def tapped(layers: Sequence[nn.Module], taps: Sequence[int]) -> Iterator[list[Tensor]]:
    """Outputs [S, rows, hidden size] of the layers ``taps``, in that order, of a forward that runs inside.

    Not by ``output_hidden_states``: transformers answers it with hooks that it never removes, some of them inside of
    the layers, where each costs every later step a call and splits what torch.compile makes of a layer.
    """
    found: dict[int, Tensor] = {}
    outputs: list[Tensor] = []

    def keeper(layer: int) -> Any:
        def keep(_: nn.Module, __: Any, output: Any) -> None:
            found[layer] = output[0] if isinstance(output, tuple) else output

        return keep

    handles = [layers[layer].register_forward_hook(keeper(layer)) for layer in set(taps)]
    try:
        yield outputs
        outputs += [found[layer] for layer in taps]
    finally:
        for handle in handles:
            handle.remove()


MakeBackend = Callable[[Visibility], Backend]
Mark = Callable[[str], None]


def unmarked(phase: str) -> None:
    """The stop-watch of a step that is not traced."""


@dataclass(frozen=True)
class Kind:
    """What a step computes beside its shape; every kind has graphs of its own.

    Attributes:
        sampling: how next tokens are chosen.
        top_k: highest scores of each row to return.
        taps: layers whose outputs are wanted, by index from 0.
        forced: whether next tokens may be put in place of the computed ones.
        attention: name of the backend.
    """

    sampling: Sampling
    top_k: int = 0
    taps: tuple[int, ...] = ()
    forced: bool = False
    attention: str = "reference"


class Program:
    """Runs a model over the rows of token trees.

    Args:
        model: a transformers causal LM whose attention is the engine's.
        ops: device work beside its layers.
    """

    def __init__(self, model: Any, ops: Ops) -> None:
        self._model = model
        self._layers = decoder_layers(model)
        self.ops = ops

    @torch.inference_mode()
    def run(
        self,
        packed: Tensor,
        rows: int,
        kind: Kind,
        cache: StaticCache,
        backend: MakeBackend,
        *,
        slots: slice,
        extent: int | None,
        head: Tensor | None = None,
        live: Live | None = None,
        commit: bool = True,
        mark: Mark = unmarked,
    ) -> tuple[Tensor, Tensor | None]:
        """One forward over the trees of S slots.

        Args:
            packed: int32 [S, pack.width_in(rows)] on the device.
            rows: Q.
            kind: what to compute.
            cache: holds the slots.
            backend: makes the attention of this forward.
            slots: the S slots, contiguous.
            extent: cells visible to attention, from 0; None is all, as capture needs it.
            head: int64 [1, H] prompt tokens before the root, in a prefill.
            live: rows that the layers see, not together with a head; None is all.
            commit: move the accepted rows' KV; without it the caller does.
            mark: told where the time goes.

        Returns:
            (outcome, hidden): int32 [S, pack.width_out(rows, kind.top_k)], and where layers are tapped [S, head + Q,
            taps × hidden size], of the head's rows, then of the row at each depth of the path.
        """
        fields = pack.split(packed, rows)
        ancestry = self.ops.ancestry(fields.parents)
        logits, hidden, lengths = self._forward(
            fields, ancestry, cache, backend, slots, extent, head, mark, live=live, taps=kind.taps
        )
        positions = lengths[:, None] + ancestry.depth
        next_token, top = self._choose(logits, (live.pack(positions) if live else positions) + 1, kind)
        if live:
            next_token, hidden = live.unpack(next_token), None if hidden is None else live.unpack(hidden)
            top = None if top is None else (live.unpack(top[0]), live.unpack(top[1]))
        if kind.forced:
            next_token = torch.where(fields.forced == COMPUTED, next_token, fields.forced)
        mark("forward")
        count, path, bonus = self.ops.accept(fields.tokens, fields.parents, fields.accept, ancestry, next_token)
        if commit:
            self.ops.commit(cache.of(slots), lengths, count, path)
        if hidden is not None:
            hidden = _along(hidden, path)
        return pack.join(next_token, path, count, bonus, top), hidden

    def logits(
        self,
        packed: Tensor,
        rows: int,
        cache: Any,
        backend: MakeBackend,
        *,
        slots: slice,
        extent: int | None,
        head: Tensor | None = None,
        calls: Calls | None = None,
    ) -> Tensor:
        """Logits [S, Q, V] of the tree rows; nothing chosen and nothing committed. For the checks at load time."""
        fields = pack.split(packed, rows)
        ancestry = self.ops.ancestry(fields.parents)
        return self._forward(fields, ancestry, cache, backend, slots, extent, head, unmarked, calls)[0]

    @torch.inference_mode()
    def _forward(
        self,
        fields: pack.Fields,
        ancestry: Ancestry,
        cache: Any,
        backend: MakeBackend,
        slots: slice,
        extent: int | None,
        head: Tensor | None,
        mark: Mark,
        calls: Calls | None = None,
        live: Live | None = None,
        taps: tuple[int, ...] = (),
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """(logits [S, Q, V], tapped layers [S, head + Q, taps × hidden size], cache lengths [S] before the root).

        With live rows both are [1, N, …].
        """
        tokens, lengths, start = fields.tokens.long(), fields.lengths, fields.lengths
        if head is not None:
            tokens, ancestry, lengths = _behind(head, tokens, ancestry, lengths)
        positions = start[:, None] + ancestry.depth
        cache.aim(slots, start, extent, self.ops, live)
        step = backend(Visibility(start, ancestry.depth, ancestry.rows, extent))
        kept = fields.tokens.shape[1]
        if live:
            tokens, positions, step, kept = live.pack(tokens), live.pack(positions), live.around(step), len(live.index)
        mark("build")
        with tapped(self._layers, taps) as outputs:
            logits = self._model(
                input_ids=tokens,
                position_ids=positions.long(),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=kept,
                step=step,
                calls=calls,
            ).logits
        return logits, torch.cat(outputs, dim=-1) if taps else None, lengths

    def _choose(self, logits: Tensor, positions: Tensor, kind: Kind) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Next token [S, Q] of every row, and (scores, ids) [S, Q, k] where they are wanted."""
        if not kind.top_k:
            return self.ops.choose(logits, positions, kind.sampling), None
        chosen = scores(logits, positions, kind.sampling)
        best, ids = chosen.topk(kind.top_k, dim=-1)
        return chosen.argmax(-1), (best, ids)


def _along(hidden: Tensor, path: Tensor) -> Tensor:
    """Tree rows in the order of their path [S, Q], behind those of a head that are not the tree's."""
    before = hidden.shape[1] - path.shape[1]
    rows = before + path.long()[:, :, None].expand(-1, -1, hidden.shape[2])
    return torch.cat([hidden[:, :before], hidden.gather(1, rows)], dim=1)


def _behind(head: Tensor, tokens: Tensor, ancestry: Ancestry, lengths: Tensor) -> tuple[Tensor, Ancestry, Tensor]:
    """A prompt's rows before those of the tree that hangs under its end; (tokens, ancestry, length at the root)."""
    before, rows = head.shape[1], tokens.shape[1]
    # Not by pointer jumping over a thousand rows: a prompt is a chain, and all of it is before the tree.
    reach = torch.ones(1, before + rows, before + rows, dtype=torch.bool, device=head.device).tril_()
    reach[:, before:, before:] = ancestry.rows
    depth = torch.cat([torch.arange(before, device=head.device)[None], before + ancestry.depth], dim=1)
    return torch.cat([head, tokens], dim=1), Ancestry(depth, reach), lengths + before
