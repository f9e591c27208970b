"""Read training files that contain answers (in the formats of LIMA, Alpaca, Magicoder, ShareGPT, and chats)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from specbench.common import Prompt, SpecbenchError, Turn, UsageError, one_line
from specbench.evals import ShareGptTurn, build_dialogue, choose_style, digest, each_row, file_stem, row_place
from specbench.training.recipe import Text

if TYPE_CHECKING:
    from specbench.models import LoadedModel

_WANTED = "give a file of rows with answers, such as {'prompt': …, 'answer': …}"

#: Field of the question -> fields that may hold its answer.
_PAIRS = {
    "prompt": ("answer",),
    "instruction": ("output", "response"),
    "problem": ("solution",),
}
_FORMS = ("messages", "conversations", *_PAIRS)


@dataclass(frozen=True)
class Given:
    """A prompt with the answer to learn.

    Attributes:
        prompt: has the file's stem and the line number as its id.
        line: where the row is in the file, for error messages.
    """

    prompt: Prompt
    answer: str
    line: str

    @property
    def id(self) -> str:
        """Id of the prompt."""
        return self.prompt.id


class _Message(BaseModel):
    """A turn of a chat."""

    model_config = ConfigDict(strict=True)

    role: Literal["system", "user", "assistant"]
    content: str


class GivenRow(BaseModel):
    """A row of such a file, in one of the formats; other fields are ignored."""

    model_config = ConfigDict(strict=True)

    messages: list[_Message] | None = None
    conversations: list[str] | list[ShareGptTurn] | None = None
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
            raise ValueError(f"has {' and '.join(forms) or 'none'} of {', '.join(_FORMS)} and must have exactly one")
        (form,) = forms
        if form in _PAIRS and not any(getattr(self, name) is not None for name in _PAIRS[form]):
            raise ValueError(f"has '{form}' but no answer in {' or '.join(map(repr, _PAIRS[form]))}")
        turns = self.turns()
        if [role for role, _ in turns[-2:]] != ["user", "assistant"]:
            raise ValueError(f"'{form}' does not end with a question and its answer")
        if not turns[-2][1].strip():
            raise ValueError("the question is empty")
        if not turns[-1][1].strip():
            raise ValueError("the answer is empty")
        return self

    def turns(self) -> list[Turn]:
        """Return (role, text) of each turn, in order; the last one is the answer to learn."""
        if self.messages is not None:
            return [(message.role, message.content) for message in self.messages]
        if self.conversations is not None:
            said: list[str | ShareGptTurn] = [*self.conversations]
            return [
                ("assistant" if at % 2 else "user", turn) if isinstance(turn, str) else turn.turn
                for at, turn in enumerate(said)
            ]
        form = next(name for name in _PAIRS if getattr(self, name) is not None)
        answer = next(text for name in _PAIRS[form] if (text := getattr(self, name)) is not None)
        question = getattr(self, form) + (f"\n\n{self.input}" if form == "instruction" and self.input else "")
        return [("user", question), ("assistant", answer)]


def read_given(path: Path, chat: bool) -> tuple[list[Given], str]:
    """Return the rows of a file, and its sha256.

    The field ``prompt`` is used verbatim, as in ``--task prompts``. Other questions become a user turn and go through
    the chat template if the model has one. In a conversation, only the last answer is learnt, after all turns before
    it.

    Args:
        path: JSON lines, a JSON list or Parquet, according to its suffix.
        chat: whether the model has a chat template.

    Raises:
        UsageError: the file cannot be read, has no rows, or a row is not a question with its answer; names the line.
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
        raise UsageError(f"cannot learn from {path}: it has no rows; {_WANTED}")
    return found, digest(path)[1]


class _Conversation(BaseModel):
    """A row of ShareGPT's files."""

    model_config = ConfigDict(strict=True)

    conversations: list[ShareGptTurn]


def sharegpt_prompts(path: Path, chat: bool) -> list[Prompt] | None:
    """Return the first question of each conversation of a ShareGPT file, as CLLM asks them; None for another file.

    Conversations that begin with an answer, as in files that are split by length, are left out.
    """
    found = []
    try:
        if next(each_row(path, _Conversation), None) is None:
            return None
    except SpecbenchError:
        return None
    for number, row in each_row(path, _Conversation):
        turns = [turn.turn for turn in row.conversations]
        history, rest = (turns[:1], turns[1:]) if turns and turns[0][0] == "system" else ([], turns)
        if rest and rest[0][0] == "user" and rest[0][1].strip():
            style = choose_style("auto", chat, "prompts")
            found.append(build_dialogue(str(number), [rest[0][1]], style, history=history))
    return found


def has_answers(path: Path) -> bool:
    """Return whether the first row of a file is a question with its answer; False for an unreadable file.

    ShareGPT's conversations count as questions: the answers in them are another model's.
    """
    try:
        _, row = next(each_row(path, GivenRow), (0, None))
    except SpecbenchError:
        return False
    return row is not None and not (row.conversations and isinstance(row.conversations[0], ShareGptTurn))


def given_texts(loaded: LoadedModel, rows: Sequence[Given]) -> list[Text]:
    """Tokenise rows; each answer gets the tokens that the model writes after an answer."""
    ends: dict[bool, list[int]] = {}
    texts = []
    for row in rows:
        prompt = loaded.encode(row.prompt)
        chat = row.prompt.chat
        if chat not in ends:
            ends[chat] = ending(loaded, chat)
        blank = " " if row.prompt.stops else ""  # after "ASSISTANT:" of plain text
        answer = [*_ids(loaded, blank + row.answer, row.line), *ends[chat]]
        total = len(prompt) + len(answer)
        if loaded.context is not None and total > loaded.context:
            raise UsageError(
                f"cannot learn {row.line}: prompt and answer have {total} tokens and the context of {loaded.spec.name} "
                f"is {loaded.context}; shorten or remove the row"
            )
        texts.append(Text(row.id, prompt, answer))
    return texts


def ending(loaded: LoadedModel, chat: bool) -> list[int]:
    """Return the tokens that end an answer: in a chat, the template's text up to the stop token; else the stop token.

    Empty for a model without a stop token.
    """
    if chat:
        answer = "Forty-two"
        turns = [{"role": "user", "content": "question"}, {"role": "assistant", "content": answer}]
        try:
            rendered = loaded.write_chat(turns)
            after = rendered[rendered.rindex(answer) + len(answer) :]
            ids = list(loaded.tokenizer(after, add_special_tokens=False)["input_ids"])
        except Exception:  # an untrusted template may raise any error, or leave out the answer
            ids = []
        stop = next((at for at, token in enumerate(ids) if token in loaded.stop_ids), None)
        if stop is not None:
            return ids[: stop + 1]
    own = getattr(loaded.tokenizer, "eos_token_id", None)
    return [own] if type(own) is int else sorted(loaded.stop_ids)[:1]


def _ids(loaded: LoadedModel, text: str, line: str) -> list[int]:
    try:
        return list(loaded.tokenizer(text, add_special_tokens=False)["input_ids"])
    except Exception as error:  # loading a tokenizer does not check all its settings
        reason = one_line(str(error)) or type(error).__name__
        raise UsageError(
            f"cannot tokenise {line} with the tokenizer of {loaded.spec.name}: {reason}; use a complete copy of the "
            "model"
        ) from error


def describe_answers(about: Mapping[str, Any]) -> str:
    """Name the files of a training's given answers with their hashes; empty if it had none."""
    return " and ".join(f"{name} (sha256 {digest})" for name, digest in about.get("given", {}).items())
