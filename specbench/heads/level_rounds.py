"""The head's passes, for all texts at once: one per level, or one for a whole block with a parallel head.

The first pass reads new rows of a text and scores the first level. Each further level is a pass over the W best paths
of the level before; the cache rows of these paths are scratch space after the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.decoding import BUILDERS, Drafting, Knobs, Node, Target, TokenTree
from specbench.engine import HeadRows
from specbench.heads.head_rounds import HeadRounds
from specbench.heads.level_growth import grow_levels
from specbench.heads.levels import Levels, WrittenLevels, chain, written
from specbench.heads.sampled_drafts import SampledDrafts


class LevelRounds(HeadRounds):
    """Rounds of a head for the sequences of a run: S slots, W candidates per path, D levels.

    The head has ``embed_tokens`` and ``lm_head``, where None stands for the target's, and four methods: ``fuse`` turns
    the target's features into its input, ``forward`` runs its layers, ``fed_back`` turns their outputs into the input
    of the drafts under each row, ``scored`` into that of the LM head.

    Args:
        width: W; 1 drafts a chain.
        draws: above temperature 0, sample a chain's tokens from the head's distribution; otherwise they are the best
            tokens.
        nodes: nodes of a written tree, each after its parent, which every round fills; empty is the dynamic tree.
    """

    def __init__(
        self,
        head: Any,
        target: Target,
        *,
        depth: int,
        width: int,
        draws: bool = False,
        nodes: Sequence[Node] = (),
        weights: Mapping[str, str] | None = None,
    ) -> None:
        config = head.config
        self._embed: Any = head.embed_tokens or target.model.get_input_embeddings()
        self._scorer: Any = head.lm_head or head.scorer(target.model.get_output_embeddings())
        self._ids, drafted = head.draft_ids, self._scorer.weight.shape[0]
        self._depth, self._width = depth, min(width, drafted)
        self._parallel = config.mask_token_id is not None
        self._written = WrittenLevels(nodes, head.device) if nodes else None
        if self._written:
            self._width, self.forwards, rows = self._written.width, len(self._written), self._written.rows
        elif self._parallel:
            self.forwards = 1 + min(1, depth - 1)
            self._masks = torch.full(
                (target.slots, depth - 1), config.mask_token_id, dtype=torch.int64, device=head.device
            )
            rows = depth - 1
        else:
            self.forwards = depth
            rows = self._width * (depth - 1)
        drafts = depth if draws else 0
        self._samples = SampledDrafts(target, drafts, drafted, head.device) if draws else None
        super().__init__(head, target, path=depth, rows=rows, draws=drafts, weights=weights)

    def tree(self, slot: int, budget: int) -> TokenTree:
        """The tree after a slot's text; runs the round if it has not run yet."""
        if self._samples is not None:
            self._samples.update()
        if self._width > 1 and self._parallel:
            return BUILDERS["optimal"](self.marginals(slot), budget, Knobs(spine=False))
        root, (tokens, logp, best) = self.drafted(slot)
        if self._written:
            return written(root, tokens.tolist(), logp.tolist(), self._written.parents)
        if self._width == 1:
            deep = budget - 1
            proposal = None if self._samples is None else self._samples.proposal(slot, deep, self._ids)
            return chain(root, tokens.flatten().tolist()[:deep], logp.flatten().tolist()[:deep], proposal)
        return Levels(root, tokens.tolist(), logp.tolist(), best.tolist(), self._width).tree(budget)

    # ------------------------------------------------------------------ the passes

    def _layers(self, rows: HeadRows, before: Tensor) -> Tensor:
        """Outputs [S, n, H] for rows, from the features before each."""

        def attend(layer: int, attention: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return rows.attend(layer, query, key, value, window=attention.sliding_window)

        embedded = self._embed(rows.tokens.long()).to(before.dtype)
        outputs: Tensor = self.head(before, embedded, rows.positions, attend, rows.pieces)
        return outputs

    def read(self, rows: HeadRows) -> Tensor:
        """Run the head over new rows of the text."""
        assert rows.features is not None
        return self._layers(rows, self.head.fuse(rows.features))

    def draft(self, rows: HeadRows, found: Tensor) -> Sequence[Tensor]:
        """Return tokens, log-probabilities, and the indices of the candidates that were extended."""
        last = rows.last(found)
        if self._written:
            return self._ranks(rows, last, self._written)
        return self._block(rows, last) if self._parallel else self._levels(rows, last)

    def _block(self, rows: HeadRows, last: Tensor) -> Sequence[Tensor]:
        """A parallel head's candidates [S, D, W] with log-probabilities: masks after the last row, in one pass."""
        outputs = last
        if self._depth > 1:
            masks = self._masks[: len(last)]
            block = rows.block(masks)
            before = self.head.fuse(self.head.mask_hidden).expand(*masks.shape, -1)
            outputs = torch.cat([last, self._layers(block, before)], dim=1)
        tokens, logp = self._best(rows, outputs, 0)
        return tokens, logp, tokens[:, :0, 0]

    def _levels(self, rows: HeadRows, last: Tensor) -> Sequence[Tensor]:
        """All candidates, in the order of :class:`Levels`: tokens, log-probabilities, indices of the extended ones."""
        width, outputs = self._width, last

        def extend(level: int, tokens: Tensor, path: Tensor | None) -> tuple[Tensor, Tensor]:
            nonlocal rows, outputs
            if path is None:
                above, parents = outputs.expand(-1, width, -1), None
            else:
                above = outputs.gather(1, path[:, :, None].expand(-1, -1, outputs.shape[2]))
                parents = (level - 2) * width + path
            rows = rows.branch(tokens, parents)
            outputs = self._layers(rows, self.head.fed_back(above, rows.pieces))
            return self._best(rows, outputs, level)

        tokens, logp = self._best(rows, last, 0)
        return grow_levels(self._depth, width, tokens[:, 0], logp[:, 0], extend)

    def _ranks(self, rows: HeadRows, outputs: Tensor, nodes: WrittenLevels) -> Sequence[Tensor]:
        """Tokens and log-probabilities of a written tree's nodes; each level's inner nodes are the rows of a pass."""
        every: list[Tensor] = []
        scored: list[Tensor] = []
        for level in nodes:
            if every:
                parents = None if level.parents is None else level.parents.expand(len(outputs), -1)
                rows = rows.branch(every[-1].index_select(1, level.extended), parents)
                above = outputs.index_select(1, level.above)
                outputs = self._layers(rows, self.head.fed_back(above, rows.pieces))
            tokens, logp = self._best(rows, outputs, len(every))
            every.append(tokens.flatten(1).index_select(1, level.nodes))
            scored.append(logp.flatten(1).index_select(1, level.nodes))
        return torch.cat(every, dim=1), torch.cat(scored, dim=1), every[0][:, :0]

    def _best(self, rows: HeadRows, outputs: Tensor, level: int) -> tuple[Tensor, Tensor]:
        """The W best drafts after each row and their log-probabilities, [S, n, W]; or the sampled draft of a chain."""
        return self._chosen(rows, self._scorer(self.head.scored(outputs, rows.pieces)), level)

    def _chosen(self, rows: HeadRows, scores: Tensor, level: int) -> tuple[Tensor, Tensor]:
        """:meth:`_best` from scores [S, n, draft vocabulary]. A chunk of a prompt has no numbers to sample with."""
        samples = self._samples if rows.numbers is not None else None
        logp, found = rows.best(scores, self._width) if samples is None else samples.draw(rows, scores, level)
        return found if self._ids is None else self._ids[found], logp


def level_drafting(
    method: str,
    options: Any,
    target: Target,
    head: Any,
    weights: Mapping[str, str],
    *key: Any,
    rounds: type[LevelRounds] = LevelRounds,
    nodes: Sequence[Node] = (),
) -> Drafting:
    """Return the rounds of a method with :class:`LevelOptions`, which its runs share.

    Args:
        key: further options that distinguish two heads of the same name.
        nodes: a written tree, see :class:`LevelRounds`.
    """
    width = 1 if options.tree == "chain" else options.width
    # A chain with fewer rows than its depth needs no further pass.
    depth = min(options.depth, options.budget - 1)
    draws = options.verify == "block"
    drafts = target.once(
        (method, options.head, *key, depth, width, draws, tuple(nodes)),
        lambda: rounds(head, target, depth=depth, width=width, draws=draws, nodes=nodes, weights=weights),
    )
    return Drafting(drafts, lambda slot: drafts.tree(slot, options.budget), options.confidence)
