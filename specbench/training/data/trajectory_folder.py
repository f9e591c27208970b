"""Jacobi states of the target's own answers on disk: what consistency training learns from (CLLM §3.1; JF stage 1, 2).

A folder holds ``trajectories.json`` and numbered parquet shards of some answers each. A shard gets its name once it is
whole and carries its own statistics, so collecting can be killed at any moment and resumed.
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
    read_json_object,
    schema_version,
    validate,
    write_atomic,
    write_json_atomic,
)
from specbench.training.recipe import Token

if TYPE_CHECKING:
    from pyarrow import Schema

HEADER = "trajectories.json"
FORMAT = 1  # of the folder; raised when an older reader would misunderstand it
_AGAIN = "delete it and repeat its specbench train --collect command"
_STATISTICS = b"statistics"  # key of a shard's metadata


@dataclass(frozen=True)
class Trajectory:
    """Jacobi states of the blocks of one answer.

    Position 0 of every state is the fixed point's: the first token of a block is known before the block begins. A block
    of one state has nothing to learn: it was right from the start, or it was given up (see the folder's statistics) and
    keeps its place with its fixed point alone.

    Attributes:
        prompt: rendered prompt ids.
        answer: the target's own answer, up to and including its stop token.
        pad: id that fills the last block behind the answer's end, in all its states. Which tokens those are is for the
            length of ``answer`` to say: the target may write this id itself.
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
    """What all trajectories of a folder have in common.

    Attributes:
        shards: how many the folder has once it is finished.
        settings: how they were made: plain values by name, for people and for resuming.
    """

    model: str
    block_size: int
    pad: int
    shards: int
    settings: Mapping[str, Any]
    format: int = FORMAT


class _Statistics(RootModel[dict[str, float]]):
    """What a shard says of how its trajectories were made: counts and sums."""


class _Head(BaseModel):
    """A header's file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    block_size: int = Field(gt=0)
    pad: Token
    shards: int = Field(ge=0, lt=10**5)  # what a shard's name has digits for
    settings: dict[str, Any]
    format: int


def read(
    folder: Path, *, model: str | None = None, block_size: int | None = None, partial: bool = False
) -> Iterator[Trajectory]:
    """The trajectories of a folder, in the order of their answers; a shard is in memory at a time.

    Args:
        model: fingerprint of the model that they have to be of; None is any.
        block_size: the n that they have to have; None is any.
        partial: take what is there of an unfinished folder.

    Raises:
        UsageError: at the call: the folder holds none, those of another model or block size, or is unfinished; while
            reading: a shard is damaged.
    """
    header = read_header(folder)
    if model is not None and header.model != model:
        raise UsageError(
            f"{folder} holds trajectories of another model; collect this one's with specbench train --collect"
        )
    if block_size is not None and header.block_size != block_size:
        raise UsageError(
            f"{folder} holds blocks of {header.block_size} tokens, not {block_size}; set block_size to that"
        )
    there = [shard_path(folder, number) for number in range(header.shards)]
    missing = sum(not path.exists() for path in there)
    if missing and not partial:
        raise UsageError(
            f"{folder} lacks {missing} of {header.shards} shards; repeat its specbench train --collect command"
        )
    _parquet()
    return (each for path in there if path.exists() for each in _rows(path, header))


def read_header(folder: Path) -> Header:
    """What a folder says of its trajectories."""
    path = folder / HEADER
    if not path.is_file():
        raise UsageError(f"{folder} has no {HEADER}; name a folder that specbench train --collect wrote")
    todo = "remove the folder and collect it again"
    found = read_json_object(path, todo)
    schema_version(found, path, FORMAT, todo, field="format")
    return Header(**validate(_Head, found, path, todo).model_dump())


def write_header(folder: Path, header: Header) -> None:
    """Says of a folder what its trajectories have in common."""
    write_json_atomic(folder / HEADER, asdict(header))


def shard_path(folder: Path, number: int) -> Path:
    """Where shard ``number`` is, from 0."""
    return folder / f"trajectories-{number:05}.parquet"


def write_shard(path: Path, trajectories: Sequence[Trajectory], statistics: Mapping[str, Any]) -> None:
    """Writes a shard: all of it, or nothing."""
    import pyarrow

    rows = [{"id": t.id, "prompt": t.prompt, "answer": t.answer, "blocks": t.blocks} for t in trajectories]
    schema = _schema().with_metadata({_STATISTICS: json.dumps(dict(statistics))})
    buffer = io.BytesIO()
    _parquet().write_table(pyarrow.Table.from_pylist(rows, schema=schema), buffer, compression="zstd")
    write_atomic(path, buffer.getvalue())


def read_statistics(path: Path) -> dict[str, Any]:
    """Statistics of a shard, as :func:`write_shard` was given them."""
    try:
        with open_file(path, _AGAIN) as file:
            content = (_parquet().read_schema(file).metadata or {}).get(_STATISTICS, b"")
    except SpecbenchError:
        raise
    except Exception as error:  # pyarrow's own are of many kinds
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
            raise damaged(path, f"row {number} is no trajectory in blocks of {header.block_size}", _AGAIN)
        yield Trajectory(**row, block_size=header.block_size, pad=header.pad)


def _broken(row: Mapping[str, Any], size: int) -> bool:
    """Whether a row lacks what its column may lack for parquet, or has states of another length."""
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
            "trajectories are kept in parquet files; pip install 'specbench-llm[train]' brings pyarrow"
        ) from error
    return parquet
