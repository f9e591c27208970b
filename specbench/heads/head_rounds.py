"""Base class for a method's drafting rounds with a draft head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from specbench.decoding import Marginals, Target
from specbench.engine import HeadPass, HeadRows


class HeadRounds(ABC):
    """Read the target's results and draft after them, for the sequences of a run.

    A subclass implements :meth:`read` and :meth:`draft` over :class:`HeadRows`, see :class:`HeadPass`. It sets the
    attributes they need before ``super().__init__``, which runs both once to learn the shapes of their tensors.

    Args:
        head: the head's module, a :class:`specbench.heads.Head`.
        path: draft tokens on the longest path of a tree.
        rows: most rows that :meth:`draft` computes after the text.
        draws: most draft tokens that are sampled from distributions.
        scorer: the linear layer that computes the head's scores, if it is neither the target's nor in ``head``.
        weights: description of the head for the run's record.
    """

    forwards = 1  # forwards of the head in a round

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
        self.head, self.taps, self.weights = head, head.config.taps, weights or {}
        self.lm_head: Any = target.model.get_output_embeddings()
        self._passes = HeadPass(
            target,
            self.read,
            self.draft,
            shapes=head.shapes(),
            heads=head.config.num_attention_heads,
            new_rows=1 + path,  # the root included
            draft_rows=max(1, rows),
            features=head.features,
            draws=draws,
            modules=[head] if scorer is None else [head, scorer],
            layers=[*getattr(head, "layers", ())],
        )
        self.open, self.close, self.length = self._passes.open, self._passes.close, self._passes.length
        self.hold = self._passes.hold
        self._roots: dict[int, int] = {}
        self.nbytes = self._passes.nbytes + sum(weight.nbytes for weight in head.parameters())

    @abstractmethod
    def read(self, rows: HeadRows) -> Any:
        """Run the head on new rows of a text; the result is passed to :meth:`draft`."""

    @abstractmethod
    def draft(self, rows: HeadRows, found: Any) -> Sequence[Tensor]:
        """Draft after the new rows; return tensors [S, …] for the host, integers or float32."""

    def append(self, slot: int, tokens: Sequence[int], features: Tensor) -> None:
        """Add the results of the target's last forward to a slot.

        Args:
            tokens: n ids, each the token after the one that its features belong to; the last is the next root.
            features: [n, T × H], hidden states of the T tapped layers.
        """
        self._passes.append(slot, tokens, features)
        self._roots[slot] = tokens[-1]

    def drafted(self, slot: int) -> tuple[int, tuple[Tensor, ...]]:
        """Return the root of a slot's next tree and the results of :meth:`draft`; run the round if it has not run."""
        return self._roots[slot], self._passes.draft(slot)

    def marginals(self, slot: int) -> Marginals:
        """Return candidates for each depth after a slot's text.

        The first results of :meth:`draft` must be tokens [S, D, K] and their log-probabilities over the head's
        vocabulary, at temperature 1.
        """
        root, (tokens, logp, *_) = self.drafted(slot)
        return Marginals(root, tokens.tolist(), logp.tolist())
