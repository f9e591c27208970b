"""Run a draft model in its own engine: several sequential passes per step, for all sequences of a run together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specbench.common import UsageError
from specbench.decoding import COMPUTED, Proposal, StepResult, TokenTree

if TYPE_CHECKING:
    from specbench.engine import Engine, Sampling
    from specbench.models import LoadedModel


class Drafter:
    """Continue the texts of several sequences with a small model.

    The draft model's cache contains a prefix of each text. Rejected tokens are rewound. The first pass of the next step
    reads the emitted tokens that are not in the cache: the target's own token, and after a step that accepted
    every draft also the last draft, which no pass has read yet.

    The first sequence that asks for drafts after a target forward starts the passes for all waiting sequences, so that
    sequences share passes as they share the target's forwards.

    Args:
        engine: the draft model's, with as many slots and cached tokens as the target's, and rows for :data:`MAX_ROWS`.
        draft_tokens: tokens drafted per step, one per pass.
        drawn_over: with block verification, the target's vocabulary size: above temperature 0, drafts are sampled from
            the draft model's distribution with separate random numbers. 0: sample with the target's noise.
        confidence: a sequence drafts no further after a token with a smaller probability, which is left out.
    """

    #: Rows of the largest pass: the last draft and the target's token after it.
    MAX_ROWS = 2

    def __init__(
        self,
        engine: Engine,
        model: LoadedModel,
        draft_tokens: int,
        sampling: Callable[[], Sampling],
        drawn_over: int = 0,
        confidence: float = 0.0,
    ) -> None:
        self.engine = engine
        self._drawn_over = drawn_over
        self._confidence = confidence
        self._vocab_size = model.vocab_size
        self._draft_tokens = draft_tokens
        self._sampling = sampling
        self._warm_for: Sampling | None = None
        self._texts: dict[int, list[int]] = {}  # slot -> prompt and output
        self._waiting: set[int] = set()  # slots whose text has grown since their last draft
        self._drafts: dict[int, list[int]] = {}  # slot -> drafts not yet fetched
        self._proposals: dict[int, Proposal] = {}  # slot -> distributions that the drafts were sampled from
        self.passes: dict[int, int] = {}  # slot -> passes for its last drafts
        self.nbytes = model.spec.weight_bytes + engine.cache.nbytes
        revision = {"revision": model.spec.revision} if model.spec.revision else {}
        self.weights: Mapping[str, str] = {
            "draft": model.spec.name, **revision, "dtype": model.spec.dtype, "fingerprint": model.spec.fingerprint
        }  # fmt: skip

    def begin(self, prompt: Sequence[int]) -> int:
        """Read a prompt; return the slot of its sequence."""
        self._follow()
        slot = self.engine.alloc()
        try:
            self.engine.prefill(slot, self._known(prompt))
        except BaseException:
            self.engine.free(slot)
            raise
        self._texts[slot] = list(prompt)
        return slot

    def extend(self, slot: int, emitted: Sequence[int]) -> None:
        """Take the target's emitted tokens: accepted drafts, then its own token.

        The cache keeps its part of the text except the last token, which is the root of the next tree.
        """
        text = self._texts[slot]
        text += emitted
        self.engine.rewind(slot, min(self.engine.length(slot), len(text) - 1))
        self._waiting.add(slot)

    def skip(self, slot: int) -> None:
        """Make no drafts for the next step; the draft model reads the emitted tokens when it drafts again."""
        self._waiting.discard(slot)
        self.passes[slot] = 0

    def draft(self, slot: int) -> tuple[list[int], Proposal | None]:
        """The draft tokens, and with block verification the distributions that they were sampled from.

        There are fewer tokens near the end of the cache.
        """
        if slot in self._waiting:
            self._follow()
            self._catch_up()
            self._pass_on()
        return self._drafts.pop(slot), self._proposals.pop(slot, None)

    def end(self, slot: int) -> None:
        """Remove a sequence."""
        self.engine.free(slot)
        self._waiting.discard(slot)
        self._drafts.pop(slot, None)
        self._proposals.pop(slot, None)
        del self._texts[slot]

    def _follow(self) -> None:
        """Use the target's sampling settings; before the first request, let the engine prepare for them."""
        sampling = self._sampling().of_drafts
        if self.engine.sampling != sampling:
            self.engine.sampling = sampling
        if self._warm_for != sampling and not self._texts:
            self.engine.prepare(
                self.MAX_ROWS,
                probabilities=self._drawn_over > 0 or self._confidence > 0,
                forced=True,
                context=self.engine.capacity // 2,
            )
            self._warm_for = sampling

    def _catch_up(self) -> None:
        """Read what was emitted while a sequence did not draft, but for as many tokens as a pass reads."""
        for slot in self._waiting:
            unread = self._texts[slot][self.engine.length(slot) :]
            if len(unread) > self.MAX_ROWS:
                self.engine.prefill(slot, self._known(unread[:-1]))

    def _pass_on(self) -> None:
        """Run the passes of a step for every waiting sequence."""
        engine = self.engine
        unread = {slot: self._texts[slot][engine.length(slot) :] for slot in sorted(self._waiting)}
        self._drafts.update((slot, []) for slot in unread)
        self.passes.update(dict.fromkeys(unread, 0))
        drawing = self._drawn_over > 0 and not engine.sampling.greedy
        roots = {slot: len(self._texts[slot]) - 1 for slot in unread}
        drawn = engine.drafts(roots, self._draft_tokens, self._drawn_over) if drawing else None
        for _ in range(self._draft_tokens):
            fits = {slot: self._known(ids) for slot, ids in unread.items() if engine.length(slot) < engine.capacity}
            if not fits:
                break
            for slot in fits:
                self.passes[slot] += 1
            # Tokens that the target has emitted are sent as a chain that is accepted unchecked.
            decided = {slot: [*ids[1:], COMPUTED] for slot, ids in fits.items()}
            trees = {slot: TokenTree.chain(ids) for slot, ids in fits.items()}
            results = engine.step(trees, probabilities=drawing or self._confidence > 0, forced=decided)
            tokens = drawn.draw(results) if drawn else self._confident(results)
            for slot, token in tokens.items():
                self._drafts[slot].append(token)
            unread = {slot: [token] for slot, token in tokens.items()}
        if drawn:
            self._proposals.update((slot, drawn.proposal(slot)) for slot in self._waiting if self._drafts[slot])
        self._waiting.clear()

    def _confident(self, results: Mapping[int, StepResult]) -> dict[int, int]:
        """The draft token of each sequence that is sure enough of it."""
        tokens = {slot: result.emitted[-1] for slot, result in results.items()}
        if not self._confidence:
            return tokens

        def likely(slot: int) -> float:
            probabilities = results[slot].probabilities
            assert probabilities is not None
            return float(probabilities[-1, tokens[slot]])

        return {slot: token for slot, token in tokens.items() if likely(slot) >= self._confidence}

    def _known(self, ids: Sequence[int]) -> list[int]:
        """``ids``, with ids beyond the draft model's vocabulary (from the target's padding rows) replaced."""
        return [token if token < self._vocab_size else 0 for token in ids]


