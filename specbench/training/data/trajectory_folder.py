"""Store the Jacobi states of the target's own answers, for consistency training (CLLM §3.1; JF stages 1 and 2).

A folder holds ``trajectories.json`` and numbered parquet shards of some answers each. A shard gets its name once it is
complete and holds its own statistics, so a collection can be killed at any moment and resumed.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, RootModel

from specbench.common import (
    EnvironmentRefused,
    SpecbenchError,
    UsageError,
    damaged,
    open_file,
    parse_json,
    read_json_lines,
    read_json_object,
    schema_version,
    validate,
    write_atomic,
    write_json_atomic,
)
from specbench.training.recipe import Token

if TYPE_CHECKING:
    from pyarrow import Schema

HEADER, TIMES = "trajectories.json", "times.jsonl"
FORMAT = 1  # format version of the folder; raised when an older reader would misread it
_AGAIN = "delete it and repeat its specbench train --collect command"
_STATISTICS = b"statistics"  # key of a shard's metadata


@dataclass(frozen=True)
class Trajectory:
    """Jacobi states of the blocks of one answer.

    Position 0 is correct in every state: the first token of a block is known before the block begins. A block with one
    state is not learnt from: its initial state was correct, or it was given up (see the folder's statistics) and has
    only its fixed point.

    Attributes:
        prompt: rendered prompt ids.
        answer: the target's own answer, up to and including its stop token.
        pad: id that fills the last block after the answer's end, in all its states. Recognise padding by the length of
            ``answer`` and not by this id, which the target may also write.
        blocks: [block][state][n]; state 0 is the initial one, the last is the fixed point, which for block j is
            ``answer[j n : (j + 1) n]``.
    """

    id: str
    prompt: Sequence[int]
    answer: Sequence[int]
    block_size: int
    pad: int
    blocks: Sequence[Sequence[Sequence[int]]]


@dataclass(frozen=True)
class Header:
    """Facts that hold for all trajectories of a folder.

    Attributes:
        model: fingerprint of the target.
        shards: number of shards of the finished folder.
        settings: settings of the collection, plain values by name; a resumed collection must have the same.
    """

    model: str
    block_size: int
    pad: int
    shards: int
    settings: Mapping[str, Any]
    format: int = FORMAT


class _Time(BaseModel):
    """A line of the file of times."""

    model_config = ConfigDict(strict=True)

    shard: int = Field(ge=0)
    seconds: float = Field(ge=0, allow_inf_nan=False)


class _Statistics(RootModel[dict[str, float]]):
    """Statistics in a shard: counts and sums."""


class _Head(BaseModel):
    """Content of the header file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    block_size: int = Field(gt=0)
    pad: Token
    shards: int = Field(ge=0, lt=10**5)  # shard numbers have five digits
    settings: dict[str, Any]
    format: int


def add_time(folder: Path, shard: int, seconds: float) -> None:
    """Note how long a shard took. The time is not in the shard, which is the same whenever it is made."""
    with (folder / TIMES).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"shard": shard, "seconds": seconds}) + "\n")


def hours(folder: Path) -> float | None:
    """Return the hours in which a folder's states were made; None unless the time of every shard is known."""
    rows = read_json_lines(folder / TIMES, "delete it", finished=True) if (folder / TIMES).exists() else ()
    times = [validate(_Time, row, folder / TIMES, "delete it") for _, row in rows]
    known = {time.shard for time in times} >= {*range(read_header(folder).shards)}
    return sum(time.seconds for time in times) / 3600 if known else None


