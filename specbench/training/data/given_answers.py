"""Given answers: rows of a file that have them, as LIMA, Alpaca, Magicoder and chats ship them; none is generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from specbench.common import Prompt, SpecbenchError, Turn, UsageError, one_line
from specbench.evals import build_dialogue, choose_style, digest, each_row, file_stem, row_place
from specbench.training.recipe import Text

if TYPE_CHECKING:
    from specbench.models import LoadedModel

_WANTED = "give a file of rows with answers, such as {'prompt': …, 'answer': …}"

#: Fields that hold a question, with those that may hold its answer.
_PAIRS = {
    "prompt": ("answer",),
    "instruction": ("output", "response"),
    "problem": ("solution",),
}
_FORMS = ("messages", "conversations", *_PAIRS)


@dataclass(frozen=True)
class Given:
    """A prompt with the answer that is to be learnt.

    Attributes:
        prompt: its id is the file's name and the number of the line.
    """

    prompt: Prompt
    answer: str
    line: str

    @property
    def id(self) -> str:
        """The prompt's."""
        return self.prompt.id


class _Message(BaseModel):
    """A turn of a chat."""

    model_config = ConfigDict(strict=True)

    role: Literal["system", "user", "assistant"]
    content: str


class GivenRow(BaseModel):
    """A row of such a file, in one of the forms; other fields of a published row are ignored."""

    model_config = ConfigDict(strict=True)

    messages: list[_Message] | None = None
    conversations: list[str] | None = None
    prompt: str | None = None
    answer: str | None = None
    instruction: str | None = None
    input: str | None = None
    output: str | None = None
    response: str | None = None
    problem: str | None = None
    solution: str | None = None

    @model_validator(mode="after")
    def _ends_with_an_answer(self) -> GivenRow:
        forms = [name for name in _FORMS if getattr(self, name) is not None]
        if len(forms) != 1:
            raise ValueError(f"has {' and '.join(forms) or 'none'} of {', '.join(_FORMS)}; write exactly one of them")
        (form,) = forms
        if form in _PAIRS and not any(getattr(self, name) is not None for name in _PAIRS[form]):
            raise ValueError(f"'{form}' without {' or '.join(map(repr, _PAIRS[form]))}, which would be its answer")
        turns = self.turns()
        if [role for role, _ in turns[-2:]] != ["user", "assistant"]:
            raise ValueError(f"'{form}' does not end with a question and its answer")
        if not turns[-2][1].strip():
            raise ValueError("an empty question")
        if not turns[-1][1].strip():
            raise ValueError("an empty answer")
        return self

    def turns(self) -> list[Turn]:
        """Who said what, in order; the last one is the answer that is learnt."""
        if self.messages is not None:
            return [(message.role, message.content) for message in self.messages]
        if self.conversations is not None:
            return [("assistant" if at % 2 else "user", text) for at, text in enumerate(self.conversations)]
        form = next(name for name in _PAIRS if getattr(self, name) is not None)
        answer = next(text for name in _PAIRS[form] if (text := getattr(self, name)) is not None)
        question = getattr(self, form) + (f"\n\n{self.input}" if form == "instruction" and self.input else "")
        return [("user", question), ("assistant", answer)]


def read_given(path: Path, chat: bool) -> tuple[list[Given], str]:
    """The rows of a file, and its sha256.

    ``prompt`` is taken as it is, as ``--task prompts`` takes it; all other questions are a user's turn, which goes
    through the chat template of a model that has one. Of a conversation the last answer is learnt, behind what is
    before it.

    Args:
        path: JSON lines, a JSON list or Parquet, by its suffix.

    Raises:
        UsageError: it cannot be read, has no rows, or a row is no question with its answer; names the line or row.
    """
    found = []
    for number, row in each_row(path, GivenRow):
        line = row_place(path, number)
        *history, (_, question), (_, answer) = row.turns()
        name = f"{file_stem(path.name)}/{number}"
        if row.prompt is not None:
            prompt = Prompt(name, question, False)
        else:
            prompt = build_dialogue(name, [question], choose_style("auto", chat, "prompts"), history=history)
        found.append(Given(prompt, answer, line))
    if not found:
        raise UsageError(f"{path} has no rows; {_WANTED}")
    return found, digest(path)[1]


def has_answers(path: Path) -> bool:
    """Whether the first row of a file is a question with its answer; what cannot be read has none."""
    try:
        return next(each_row(path, GivenRow), None) is not None
    except SpecbenchError:
        return False


def given_texts(loaded: LoadedModel, rows: Sequence[Given]) -> list[Text]:
    """Rows as texts to learn, each answer with the tokens that the model ends one with."""
    ends: dict[bool, list[int]] = {}
    texts = []
    for row in rows:
        prompt = loaded.encode(row.prompt)
        chat = row.prompt.chat
        if chat not in ends:
            ends[chat] = ending(loaded, chat)
        blank = " " if row.prompt.stops else ""  # behind "ASSISTANT:" of plain text
        answer = [*_ids(loaded, blank + row.answer, row.line), *ends[chat]]
        total = len(prompt) + len(answer)
        if loaded.context is not None and total > loaded.context:
            raise UsageError(
                f"{row.line}: prompt and answer are {total} tokens, and {loaded.spec.name} takes {loaded.context}; "
                "shorten it or leave it out"
            )
        texts.append(Text(row.id, prompt, answer))
    return texts


def ending(loaded: LoadedModel, chat: bool) -> list[int]:
    """What follows an answer of the model: of a chat what its template writes there up to the stop token.

    Empty for a model that has no stop token.
    """
    if chat:
        said = "Forty-two"
        turns = [{"role": "user", "content": "question"}, {"role": "assistant", "content": said}]
        try:
            rendered = loaded.write_chat(turns)
            behind = rendered[rendered.rindex(said) + len(said) :]
            ids = list(loaded.tokenizer(behind, add_special_tokens=False)["input_ids"])
        except Exception:  # a stranger's template may refuse whatever it likes, and drop what it was given
            ids = []
        stop = next((at for at, token in enumerate(ids) if token in loaded.stop_ids), None)
        if stop is not None:
            return ids[: stop + 1]
    own = getattr(loaded.tokenizer, "eos_token_id", None)
    return [own] if type(own) is int else sorted(loaded.stop_ids)[:1]


def _ids(loaded: LoadedModel, text: str, line: str) -> list[int]:
    try:
        return list(loaded.tokenizer(text, add_special_tokens=False)["input_ids"])
    except Exception as error:  # settings that nobody looked at when it was loaded
        reason = one_line(str(error)) or type(error).__name__
        raise UsageError(
            f"{line} does not go through the tokenizer of {loaded.spec.name}: {reason}; take a whole copy of the model"
        ) from error


def said_of(about: Mapping[str, Any]) -> str:
    """What there is to say of a training's given answers, as part of a sentence; empty where there are none."""
    return " and ".join(f"{name} (sha256 {digest})" for name, digest in about.get("given", {}).items())
