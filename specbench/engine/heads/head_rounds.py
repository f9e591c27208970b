"""Rounds of a draft head: the base of what a method's ``prepare`` makes of its head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from specbench.decoding import Marginals, Target
from specbench.engine.heads.head_pass import HeadPass
from specbench.engine.heads.head_rows import HeadRows


class HeadRounds(ABC):
    """Reads what the target computed and drafts after it, for the sequences of a run.

    A subclass writes :meth:`read` and :meth:`draft` over :class:`HeadRows`, see :class:`HeadPass`. It sets what they
    use before ``super().__init__``, which runs both once to learn the shapes of their tensors.

    Args:
        head: its module, a :class:`specbench.models.Head`: ``config``, ``fc`` over the target's features, and
            ``layers`` if it has decoder layers.
        path: drafts on the longest path of a tree.
        rows: rows that :meth:`draft` computes after the text, at most.
        draws: drafts that it draws from distributions, at most.
        scorer: the linear layer that makes its scores, where it is neither the target's nor in ``head``.
        weights: what the record says of the head.
    """

    forwards = 1  # of the head in a round

    def __init__(
        self,
        head: Any,
        target: Target,
        *,
        path: int,
        rows: int,
        draws: int = 0,
        scorer: nn.Module | None = None,
        weights: Mapping[str, str] | None = None,
    ) -> None:
        config, layers = head.config, [*getattr(head, "layers", ())]
        self.head, self.taps, self.weights = head, config.taps, weights or {}
        self.lm_head: Any = target.model.get_output_embeddings()
        shape = config.num_key_value_heads, config.head_dim, config.head_dim
        self._passes = HeadPass(
            target,
            self.read,
            self.draft,
            shapes=dict.fromkeys(range(len(layers)), shape),
            new_rows=1 + path,  # the root included
            draft_rows=max(1, rows),
            features=head.fc.in_features,
            draws=draws,
            modules=[head] if scorer is None else [head, scorer],
            layers=layers,
        )
        self.open, self.close, self.length = self._passes.open, self._passes.close, self._passes.length
        self.hold = self._passes.hold
        self._roots: dict[int, int] = {}
        self.nbytes = self._passes.nbytes + sum(weight.nbytes for weight in head.parameters())

    @abstractmethod
    def read(self, rows: HeadRows) -> Any:
        """The head's work on new rows of a text; what it returns goes to :meth:`draft`."""

    @abstractmethod
    def draft(self, rows: HeadRows, found: Any) -> Sequence[Tensor]:
        """Its work after them: tensors [S, …] for the host, integers or float32."""

    def append(self, slot: int, tokens: Sequence[int], features: Tensor) -> None:
        """Take what the last forward of the target brought.

        Args:
            tokens: n ids, each the one after the token that its features belong to; the last is the next root.
            features: [n, T × H] of the tapped layers.
        """
        self._passes.append(slot, tokens, features)
        self._roots[slot] = tokens[-1]

    def drafted(self, slot: int) -> tuple[int, tuple[Tensor, ...]]:
        """The root of a slot's next tree, and what :meth:`draft` computed there; runs the round if needed."""
        return self._roots[slot], self._passes.draft(slot)

    def marginals(self, slot: int) -> Marginals:
        """Candidates of each depth after a slot's text, of a head whose :meth:`draft` begins with [S, D, K] tokens
        and their log-probabilities over all that it can draft, at temperature 1.
        """
        root, (tokens, logp, *_) = self.drafted(slot)
        return Marginals(root, tokens.tolist(), logp.tolist())
