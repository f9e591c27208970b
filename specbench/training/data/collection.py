"""Collecting trajectories: which answers are worth it, shard by shard, and what there is to say of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import torch

from specbench.common import EnvironmentRefused, UsageError, check_writable, write_json_atomic
from specbench.decoding import Kind, State, fast_forwarded, stationary
from specbench.engine import Sampling
from specbench.models import LoadedModel
from specbench.training.data.answers import before_run, cut_circle
from specbench.training.data.jacobi_states import Blocks, Jacobi, Run
from specbench.training.data.sentences import before_repeat
from specbench.training.data.trajectory_folder import (
    HEADER,
    Header,
    Trajectory,
    read_header,
    read_statistics,
    shard_path,
    write_header,
    write_shard,
)
from specbench.training.recipe import Text, digest

STATISTICS = "statistics.json"
_COUNTS = (
    "answers", "tokens", "blocks", "states",
    "circles_cut", "answers_dropped_run", "blocks_dropped_run", "answers_dropped_repeat", "blocks_dropped_repeat",
    "blocks_dropped_tie", "ties",
)  # fmt: skip

States = Literal["jacobi", "artificial"]
Augment = Literal["none", "cllm", "cllm-released"]


@dataclass(frozen=True)
class Collecting:
    """How trajectories are made.

    Attributes:
        block_size: n.
        states: ``jacobi`` runs the target; ``artificial`` replaces the end of each block by noise (JF, stage 1).
        init: noise of initial and of artificial states.
        augment: ``cllm`` puts some wrong tokens of the states right; ``cllm-released`` draws them with replacement.
        keep_circles: rounds that stay of an answer that repeats itself to its end; 0 is all.
        max_run: blocks are left out from where one token has come up so many times in a row; CLLM has 10; 0 is off.
        max_repeats: blocks are left out from where one sentence comes up so many times; 0 is off. See
            :mod:`specbench.training.data.sentences`.
    """

    block_size: int = 16
    states: States = "jacobi"
    init: Kind = "context"
    augment: Augment = "none"
    keep_circles: int = 3
    max_run: int = 0
    seed: int = 0
    shard: int = 64
    max_repeats: int = 0


def collect(
    model: LoadedModel,
    texts: Sequence[Text],
    sampling: Sampling,
    how: Collecting,
    folder: Path,
    *,
    rows: int,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Trajectories of answers, kept in ``folder``; what is in there from an interrupted call is gone on with.

    A shard is made from its answers alone, so that one made after an interruption is the one that would have been made
    before it.

    Args:
        folder: receives shards, ``trajectories.json``, and in the end ``statistics.json``.
        rows: of a forward, at most; bounds memory.
        told: (answers done, answers in all) at the start and after each shard.
    """
    if not texts:
        raise UsageError("there is no answer to make trajectories of; give other prompts")
    check_writable(folder)
    shards = [texts[first : first + how.shard] for first in range(0, len(texts), how.shard)]
    _claim(folder, _header(model, texts, sampling, how, len(shards)))
    missing = [number for number in range(len(shards)) if not shard_path(folder, number).exists()]
    done = len(texts) - sum(len(shards[number]) for number in missing)
    told(done, len(texts))
    try:
        with _runner(model, sampling, texts, rows) if missing and how.states == "jacobi" else nullcontext() as jacobi:
            for number in missing:
                write_shard(shard_path(folder, number), *_shard(model, shards[number], how, jacobi))
                done += len(shards[number])
                told(done, len(texts))
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise EnvironmentRefused(f"no memory for forwards of {rows} rows; lower --rows") from error
    found = summary([read_statistics(shard_path(folder, number)) for number in range(len(shards))])
    write_json_atomic(folder / STATISTICS, found)
    return found


