"""One item of a task as text, before the chat template and the tokenizer turn it into ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Turn = tuple[Literal["system", "user", "assistant"], str]

_FENCE = "```"


@dataclass(frozen=True)
class Prompt:
    """One item of a task before tokenisation.

    Attributes:
        id: stable id of the item within its task ("HumanEval/0"); the key that joins speed and verdict.
        text: the raw prompt (``completion`` style) or the user turn (``chat`` style).
        chat: render ``text`` as a user turn through the model's chat template.
        prefill: text put at the start of the assistant's answer, chat style only; part of the prompt, not the output.
        stops: strings that end the answer; the answer's text is cut before the first of them.
        history: turns before ``text``, chat style only: a system prompt, few-shot examples, earlier turns.
        messages: a whole chat whose messages have more than a role and a text, such as tool calls and their results, in
            the form that chat templates take; ``text`` is the last one's and ``history`` is empty. Chat style only.
        tools: descriptions of functions for the chat template. Chat style only.
        otherwise: what to do, apart from another model, if the chat template cannot write ``messages``.
        follow_ups: user turns asked one by one, each after the answer to the one before. In completion style a
            follow-up is the text that continues after the answer.
        forced: follow-ups come after AR's answers instead of the method's own, so that all methods are timed on the
            same input.
        recorded: the later turns of a recorded conversation, each after the recorded answers; without follow-ups.
        grown_from: id of the prompt whose context was grown; empty for a prompt as it is.
        category: row of a per-category table, "GROUP" or "GROUP/CATEGORY"; empty for none.
        reference: the text that really follows; a run reports its perplexity next to the speed. Without chat only.
        temperature: prescribed by the protocol for this item; None uses the run's.
    """

    id: str
    text: str
    chat: bool
    prefill: str = ""
    stops: tuple[str, ...] = ()
    history: tuple[Turn, ...] = ()
    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    otherwise: str = ""
    follow_ups: tuple[str, ...] = ()
    forced: bool = False
    recorded: tuple[Prompt, ...] = ()
    grown_from: str = ""
    category: str = ""
    reference: str = ""
    temperature: float | None = None

    @property
    def turns(self) -> int:
        """Number of turns."""
        return 1 + len(self.follow_ups) + len(self.recorded)

    def after(self, answers: Sequence[str]) -> Prompt:
        """The prompt of the next turn, the turns so far in its history; recorded turns have their own."""
        if self.recorded:
            return (self, *self.recorded)[len(answers)]
        if not self.chat:
            text = self.text + "".join(map("".join, zip(answers, self.follow_ups, strict=False)))
            return replace(self, text=text, follow_ups=self.follow_ups[len(answers) :])
        asked = (self.text, *self.follow_ups)
        turns: list[Turn] = list(self.history)
        for question, answer in zip(asked, answers, strict=False):
            # Without surrounding blanks, as in FastChat and Spec-Bench; most templates drop them too.
            turns += [("user", question), ("assistant", self._whole(answer).strip())]
        return replace(self, text=asked[len(answers)], history=tuple(turns), follow_ups=asked[len(answers) + 1 :])

    def _whole(self, answer: str) -> str:
        """An answer with its prefill; a code block that a stop string left open is closed."""
        whole = f"{self.prefill}{answer}"
        return f"{whole.rstrip()}\n{_FENCE}" if _FENCE in self.prefill and whole.count(_FENCE) % 2 else whole
