"""A loaded model: prompts to token ids and back, by its own tokenizer and chat template."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from specbench.common import Prompt, UsageError, one_line
from specbench.models import chat, control
from specbench.results import ModelSpec

# A text of so many letters for each position of a model is tokenised in parts: it will hardly fit.
_LETTERS = 16
_MOST_POSITIONS = 1 << 20  # of a model that does not say


@dataclass(frozen=True)
class LoadedModel:
    """A model ready for the engine, with everything a run records about it.

    Attributes:
        stop_ids: every id that ends an answer, from generation config, model config and tokenizer.
        pad_id: a token id that stands for nothing.
        context: positions the model was made for; None when it does not say.
        now: the local time that its chat template is given where it asks: that of the load, in every text.
        doubles: control tokens of which one was taken out, with in how many texts so far.
    """

    model: Any
    tokenizer: Any
    stop_ids: frozenset[int]
    pad_id: int
    context: int | None
    spec: ModelSpec
    now: datetime = field(default_factory=datetime.now)
    doubles: Counter[int] = field(default_factory=Counter, compare=False)

    @property
    def vocab_size(self) -> int:
        """Token ids are below this: the rows of the LM head, which may exceed the tokenizer's."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def has_chat_template(self) -> bool:
        return bool(getattr(self.tokenizer, "chat_template", None))

    @property
    def asks_time(self) -> bool:
        """Whether its chat template may write the time into a prompt."""
        return chat.asks_time(self.tokenizer)

    def at(self, now: datetime) -> LoadedModel:
        """The same model, whose chat template is given that time."""
        return replace(self, now=now, doubles=Counter())

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """See :func:`specbench.models.control.control_ids`."""
        return control.control_ids(self.tokenizer)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt; a chat prompt goes through the model's own template and ends with its prefill.

        Of two equal control tokens in a row one is taken out, unless the template means both.

        Raises:
            UsageError: the template refuses the turns or the tokenizer the text, no token comes of them, or they do not
                fit the model.
        """
        if not prompt.chat:
            return self._single(self._ids(prompt, prompt.text), dict)
        turns = [{"role": role, "content": text} for role, text in (*prompt.history, ("user", prompt.text))]
        try:
            rendered = chat.render(self.tokenizer, turns, self.now, add_generation_prompt=True)
        # No system prompts, or strict alternation: the template's own rules. Beside its own errors a template that is
        # a stranger's raises whatever Python makes of its expressions.
        except chat.TemplateFault as fault:
            raise UsageError(
                f"prompt {prompt.id} does not go through the chat template of {self.spec.name}: {fault}; "
                "change its turns or choose another model"
            ) from fault

        def intended() -> dict[int, int]:
            """Runs that the template writes by itself, around texts without control tokens."""
            try:
                own = chat.render(
                    self.tokenizer, [{**turn, "content": "x"} for turn in turns], self.now, add_generation_prompt=True
                )
            except chat.TemplateFault:
                return {}
            return control.longest_runs(self._ids(prompt, own, add_special_tokens=False), self.control_ids)

        ids = self._ids(prompt, rendered + prompt.prefill, add_special_tokens=False)
        return self._single(ids, intended)

    def _single(self, ids: Sequence[int], intended: Callable[[], Mapping[int, int]]) -> list[int]:
        kept, taken = control.without_doubles(ids, self.control_ids, intended)
        self.doubles.update({*taken})
        return kept

    def write_chat(self, turns: Sequence[Mapping[str, str]], **how: bool) -> str:
        """Turns of role and content as one text, by the model's own template.

        Args:
            how: ``add_generation_prompt`` or ``continue_final_message``, as in transformers.
        """
        try:
            return chat.render(self.tokenizer, turns, self.now, **how)
        except chat.TemplateFault as fault:
            raise UsageError(
                f"a conversation does not go through the chat template of {self.spec.name}: {fault}; "
                "change its turns or choose another model"
            ) from fault

    def _ids(self, prompt: Prompt, text: str, **how: bool) -> list[int]:
        """Token ids of a text. Of one that is far too long only a part is tokenised: a library that nothing stops takes
        minutes for what cannot be used.
        """
        most = self.context or _MOST_POSITIONS
        size = _LETTERS * most
        while len(text) > size:
            if len(self._tokenised(prompt, text[:size], **how)) > most:
                raise UsageError(
                    f"prompt {one_line(prompt.id, 80)} has {len(text):,} letters, of which the first {size:,} are more "
                    f"tokens than the {most} that {self.spec.name} takes in all; leave the prompt out"
                )
            size *= _LETTERS
        return self._tokenised(prompt, text, **how)

    def _tokenised(self, prompt: Prompt, text: str, **how: bool) -> list[int]:
        try:
            ids = list(self.tokenizer(text, **how)["input_ids"])
            largest = max(ids, default=0)
        except BaseException as error:  # settings that nobody looked at when it was loaded
            if not from_files(error):
                raise
            raise UsageError(
                f"prompt {prompt.id} does not go through the tokenizer of {self.spec.name}: "
                f"{one_line(str(error)) or type(error).__name__}; take a whole copy of the model"
            ) from error
        if not ids:
            means = "chat template and tokenizer" if prompt.chat else "tokenizer"
            raise UsageError(
                f"cannot ask prompt {prompt.id}: no token comes of it by the {means} of {self.spec.name}; give it "
                "a text, or choose another model"
            )
        if largest >= self.vocab_size:
            raise UsageError(
                f"prompt {prompt.id} has token {largest}, and {self.spec.name} {self.vocab_size} tokens: the tokenizer "
                "is of another model; take a whole copy of this one"
            )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens dropped."""
        try:
            return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
        except BaseException as error:
            if not from_files(error):
                raise
            raise UsageError(
                f"the tokenizer of {self.spec.name} makes no text of its tokens: "
                f"{one_line(str(error)) or type(error).__name__}; take a whole copy of the model"
            ) from error


def from_files(error: BaseException) -> bool:
    """Whether files can be at fault; a Rust library's panic, too, which Python does not count among its exceptions."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


class ByteTokenizer:
    """UTF-8 bytes as token ids, for dummy weights, whose text means nothing anyway."""

    chat_template = None
    eos_token_id = None
    pad_token_id = None

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")
