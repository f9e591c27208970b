"""A model that writes what it is asked into its token ids, and plans and answers for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from specbench.common.options import Options, given
from specbench.common.prompt import Prompt
from specbench.common.registry import Card
from specbench.decoding.protocol import Method
from specbench.models.loader import LoadedModel
from specbench.results.schema import RequestRecord, request_key
from specbench.runner.loop import Request
from specbench.runner.plan import Plan
from specbench.runner.prompts import Prepared, prepare
from specbench.runner.resolving import Resolved
from specbench.runner.tasks import TaskPlan


class Model:
    """Ids are the characters of "role: text|" for every turn; it knows no limit unless given a context."""

    stop_ids: frozenset[int] = frozenset()
    has_chat_template = True
    spec = SimpleNamespace(name="toy")

    def __init__(self, context: int | None = None) -> None:
        self.context = context

    def encode(self, prompt: Prompt) -> list[int]:
        if not prompt.chat:
            return [ord(letter) for letter in prompt.text]
        turns = (*prompt.history, ("user", prompt.text))
        return [ord(letter) for role, said in turns for letter in f"{role}: {said}|"]

    def decode(self, ids: Sequence[int]) -> str:
        return text(ids)


def text(ids: Sequence[int]) -> str:
    """What a prompt says."""
    return "".join(map(chr, ids))


def plan(methods: Sequence[Method], **changes: Any) -> Resolved:
    """A run of these methods, greedy, a prompt once, one at a time."""
    return Resolved(given(Plan, {"model": "toy", "max_new_tokens": 10, **changes}), tuple(methods), ())


def prepared(
    prompts: Sequence[Prompt], model: Model | LoadedModel | None = None, held_out: int | None = None, **changes: Any
) -> Prepared:
    """A task of these prompts, prepared; ``changes`` are the plan's."""

    class Task:
        def __init__(self, options: Options, data_dir: Path | None) -> None:
            self.options = options

        def prompts(self, chat: bool) -> Sequence[Prompt]:
            return prompts

    card = Card("task", "toy-task", "toys", Path(), "tests", {"version": 3, "metric": "", "max_new_tokens": 7})
    task = TaskPlan(card, Options(), SimpleNamespace(Task=Task), None)
    return prepare(plan([], **changes).plan, task, model or Model(), held_out)  # type: ignore[arg-type]


def said(label: str, request: Request) -> RequestRecord:
    """An answer that names its method and its turn."""
    return RequestRecord(
        request_id=request_key(label, request.prompt_id, request.repeat, request.turn), method=label,
        prompt_id=request.prompt_id, repeat=request.repeat, turn=request.turn, category=request.category,
        prompt_tokens=len(request.ids), output_ids=[1], text=f"{label} {request.turn}", finish_reason="length",
        output_tokens=1, overshoot_tokens=0, stop_tail_tokens=0, accepted_lengths=[], tree_rows=0,
        target_forwards=0, draft_forwards=0, start_s=0.0, segment=0, ttft_s=1.0, decode_s=0.0, latency_s=1.0,
        prefill_share_s=1.0, decode_share_s=0.0,
    )  # fmt: skip