def read(
    folder: Path, *, model: str | None = None, block_size: int | None = None, partial: bool = False
) -> Iterator[Trajectory]:
    """Yield the trajectories of a folder, in the order of their answers; one shard is in memory at a time.

    Args:
        model: required fingerprint of the model; None is any.
        block_size: required n; None is any.
        partial: accept an unfinished folder and yield the trajectories that it has.

    Raises:
        UsageError: at the call if the folder has no trajectories, is unfinished, or is of another model or block size;
            while reading if a shard is damaged.
    """
    header = read_header(folder)
    if model is not None and header.model != model:
        raise UsageError(
            f"cannot use {folder}: its trajectories are another model's; collect this model's with specbench train "
            "--collect"
        )
    if block_size is not None and header.block_size != block_size:
        raise UsageError(
            f"cannot use {folder}: its blocks have {header.block_size} tokens, not {block_size}; set "
            f"block_size={header.block_size}"
        )
    there = [shard_path(folder, number) for number in range(header.shards)]
    missing = sum(not path.exists() for path in there)
    if missing and not partial:
        raise UsageError(
            f"cannot use {folder}: {missing} of its {header.shards} shards are missing; repeat its specbench train "
            "--collect command"
        )
    _parquet()
    return (each for path in there if path.exists() for each in _rows(path, header))


def read_header(folder: Path) -> Header:
    """Read the header of a folder."""
    path = folder / HEADER
    if not path.is_file():
        raise UsageError(
            f"cannot read trajectories: {folder} has no {HEADER}; give a folder of specbench train --collect"
        )
    todo = "remove the folder and collect it again"
    found = read_json_object(path, todo)
    schema_version(found, path, FORMAT, todo, field="format")
    return Header(**validate(_Head, found, path, todo).model_dump())


def write_header(folder: Path, header: Header) -> None:
    """Write the header of a folder."""
    write_json_atomic(folder / HEADER, asdict(header))


def shard_path(folder: Path, number: int) -> Path:
    """Return the path of shard ``number``, counted from 0."""
    return folder / f"trajectories-{number:05}.parquet"


def write_shard(path: Path, trajectories: Sequence[Trajectory], statistics: Mapping[str, Any]) -> None:
    """Write a shard atomically."""
    import pyarrow

    rows = [{"id": t.id, "prompt": t.prompt, "answer": t.answer, "blocks": t.blocks} for t in trajectories]
    schema = _schema().with_metadata({_STATISTICS: json.dumps(dict(statistics))})
    buffer = io.BytesIO()
    _parquet().write_table(pyarrow.Table.from_pylist(rows, schema=schema), buffer, compression="zstd")
    write_atomic(path, buffer.getvalue())


def read_statistics(path: Path) -> dict[str, Any]:
    """Return the statistics of a shard that :func:`write_shard` got."""
    try:
        with open_file(path, _AGAIN) as file:
            content = (_parquet().read_schema(file).metadata or {}).get(_STATISTICS, b"")
    except SpecbenchError:
        raise
    except Exception as error:  # pyarrow raises many types
        raise damaged(path, str(error), _AGAIN) from error
    return validate(_Statistics, parse_json(content, f"{path}, its statistics", _AGAIN), path, _AGAIN).root


def _rows(path: Path, header: Header) -> Iterator[Trajectory]:
    try:
        with open_file(path, _AGAIN) as file:
            rows = _parquet().read_table(file, schema=_schema()).to_pylist()
    except SpecbenchError:
        raise
    except Exception as error:
        raise damaged(path, str(error), _AGAIN) from error
    for number, row in enumerate(rows, 1):
        if _broken(row, header.block_size):
            raise damaged(path, f"row {number} is not a trajectory in blocks of {header.block_size}", _AGAIN)
        yield Trajectory(**row, block_size=header.block_size, pad=header.pad)


def _broken(row: Mapping[str, Any], size: int) -> bool:
    """Return whether a row has null or negative values, empty parts, or states of another length."""
    ids = [row["prompt"], row["answer"]]
    if not isinstance(row["id"], str) or not row["answer"] or not isinstance(row["blocks"], list):
        return True
    for block in row["blocks"]:
        if not block or any(state is None or len(state) != size for state in block):
            return True
        ids += block
    return any(some is None or any(token is None or token < 0 for token in some) for some in ids)


def _schema() -> Schema:
    import pyarrow

    ids = pyarrow.list_(pyarrow.int32())
    blocks = pyarrow.list_(pyarrow.list_(ids))
    return pyarrow.schema([("id", pyarrow.string()), ("prompt", ids), ("answer", ids), ("blocks", blocks)])


def _parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise EnvironmentRefused(
            "cannot read or write trajectories: pyarrow is missing; run pip install 'specbench-llm[train]'"
        ) from error
    return parquet