def same_words(tokenizer: Any, draft: LoadedModel, rows: int) -> bool:
    """Whether the draft model's token ids stand for the target's words.

    The tokenizers are compared, not the sizes of the LM heads: models of one family are padded to different sizes
    (Qwen2.5 7B has 128 more rows than 0.5B). Words that a checkpoint added, such as those of a chat template, may
    differ: drafts of them are rejected. Dummy weights have no tokenizer, so their LM heads must have equal sizes.

    ``rows``: rows of the target's LM head.
    """
    mine, its = _words(tokenizer), _words(draft.tokenizer)
    return mine == its and (mine is not None or rows == draft.vocab_size)


def can_translate(tokenizer: Any, draft: LoadedModel) -> bool:
    """Whether text can be passed between the models: both have words."""
    return _words(tokenizer) is not None and _words(draft.tokenizer) is not None


def other_words(name: str, draft: LoadedModel, rows: int) -> UsageError:
    """The error for a draft model that must have the target's vocabulary."""
    return UsageError(
        f"cannot use draft model {draft.spec.name}: it has another vocabulary than {name} ({draft.vocab_size} and "
        f"{rows} tokens); choose one of the target's family"
    )


def _words(tokenizer: Any) -> dict[str, int] | None:
    """Word -> id without added words; None for a tokenizer without words."""
    if not hasattr(tokenizer, "get_vocab"):
        return None
    added = tokenizer.get_added_vocab()
    return {word: at for word, at in tokenizer.get_vocab().items() if word not in added}
