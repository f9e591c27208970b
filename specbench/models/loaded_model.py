"""Turn prompts into token ids and back with a loaded model's own tokenizer and chat template."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from typing import Any

from specbench.common import Prompt, UsageError, one_line
from specbench.models import chat, control
from specbench.models.message_check import check_messages
from specbench.models.template_args import check_template_args
from specbench.results import ModelSpec

# A text with more characters than this per position of the context will hardly fit, so it is tokenised in parts.
_LETTERS = 16
_MOST_POSITIONS = 1 << 20  # assumed context of a model whose configuration names none


@dataclass(frozen=True)
class LoadedModel:
    """A model ready for the engine, with everything that a run records about it.

    Attributes:
        stop_ids: every id that ends an answer, from generation config, model config and tokenizer.
        pad_id: token id for padding.
        context: number of positions of the model; None if its configuration does not name it.
        now: local time for chat templates that write it: the time of loading, for all texts.
        template_args: further arguments of the chat template.
        doubles: control tokens that were removed as duplicates -> number of such texts so far.
    """

    model: Any
    tokenizer: Any
    stop_ids: frozenset[int]
    pad_id: int
    context: int | None
    spec: ModelSpec
    now: datetime = field(default_factory=datetime.now)
    doubles: Counter[int] = field(default_factory=Counter, compare=False)
    template_args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def vocab_size(self) -> int:
        """Rows of the LM head, which may be more than the tokenizer's tokens; all token ids are smaller."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    def mask_token(self, chosen: int | None = None) -> int:
        """Return the id of the token that masks others: ``chosen``, or the model's own (:func:`.control.mask_token`).

        Raises UsageError if the model has no such token, or if it ends answers.
        """
        mask = control.mask_token(self.model.config, self.tokenizer) if chosen is None else chosen
        if 0 <= mask < self.vocab_size and mask not in self.stop_ids:
            return mask
        why = "it ends answers" if mask in self.stop_ids else f"{self.spec.name} has {self.vocab_size} tokens"
        raise UsageError(f"cannot mask with token {mask}: {why}; set mask to the id of a token that texts do not use")

    @property
    def has_chat_template(self) -> bool:
        return bool(getattr(self.tokenizer, "chat_template", None))

    @property
    def asks_time(self) -> bool:
        """Whether the chat template may write the time into a prompt."""
        return chat.asks_time(self.tokenizer)

    def at(self, now: datetime) -> LoadedModel:
        """Return the same model with another time for its chat template."""
        return replace(self, now=now, doubles=Counter())

    def with_template_args(self, args: Mapping[str, Any]) -> LoadedModel:
        """Return the same model with arguments for its chat template, which are recorded.

        Raises:
            UsageError: the model has no chat template, or one that does not use an argument.
        """
        template = getattr(self.tokenizer, "chat_template", None)
        check_template_args(args, None if template is None else str(template), self.spec.name)
        spec = self.spec.model_copy(update={"template_args": dict(args)})
        return replace(self, template_args=dict(args), spec=spec)

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """See :func:`specbench.models.control.control_ids`."""
        return control.control_ids(self.tokenizer)

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a prompt; a chat prompt goes through the model's template and ends with its prefill.

        A control token that directly follows an equal one is removed, unless the template itself writes both.

        Raises:
            UsageError: the chat template or tokenizer fails, or the prompt has no tokens or does not fit the model.
        """
        if not prompt.chat:
            return self._single(self._ids(prompt, prompt.text), dict)
        turns: list[Mapping[str, Any]] = [*prompt.messages] or [
            {"role": role, "content": text} for role, text in (*prompt.history, ("user", prompt.text))
        ]
        how: dict[str, Any] = {"add_generation_prompt": True}
        if prompt.tools:
            how["tools"] = [*prompt.tools]
        if prompt.messages or prompt.tools:
            check_messages(prompt, turns, partial(self._rendered, add_generation_prompt=True), self.spec.name)
        try:
            rendered = self._rendered(turns, **how)
        # A template may refuse system prompts or turns that do not alternate; a broken one may raise any Python error.
        except chat.TemplateFault as fault:
            raise UsageError(
                f"cannot render prompt {prompt.id} with the chat template of {self.spec.name}: {fault}; "
                "change its turns or choose another model"
            ) from fault

        def intended() -> dict[int, int]:
            """Return the runs of control tokens that the template writes around turns without such tokens."""
            try:
                own = self._rendered([{**turn, "content": "x"} for turn in turns], **how)
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
        """Render turns of role and content with the model's chat template.

        Args:
            how: ``add_generation_prompt`` or ``continue_final_message``, as in transformers.
        """
        try:
            return self._rendered(turns, **how)
        except chat.TemplateFault as fault:
            raise UsageError(
                f"cannot render a conversation with the chat template of {self.spec.name}: {fault}; change its turns "
                "or choose another model"
            ) from fault

    def _rendered(self, turns: Sequence[Mapping[str, Any]], **how: Any) -> str:
        return chat.render(self.tokenizer, turns, self.now, **{**self.template_args, **how})

    def _ids(self, prompt: Prompt, text: str, **how: bool) -> list[int]:
        """Return the token ids of a text.

        A text that is far too long is only tokenised in part: the library would take minutes and cannot be interrupted.
        """
        most = self.context or _MOST_POSITIONS
        size = _LETTERS * most
        while len(text) > size:
            if len(self._tokenised(prompt, text[:size], **how)) > most:
                raise UsageError(
                    f"cannot use prompt {one_line(prompt.id, 80)}: the first {size:,} of its {len(text):,} characters "
                    f"have more tokens than the {most} of the context of {self.spec.name}; remove the prompt"
                )
            size *= _LETTERS
        return self._tokenised(prompt, text, **how)

    def _tokenised(self, prompt: Prompt, text: str, **how: bool) -> list[int]:
        try:
            ids = list(self.tokenizer(text, **how)["input_ids"])
            largest = max(ids, default=0)
        except BaseException as error:  # loading a tokenizer does not check all its settings
            if not from_files(error):
                raise
            raise UsageError(
                f"cannot tokenise prompt {prompt.id} with the tokenizer of {self.spec.name}: "
                f"{one_line(str(error)) or type(error).__name__}; use a complete copy of the model"
            ) from error
        if not ids:
            means = "chat template and tokenizer" if prompt.chat else "tokenizer"
            raise UsageError(
                f"cannot use prompt {prompt.id}: the {means} of {self.spec.name} made no tokens of it; give it a text, "
                "or choose another model"
            )
        if largest >= self.vocab_size:
            raise UsageError(
                f"cannot use prompt {prompt.id}: it has token id {largest} and {self.spec.name} has {self.vocab_size} "
                "tokens, so the tokenizer belongs to another model; use a complete copy of this one"
            )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        try:
            return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
        except BaseException as error:
            if not from_files(error):
                raise
            raise UsageError(
                f"cannot decode tokens with the tokenizer of {self.spec.name}: "
                f"{one_line(str(error)) or type(error).__name__}; use a complete copy of the model"
            ) from error


def from_files(error: BaseException) -> bool:
    """Return whether bad files may have caused an error; includes panics of Rust code, which are not Exceptions."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


class ByteTokenizer:
    """Tokenizer for dummy weights, whose text is meaningless anyway: token ids are UTF-8 bytes."""

    chat_template = None
    eos_token_id = None
    pad_token_id = None

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")