def summary(shards: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """What there is to say of all shards together.

    Returns:
        Counts of what was kept (answers, tokens, blocks, states), of what was not (…_cut, …_dropped), and averages:
        states of a block, both ends included; and CLLM's Table 3 over whole blocks, per answer first as there: tokens
        by which a forward prolongs what is right (``fast_forwarded``) and tokens of a block that were right before
        their turn (``stationary``). None where no forward was run.
    """
    sums: Counter[str] = Counter()
    for shard in shards:
        sums.update(shard)
    measured = sums.pop("answers_measured")
    ahead, early = sums.pop("fast_forwarded_sum"), sums.pop("stationary_sum")
    return {
        **sums,
        "states_per_block": sums["states"] / sums["blocks"] if sums["blocks"] else None,
        "fast_forwarded": ahead / measured if measured else None,
        "stationary": early / measured if measured else None,
    }


def _runner(model: LoadedModel, sampling: Sampling, texts: Sequence[Text], rows: int) -> closing[Jacobi]:
    return closing(Jacobi(model, sampling, texts, rows))


def _shard(
    model: LoadedModel, texts: Sequence[Text], how: Collecting, jacobi: Jacobi | None
) -> tuple[list[Trajectory], dict[str, Any]]:
    """Trajectories of some answers, in their order, and their statistics."""
    count: Counter[str] = Counter(dict.fromkeys(_COUNTS, 0))
    wanted = [
        Blocks(text, how.block_size, how.init, model.vocab_size, model.pad_id, how.seed)
        for text in _worth(texts, how, model, count)
    ]
    if jacobi is None:
        runs = [Run(blocks, [blocks.artificial(at) for at in range(len(blocks))], []) for blocks in wanted]
        figures = _figures([])
    else:
        finished = {id(run.blocks): run for run in jacobi.run(wanted)}
        runs = [finished[id(blocks)] for blocks in wanted]
        figures = _figures(runs)
    return [_trajectory(run, how, model.pad_id, count) for run in runs], {**count, **figures}


def _figures(runs: Sequence[Run]) -> dict[str, float]:
    """Sums over answers of the figures of CLLM's Table 3."""
    measured, ahead, early = 0, 0.0, 0.0
    for run in runs:
        whole = [states for states in run.states if states is not None and len(states[-1]) == run.blocks.size]
        if whole:
            after = [states[1:] or states for states in whole]  # what a block begins with is no forward's
            measured += 1
            ahead += mean(map(fast_forwarded, after))
            early += mean(map(stationary, after))
    return {"answers_measured": measured, "fast_forwarded_sum": ahead, "stationary_sum": early}


def _worth(texts: Sequence[Text], how: Collecting, model: LoadedModel, count: Counter[str]) -> list[Text]:
    """Answers without what is not worth learning."""
    kept = []
    for text in texts:
        answer = cut_circle(text.answer, how.keep_circles) if how.keep_circles else text.answer
        count["circles_cut"] += len(answer) < len(text.answer)
        if how.max_run:
            answer = _whole_blocks(answer, before_run(answer, how.max_run), how.block_size, "run", count)
        if how.max_repeats and answer:
            sound = before_repeat(answer, model.decode, how.max_repeats)
            answer = _whole_blocks(answer, sound, how.block_size, "repeat", count)
        if answer:
            kept.append(Text(text.id, text.prompt, answer))
    return kept


def _whole_blocks(answer: Sequence[int], sound: int, size: int, why: str, count: Counter[str]) -> Sequence[int]:
    """An answer's blocks that end before its ``sound`` tokens do; all where the whole answer is sound."""
    if sound == len(answer):
        return answer
    left = answer[: sound // size * size]
    count[f"blocks_dropped_{why}"] += -(-len(answer) // size) - len(left) // size
    count[f"answers_dropped_{why}"] += not left
    return left


def _trajectory(run: Run, how: Collecting, pad: int, count: Counter[str]) -> Trajectory:
    blocks = []
    for at, ran in enumerate(run.states):
        states: Sequence[State]
        if ran is None:
            states = [run.blocks.fixed(at)]
            count["blocks_dropped_tie"] += 1
        else:
            states = ran
            if how.augment != "none":
                states = run.blocks.augmented(at, states, replacing=how.augment == "cllm-released")
            count["blocks"] += 1
            count["states"] += len(states)
        blocks.append([[*state, *[pad] * (how.block_size - len(state))] for state in states])
    text = run.blocks.text
    count["answers"] += 1
    count["tokens"] += len(text.answer)
    count["ties"] += len(run.ties)
    return Trajectory(text.id, text.prompt, text.answer, how.block_size, pad, blocks)


def _header(model: LoadedModel, texts: Sequence[Text], sampling: Sampling, how: Collecting, shards: int) -> Header:
    settings = {name: value for name, value in asdict(how).items() if name != "block_size"}
    return Header(
        model=model.spec.fingerprint,
        block_size=how.block_size,
        pad=model.pad_id,
        shards=shards,
        settings={
            **settings,
            "dtype": model.spec.dtype,
            "sampling": asdict(sampling),
            "answers": len(texts),
            "digest_of_answers": digest(texts),
        },
    )


def _claim(folder: Path, header: Header) -> None:
    """Trajectories made in two ways do not go into one folder."""
    if not (folder / HEADER).exists():
        write_header(folder, header)
        return
    before = asdict(Collecting())  # of a setting that an older folder does not have
    mine, theirs = _flat(header), {**before, **_flat(read_header(folder))}
    other = sorted(name for name in mine if theirs.get(name) != mine[name])
    if other:
        raise UsageError(
            f"{folder} holds trajectories with another {', '.join(other)}; give another --out, or repeat their command"
        )


def _flat(header: Header) -> dict[str, Any]:
    values = asdict(header)
    settings = values.pop("settings")
    return {**values, **settings}
