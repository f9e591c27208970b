"""Collect the trajectories of answers shard by shard, dropping repetitive text, and summarise them."""

from __future__ import annotations

import time
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
    add_time,
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
    """Settings of a collection of trajectories.

    Attributes:
        block_size: n.
        states: ``jacobi`` decodes with the target; ``artificial`` replaces the end of each block by noise (JF,
            stage 1).
        init: kind of noise for initial and artificial states.
        augment: ``cllm`` corrects some wrong tokens of the states; ``cllm-released`` samples them with replacement.
        keep_circles: copies kept of a segment that an answer repeats until its end; 0 keeps all.
        max_run: drop blocks from the point where one token comes up this often in a row; CLLM uses 10; 0 is off.
        max_repeats: drop blocks from the point where one sentence comes up this often; 0 is off. See
            :mod:`specbench.training.data.sentences`.
        shard: answers per shard.
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
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Collect the trajectories of answers in ``folder``, resuming an interrupted call; return their summary.

    A shard depends only on its own answers, so a resumed collection writes the same shards.

    Args:
        folder: output folder of the shards, ``trajectories.json``, and at the end ``statistics.json``.
        rows: most rows of a forward; bounds memory.
        progress: called with (finished answers, all answers) at the start and after each shard.
    """
    if not texts:
        raise UsageError("cannot collect trajectories: there are no answers; give other prompts")
    check_writable(folder)
    shards = [texts[first : first + how.shard] for first in range(0, len(texts), how.shard)]
    _claim(folder, _header(model, texts, sampling, how, len(shards)))
    missing = [number for number in range(len(shards)) if not shard_path(folder, number).exists()]
    done = len(texts) - sum(len(shards[number]) for number in missing)
    progress(done, len(texts))
    try:
        with _runner(model, sampling, texts, rows) if missing and how.states == "jacobi" else nullcontext() as jacobi:
            for number in missing:
                began = time.monotonic()
                write_shard(shard_path(folder, number), *_shard(model, shards[number], how, jacobi))
                add_time(folder, number, time.monotonic() - began)
                done += len(shards[number])
                progress(done, len(texts))
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise EnvironmentRefused(f"cannot run forwards of {rows} rows: out of memory; lower --rows") from error
    found = summary([read_statistics(shard_path(folder, number)) for number in range(len(shards))])
    write_json_atomic(folder / STATISTICS, found)
    return found


def summary(shards: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Add up the statistics of all shards.

    Returns:
        Counts of kept answers, tokens, blocks and states; counts of cut and dropped ones; ``states_per_block``, initial
        state and fixed point included; and the figures of CLLM's Table 3 over full blocks, averaged per answer first:
        ``fast_forwarded``, the tokens by which one forward extends a block's correct prefix, and ``stationary``, the
        tokens of a block that are correct before all tokens on their left are. None without forwards.
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
    """Return the trajectories of some answers, in their order, and their statistics."""
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
    """Return the figures of CLLM's Table 3, summed over answers."""
    measured, ahead, early = 0, 0.0, 0.0
    for run in runs:
        whole = [states for states in run.states if states is not None and len(states[-1]) == run.blocks.size]
        if whole:
            after = [states[1:] or states for states in whole]  # the initial state does not come from a forward
            measured += 1
            ahead += mean(map(fast_forwarded, after))
            early += mean(map(stationary, after))
    return {"answers_measured": measured, "fast_forwarded_sum": ahead, "stationary_sum": early}


def _worth(texts: Sequence[Text], how: Collecting, model: LoadedModel, count: Counter[str]) -> list[Text]:
    """Return the answers with repetitive text removed, and count what was removed."""
    kept = []
    for text in texts:
        answer = cut_circle(text.answer, how.keep_circles) if how.keep_circles else text.answer
        count["circles_cut"] += len(answer) < len(text.answer)
        if how.max_run:
            answer = _whole_blocks(answer, before_run(answer, how.max_run), how.block_size, "run", count)
        if how.max_repeats and answer:
            good = before_repeat(answer, model.decode, how.max_repeats)
            answer = _whole_blocks(answer, good, how.block_size, "repeat", count)
        if answer:
            kept.append(Text(text.id, text.prompt, answer))
    return kept


def _whole_blocks(answer: Sequence[int], good: int, size: int, why: str, count: Counter[str]) -> Sequence[int]:
    """Return the full blocks within the first ``good`` tokens of an answer, or all of it if all tokens are good."""
    if good == len(answer):
        return answer
    left = answer[: good // size * size]
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
            "sampling": {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "seed")},
            "answers": len(texts),
            "digest_of_answers": digest(texts),
        },
    )


def _claim(folder: Path, header: Header) -> None:
    """Write the header, or refuse a folder whose trajectories were made with other settings."""
    if not (folder / HEADER).exists():
        write_header(folder, header)
        return
    before = asdict(Collecting())  # defaults for settings that an older folder lacks
    mine, theirs = _flat(header), {**before, **_flat(read_header(folder))}
    other = sorted(name for name in mine if theirs.get(name) != mine[name])
    if other:
        raise UsageError(
            f"cannot add trajectories to {folder}: those in it differ in {', '.join(other)}; give another --out, or "
            "repeat their command"
        )


def _flat(header: Header) -> dict[str, Any]:
    values = asdict(header)
    settings = values.pop("settings")
    return {**values, **settings}
