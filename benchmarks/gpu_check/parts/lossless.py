"""Check losslessness: AR's text, hidden in random (wild) trees, has to be emitted again; dummy weights in bfloat16."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.gpu_check import sessions
from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.records import Figure
from benchmarks.gpu_check.shapes import WANTED
from benchmarks.gpu_check.wild_trees import wild_method
from specbench.models import LoadedModel
from specbench.planning.methods import plan_methods
from specbench.results import RequestRecord
from specbench.runner import Session
from specbench.runner.grades.lossless import grade_all

_FAMILY = WANTED[1]  # the smaller family
_ROWS = 64
_SPREAD = 1.0


def run(bench: Bench) -> Iterator[Figure]:
    """Compare captured AR, captured wild trees, and the oracle: AR with plain attention, launched kernel by kernel."""
    size, rows = bench.size, min(_ROWS, 4 * bench.size.rows)
    lengths = [size.context // (1 + at % 3) for at in range(size.answers)]
    capacity = size.context + size.answer_tokens + rows
    shape, loaded, left_out = sessions.model_of(bench, _FAMILY, capacity + 2 * rows)
    yield from left_out
    if shape is None or loaded is None:
        return
    spread_scores(loaded)
    prompts = {f"dummy/{at}": sessions.prompt(loaded, length, at) for at, length in enumerate(lengths)}
    methods = [*plan_methods(["ar"], []), wild_method(rows)]
    with sessions.session(bench, loaded, methods, capacity=capacity) as opened:
        ar, wild = opened.methods
        opened.capture(size.context)
        truth = _texts(sessions.decode(opened, ar, list(prompts.values()), size.answer_tokens))
        different = len({token for ids in truth.values() for token in ids})
        note = f"{size.answers} answers of {size.answer_tokens} tokens, {bench.dtype}"
        yield Figure("tokens that AR's answers are made of", different, "tokens", note=note, shape=shape.name)
        known = replace(wild, shared={tuple(ids): truth[at] for at, ids in prompts.items()})
        records = sessions.decode(opened, known, list(prompts.values()), size.answer_tokens)
        took = sum(one.output_tokens - 1 for one in records) / sum(one.target_forwards for one in records)
        yield Figure("tokens that a wild tree gave", took, "tokens", ">= 1.5", note=note, shape=shape.name)
        yield from _counted("wild trees", opened, rows, prompts, truth, _texts(records), shape.name)
    # Grading uses as many rows as the widest tree, so the oracle needs that size.
    with sessions.session(bench, loaded, methods, capacity=capacity, graphs=False, backend="reference") as oracle:
        theirs = _texts(sessions.decode(oracle, oracle.methods[0], list(prompts.values()), size.answer_tokens))
        yield from _counted("captured AR", oracle, rows, prompts, theirs, truth, shape.name)


def spread_scores(loaded: LoadedModel) -> None:
    """Scale the rows of the LM head differently, so that the two best scores are rarely close.

    With a random LM head, the best score is within rounding noise of the second at every tenth token. One common factor
    would scale the noise too, so each row gets its own: the median gap is then a fifth of the score, and texts still
    vary. (Both counted with a narrower model on a CPU.)
    """
    weight = loaded.model.get_output_embeddings().weight
    rng = torch.Generator().manual_seed(0)
    factors = torch.exp(_SPREAD * torch.randn(len(weight), 1, generator=rng))
    weight.data.mul_(factors.to(weight.device, weight.dtype))


def _texts(records: Sequence[RequestRecord]) -> dict[str, list[int]]:
    return {record.prompt_id: record.output_ids for record in records}


def _counted(
    name: str, judge: Session, rows: int, prompts: Mapping[str, Sequence[int]],
    expected: Mapping[str, Sequence[int]], found: Mapping[str, Sequence[int]], shape: str,
) -> Iterator[Figure]:  # fmt: skip
    """Count answers that equal the expected ones, that differ at a tie, and that differ elsewhere."""
    tally: dict[str, Any] = grade_all(judge.engine, rows, prompts, expected, {name: found})[name]
    parted = [one for one in tally["divergences"] if one["grade"] == "lossy"]
    floor = tally["noise_floor"]
    yield Figure(f"{name}: answers exactly those expected", tally["exact"], "answers", shape=shape)
    yield Figure(
        f"{name}: answers that part at a tie", tally["numeric_tie"], "answers", shape=shape,
        note="" if floor is None else f"a tie is a gap within {floor:.3g}",
    )  # fmt: skip
    first = min(parted, key=lambda one: one["at"], default=None)
    note = f"first at token {first['at']} of {first['prompt']}, gap {first['gap']}" if first else ""
    yield Figure(f"{name}: answers that part otherwise", len(parted), "failures", "== 0", note, shape, key="lossless")
