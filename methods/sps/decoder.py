"""Speculative decoding: a small model drafts the next tokens, one per pass (Leviathan et al. 2023; Chen et al. 2023).

The draft model runs in its own engine (:mod:`.drafter`) and samples with the target's noise for each position: if the
two models agree on the distribution, they agree on the token. With ``verify=block`` it samples with separate random
numbers and passes on its distribution, and the engine verifies the block (Sun et al. 2024).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Literal

from pydantic import field_serializer, model_validator

from specbench import decoding
from specbench.common import SpecbenchError, UsageError
from specbench.decoding import Context, StepResult, Target, TokenTree, confidence_option, option, stop_option
from specbench.methods.sps.drafter import Drafter, can_translate, other_words, same_words
from specbench.methods.sps.translated import TranslatedDrafter
from specbench.models import resolve


class Options(decoding.Options):
    """Options of speculative decoding."""

    draft: str = option("", help="the draft model, as --model takes one: alias, hub id, folder, .gguf, config:NAME")
    draft_tokens: int = option(
        5, "k", help="tokens drafted per step, each in a forward of the draft model", ge=1, le=511
    )
    confidence: float = confidence_option()
    stop: bool = stop_option()
    verify: Literal["noise", "block"] = option(
        "noise",
        help="how sampled drafts are accepted: by the target's noise, or by block verification (not AR's texts)",
    )

    @model_validator(mode="after")
    def _samples_all(self) -> Options:
        if self.verify == "block" and self.confidence:
            raise ValueError("verify=block needs every sampled token, whatever its probability; set confidence=0")
        return self

    @field_serializer("draft")
    def _named(self, draft: str) -> str:
        """The model's name for the record; for a folder only the last part of the path."""
        return resolve(draft).name if draft else ""


class Decoder(decoding.Decoder):
    """Draft with the draft model that all sequences of a run share."""

    def __init__(self, options: Options, context: Context) -> None:
        self._drafter: Drafter = context.shared
        self._vocab_size = context.vocab_size
        self._slot: int | None = None
        self._last = -1

    @staticmethod
    def max_rows(options: Options) -> int:
        return 1 + options.draft_tokens

    @staticmethod
    def own_noise(options: Options) -> bool:
        return options.verify == "block"

    @staticmethod
    def check(options: Options, model: str) -> None:
        if not options.draft:
            raise UsageError("cannot run sps without a draft model; give one with --set sps.draft=MODEL")
        resolve(options.draft)

    @staticmethod
    def prepare(options: Options, target: Target) -> Drafter:
        Decoder.check(options, target.name)

        rows = int(target.model.get_output_embeddings().weight.shape[0])

        def load() -> tuple[Any, Any]:
            draft = target.load(options.draft)
            if not same_words(target.tokenizer, draft, rows) and not can_translate(target.tokenizer, draft):
                raise other_words(target.name, draft, rows)
            try:
                return draft, target.engine(draft.model, Drafter.MAX_ROWS)
            except SpecbenchError as error:
                raise type(error)(f"draft model {draft.spec.name}: {error}") from error

        draft, engine = target.once(("sps", options.draft), load)
        if draft.context and draft.context < target.capacity:
            target.warn(
                f"draft model {draft.spec.name} was trained on {draft.context:,} positions and texts of this run reach "
                f"{target.capacity:,}: beyond that its drafts are poor; choose another draft model or shorter texts"
            )
        how = engine, draft, options.draft_tokens, target.sampling
        if same_words(target.tokenizer, draft, rows):
            return Drafter(*how, rows if options.verify == "block" else 0, options.confidence)
        if options.verify == "block":  # it needs the distribution over the target's tokens
            raise other_words(target.name, draft, rows)
        target.warn(
            f"draft model {draft.spec.name} has another vocabulary than {target.name}: its drafts are passed on as "
            "text, which costs host time and some of their acceptance"
        )
        return TranslatedDrafter(
            *how, confidence=options.confidence, target=target.tokenizer, tokenizer=draft.tokenizer
        )

    @staticmethod
    def weights(shared: Drafter | None) -> Mapping[str, str]:
        return shared.weights if shared else {}

    @staticmethod
    def memory_bytes(shared: Drafter | None) -> int:
        return shared.nbytes if shared else 0

    def begin(self, prompt: Sequence[int]) -> None:
        self._slot = self._drafter.begin(prompt)

    def observe(self, result: StepResult) -> None:
        self._last = result.emitted[-1]
        self._drafter.extend(self._held, result.emitted)

    def draft(self) -> TokenTree:
        drafts, proposal = self._drafter.draft(self._held)
        self.draft_forwards += self._drafter.passes[self._held]
        if proposal:
            return TokenTree.chain([self._last, *drafts], origins="draft-model", proposal=proposal)
        # A draft model with more padding rows than the target could draft a token that the target does not have.
        known = takewhile(lambda token: token < self._vocab_size, drafts)
        return TokenTree.chain([self._last, *known], origins="draft-model")

    def instead(self, tree: TokenTree) -> None:
        self._drafter.skip(self._held)  # it reads the emitted tokens when it drafts again

    def end(self) -> None:
        if self._slot is not None:
            self._drafter.end(self._slot)
            self._slot = None

    @property
    def _held(self) -> int:
        assert self._slot is not None, "before begin() or after end()"
        return self._slot
