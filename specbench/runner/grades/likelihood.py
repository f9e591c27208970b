"""Compute the log-likelihood of a run's texts, each distinct text once, after the last answer.

Not timed. In a run of a fine-tuned model, the base rates the texts. Log-probabilities are of the plain softmax at
temperature 1, also for sampled texts.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from specbench.engine import Chain, Engine, log_probabilities, ran_out
from specbench.results import LIKELIHOODS, Likelihood, RequestLog, RequestRecord, answer_hash, read_likelihoods
from specbench.runner.order import Turns
from specbench.runner.prompts import Prepared

#: Most rows of a forward, and most bytes of its logits: 128 MiB limit the rows with a large vocabulary.
ROWS, _LOGITS = 512, 1 << 25

_Ids = tuple[int, ...]


def rate(
    engine: Engine, prepared: Prepared, records: Sequence[RequestRecord], folder: Path, note: Callable[[str], None]
) -> dict[str, Likelihood]:
    """The log-likelihood of a run's answers under a model, by request key, stored in ``likelihoods.jsonl`` as computed.

    The engine needs a free slot with space for prompt and answer. If memory runs out, ``note`` gets a line and only
    these figures are missing.
    """
    turns = Turns(prepared, {record.request_id: record.text for record in records})
    asked: dict[_Ids, dict[_Ids, list[str]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        prompt = turns.request(record.method, record.prompt_id, record.repeat, record.turn).ids
        asked[tuple(prompt)][tuple(record.output_ids)].append(record.request_id)
    before = read_likelihoods(folder)
    known = {line.text: line.log_likelihood for line in before.values()}
    log = RequestLog(folder / LIKELIHOODS)
    try:
        for prompt, answers in asked.items():
            names = {answer: _digest(prompt, answer) for answer in answers}
            new = [answer for answer in answers if names[answer] not in known]
            rated = dict(zip(new, log_likelihoods(engine, prompt, new), strict=True)) if new else {}
            for answer, requests in answers.items():
                text = names[answer]
                if all(request in before and before[request].text == text for request in requests):
                    continue
                found = known[text] if text in known else rated[answer]
                line = Likelihood(
                    text=text, requests=requests, tokens=len(answer), answer=answer_hash(answer), log_likelihood=found
                )
                log.append(line.model_dump(mode="json"))
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        note("no memory to ask the model how likely the texts are; their log-likelihood is left out")
    finally:
        log.close()
    return read_likelihoods(folder)


def log_likelihoods(engine: Engine, prompt: Sequence[int], answers: Sequence[Sequence[int]]) -> list[float]:
    """The log-likelihood (base e) of each answer after a prompt, which is fed once.

    Prompt and answers have at least one token.
    """
    slot = engine.alloc()
    try:
        if len(prompt) > 1:
            engine.prefill(slot, prompt[:-1])
        return [math.fsum(_logarithms(engine, slot, prompt[-1], answer)) for answer in answers]
    finally:
        engine.free(slot)


def token_log_likelihoods(engine: Engine, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
    """The log-likelihood of each token of an answer after a prompt; arguments as of :func:`log_likelihoods`."""
    slot = engine.alloc()
    try:
        if len(prompt) > 1:
            engine.prefill(slot, prompt[:-1])
        return _logarithms(engine, slot, prompt[-1], answer)
    finally:
        engine.free(slot)


def _logarithms(engine: Engine, slot: int, last: int, answer: Sequence[int]) -> list[float]:
    """The same for one answer; ``last`` is the prompt's last token, and the slot contains the tokens before it."""
    start, fed = engine.length(slot), [last, *answer[:-1]]
    rows = rows_at_once(engine)
    found: list[float] = []
    for at in range(0, len(fed), rows):
        part = fed[at : at + rows]
        found += log_probabilities(engine, [Chain(slot, start + at, part)], [answer[at : at + rows]])[0]
        if at + rows < len(fed):
            engine.prefill(slot, part)
    engine.rewind(slot, start)
    return found


def rows_at_once(engine: Engine) -> int:
    """Rows whose logits are held at the same time."""
    return max(1, min(ROWS, _LOGITS // int(engine.model.config.get_text_config().vocab_size)))


def _digest(prompt: _Ids, answer: _Ids) -> str:
    return hashlib.sha256(json.dumps([prompt, answer]).encode()).hexdigest()[:32]
