"""The head's passes, for all texts at once: one per level, or one for a whole block with a parallel head.

The first pass reads new rows of a text and scores the first level. Each further level is a pass over the W best paths
of the level before; the cache rows of these paths are scratch space after the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.decoding import BUILDERS, Drafting, Knobs, Node, Proposal, Target, TokenTree
from specbench.engine import HeadRows
from specbench.heads.head_rounds import HeadRounds
from specbench.heads.levels import Levels, WrittenLevels, chain, written


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
        # Distribution and temperature of each slot's sampled tokens, in fixed buffers because a round is captured.
        self._sampling, self._draws = target.sampling, draws
        drafts = depth if draws else 0
        self._drawn_from = torch.zeros(target.slots, drafts, drafted, dtype=torch.float32, device=head.device)
        self._temperature = torch.zeros((), dtype=torch.float32, device=head.device)
        super().__init__(head, target, path=depth, rows=rows, draws=drafts, weights=weights)

    def tree(self, slot: int, budget: int) -> TokenTree:
        """The tree after a slot's text; runs the round if it has not run yet."""
        temperature = self._sampling().temperature if self._draws else 0.0
        if self._draws:
            self._temperature.fill_(temperature)
        if self._width > 1 and self._parallel:
            return BUILDERS["optimal"](self.marginals(slot), budget, Knobs(spine=False))
        root, (tokens, logp, best) = self.drafted(slot)
        if self._written:
            return written(root, tokens.tolist(), logp.tolist(), self._written.parents)
        if self._width == 1:
            deep = budget - 1
            proposal = Proposal(self._drawn_from[slot, :deep].clone(), self._ids) if temperature else None
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
        logp, found = self._best(rows, outputs)
        return self._known(found), logp, found[:, :0, 0]

    def _drawn(self, rows: HeadRows, outputs: Tensor, place: int) -> tuple[Tensor, Tensor]:
        """Like :meth:`_best` for one candidate, sampled at the target's temperature; the best one when greedy."""
        scores = self._scores(rows, outputs)[:, 0].float()
        greedy = self._temperature == 0
        probabilities = (scores / torch.where(greedy, 1.0, self._temperature)).softmax(-1)
        self._drawn_from[: len(probabilities), place] = probabilities
        found = torch.where(greedy, scores.argmax(-1), rows.drawn(probabilities, place))[:, None, None]
        return scores.log_softmax(-1)[:, None].gather(-1, found), found

    def _levels(self, rows: HeadRows, last: Tensor) -> Sequence[Tensor]:
        """All candidates, in the order of :class:`Levels`: tokens, log-probabilities, indices of the extended ones."""
        width = self._width
        best_of = self._drawn if self._draws else lambda rows, outputs, level: self._best(rows, outputs)
        logp, found = best_of(rows, last, 0)
        tokens = self._known(found)[:, 0]
        total = logp[:, 0]
        every, scored, extended = [tokens], [total], []
        above, parents = last.expand(-1, width, -1), None  # input and parents of the rows of the next pass
        for level in range(1, self._depth):
            rows = rows.branch(tokens, parents)
            outputs = self._layers(rows, self.head.fed_back(above, rows.pieces))
            logp, found = best_of(rows, outputs, level)
            candidates = self._known(found).flatten(1)
            every.append(candidates)
            scored.append(logp.flatten(1))
            if level + 1 < self._depth:
                total, best = (total[:, :, None] + logp).flatten(1).topk(width)
                extended.append(best)
                tokens, path = candidates.gather(1, best), best // width
                above = outputs.gather(1, path[:, :, None].expand(-1, -1, outputs.shape[2]))
                parents = (level - 1) * width + path
        none = tokens[:, :0]
        return torch.cat(every, dim=1), torch.cat(scored, dim=1), torch.cat(extended, dim=1) if extended else none

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
            logp, found = self._best(rows, outputs)
            every.append(self._known(found).flatten(1).index_select(1, level.nodes))
            scored.append(logp.flatten(1).index_select(1, level.nodes))
        return torch.cat(every, dim=1), torch.cat(scored, dim=1), every[0][:, :0]

    def _best(self, rows: HeadRows, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The W best drafts after each row: log-probabilities over the draft vocabulary, and indices, [S, n, W]."""
        return rows.best(self._scores(rows, outputs), self._width)

    def _scores(self, rows: HeadRows, outputs: Tensor) -> Tensor:
        """Scores [S, n, draft vocabulary] of the token after each row."""
        found: Tensor = self._scorer(self.head.scored(outputs, rows.pieces))
        return found

    def _known(self, found: Tensor) -> Tensor:
        """The target's ids for the head's own token ids."""
        return found if self._ids is None else self._ids[found]


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
    return Drafting(drafts, lambda slot: drafts.tree(slot, options.budget))
