"""Adapter from lm-eval to the engine: likelihoods and greedy answers, with the tokenisation of lm-eval's own backend.

Imported only if lm-eval is installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import has_bos_prefix, normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from specbench.common import Tenths, UsageError
from specbench.engine import Chain, Engine, rate_tokens
from specbench.models import LoadedModel
from specbench.planning import plan_methods
from specbench.results import BASELINE
from specbench.runner import Request, Session, StopRule, rows_at_once

#: Defaults of lm-eval's own backend: most tokens of a text, if model and tokenizer name no limit, and of an answer.
_LENGTH, _ANSWER = 2048, 256

_Pair = tuple[Any, list[int], list[int]]


class EngineLM(TemplateLM):
    """A loaded model with the interface of lm-eval's models."""

    def __init__(
        self, loaded: LoadedModel, say: Callable[[str], None], max_length: int | None = None, concurrency: int = 8
    ) -> None:
        super().__init__()
        self._loaded = loaded
        self._say = say
        self._concurrency = concurrency
        self.max_length = max_length or loaded.context or _LENGTH

    @property
    def eot_token_id(self) -> int:
        """Token id that ends a text."""
        known = self._loaded.tokenizer.eos_token_id
        return self._loaded.pad_id if known is None else int(known)

    @property
    def prefix_token_id(self) -> int:
        """Token id that precedes a text without context."""
        known = getattr(self._loaded.tokenizer, "bos_token_id", None)
        return self.eot_token_id if known is None else int(known)

    @property
    def tokenizer_name(self) -> str:
        """Name of the model whose chat template is used."""
        return self._loaded.spec.name

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Render a conversation with the model's own chat template."""
        return self._loaded.write_chat(
            chat_history, add_generation_prompt=add_generation_prompt, continue_final_message=not add_generation_prompt
        )

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return token ids; a text that begins with the tokenizer's begin token does not get another one."""
        how: dict[str, Any] = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        if add_special_tokens is None and has_bos_prefix(string, self._loaded.tokenizer.decode([self.prefix_token_id])):
            how = {"add_special_tokens": False}
        return list(self._loaded.tokenizer(string, **how)["input_ids"])

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = True) -> Any:
        """Return (log-likelihood, whether greedy decoding would write it) of each continuation after its context."""
        return super().loglikelihood(requests, disable_tqdm=True)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihoods of whole texts; texts longer than the model's context are scored in windows."""
        pairs, texts = list[_Pair](), list[int]()
        for request in requests:
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            own = [(None, *make_disjoint_window(window)) for window in windows]
            pairs += own
            texts.append(len(own))
        found = iter(self._loglikelihood_tokens(pairs))
        return [math.fsum(next(found)[0] for _ in range(count)) for count in texts]

    def _loglikelihood_tokens(self, requests: Sequence[_Pair], **options: Any) -> list[tuple[float, bool]]:
        if not requests:
            return []
        texts = [self._cut(*request) for request in requests]
        by_context: dict[tuple[int, ...], list[int]] = {}
        for at, (context, _text) in enumerate(texts):
            by_context.setdefault(context, []).append(at)
        found: dict[int, tuple[float, bool]] = {}
        progress = Tenths(self._say, lambda done, total: f"likelihoods of {total} texts: {done}/{total}")
        # Not cached: the last token, which is only predicted, and the token before it, which is read last.
        with self._session(max(1, max(len(context) + len(text) for context, text in texts) - 2)) as session:
            for context, members in by_context.items():
                rates = rate(session.engine, context, [texts[at][1] for at in members])
                found.update(zip(members, rates, strict=True))
                progress(len(found), len(texts))
        return [found[at] for at in range(len(texts))]

    def _cut(self, strings: Any, context: list[int], text: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return context and continuation, with the start of the context cut to the model's length."""
        if not text or not context:
            where = "" if strings is None else f" after {str(strings[0])[-40:]!r}"
            raise UsageError(f"cannot score a text of this task: it has no token{where}; correct the task's file")
        if len(text) > self.max_length:
            raise UsageError(
                f"cannot score a continuation of {len(text)} tokens: the model's limit is {self.max_length}; raise "
                "--max-length or remove its task from --tasks"
            )
        whole = (*context, *text)[-(self.max_length + 1) :]
        return whole[: -len(text)], whole[-len(text) :]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return greedy answers, each cut at its first stop string.

        Raises:
            UsageError: a task asks for sampled answers, or for longer ones than the model's limit.
        """
        if not requests:
            return []
        asked = [self._request(str(at), *request.args) for at, request in enumerate(requests)]
        progress = Tenths(self._say, lambda done, total: f"{total} answers: {done}/{total}")
        texts: dict[str, str] = {}
        kept = max(len(request.ids) + request.rule.budget for request in asked) - 1  # the last token is not cached
        with self._session(kept, min(self._concurrency, len(asked))) as session:
            session.capture(max(1, min(kept - 1, max(len(request.ids) for request in asked))))
            for record in session.decode(session.methods[0], asked):
                texts[record.prompt_id] = record.text
                progress(len(texts), len(asked))
        return [texts[str(at)] for at in range(len(asked))]

    def _request(self, name: str, text: str, how: dict[str, Any]) -> Request:
        chosen = normalize_gen_kwargs(how, _ANSWER)
        if chosen.get("do_sample") or chosen.get("temperature"):
            raise UsageError(
                "cannot run a task that asks for sampled answers: answers are greedy; set do_sample: false in a task "
                "file of your own with --include"
            )
        budget, until = int(chosen["max_gen_toks"]), chosen.get("until") or []
        if budget >= self.max_length:
            raise UsageError(
                f"cannot run a task that asks for answers of {budget} tokens: the model's limit is {self.max_length}; "
                "set max_gen_toks in a task file of your own with --include"
            )
        stops = tuple(stop for stop in ([until] if isinstance(until, str) else until) if stop)
        ids = self.tok_encode(text)[-(self.max_length - budget) :] or [self.prefix_token_id]
        rule = StopRule(self._loaded.stop_ids, stops, max(1, budget), self._loaded.decode)
        return Request(name, 0, ids, rule)

    def _session(self, capacity: int, slots: int = 1) -> Session:
        return Session(self._loaded, plan_methods([BASELINE], []), capacity=capacity, slots=slots)


def rate(engine: Engine, context: Sequence[int], texts: Sequence[Sequence[int]]) -> list[tuple[float, bool]]:
    """Return (log-likelihood in nats, whether it is the greedy text) of each text after a context.

    Context and texts are token ids, at least one each; the context is prefilled once. The engine needs a free slot with
    space for the context and any of the texts.
    """
    slot, most = engine.alloc(), rows_at_once(engine)
    try:
        if len(context) > 1:
            engine.prefill(slot, context[:-1])
        start = engine.length(slot)
        found: list[list[tuple[float, bool]]] = [[] for _ in texts]
        for batch in _batches(texts, most):
            chains = [Chain(slot, start, [context[-1], *texts[at][:-1]]) for at in batch]
            for at, rates in zip(batch, rate_tokens(engine, chains, [texts[at] for at in batch]), strict=True):
                found[at] = rates
        for at, text in enumerate(texts):
            if not found[at]:
                found[at] = _in_parts(engine, slot, context[-1], text, most)
                engine.rewind(slot, start)
        return [(math.fsum(value for value, _ in rates), all(best for _, best in rates)) for rates in found]
    finally:
        engine.free(slot)


def _batches(texts: Sequence[Sequence[int]], most: int) -> list[list[int]]:
    """Group the indices of texts that fit into one forward, several per forward where possible."""
    batches, room = list[list[int]](), 0
    for at, text in enumerate(texts):
        if len(text) > most:
            continue
        if len(text) > room:
            batches.append([])
            room = most
        batches[-1].append(at)
        room -= len(text)
    return batches


def _in_parts(engine: Engine, slot: int, last: int, text: Sequence[int], most: int) -> list[tuple[float, bool]]:
    """Rate a text that is too long for one forward; its tokens stay in the slot."""
    fed, found = [last, *text[:-1]], list[tuple[float, bool]]()
    for at in range(0, len(fed), most):
        part = fed[at : at + most]
        found += rate_tokens(engine, [Chain(slot, engine.length(slot), part)], [text[at : at + most]])[0]
        if at + most < len(fed):
            engine.prefill(slot, part)
    return found
