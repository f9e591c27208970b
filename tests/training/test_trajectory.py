"""Trajectories on disk: what is written is read, and nothing else is taken for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.training.data.trajectory_folder import (
    HEADER,
    Header,
    Trajectory,
    read,
    read_header,
    read_statistics,
    shard_path,
    write_header,
    write_shard,
)

FIRST = Trajectory("set/a", [1, 2], [3, 4, 5], 2, 9, [[[3, 1], [3, 4]], [[5, 9]]])
SECOND = Trajectory("set/é", [1], [7], 2, 9, [[[7, 9]]])
MADE = Header("fingerprint", 2, 9, 2, {"seed": 0, "init": "context"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_header(tmp_path, MADE)
    write_shard(shard_path(tmp_path, 0), [FIRST], {"blocks": 2})
    write_shard(shard_path(tmp_path, 1), [SECOND], {"blocks": 1})
    return tmp_path


def test_what_was_written_is_read(folder: Path) -> None:
    assert list(read(folder)) == [FIRST, SECOND]
    assert list(read(folder, model="fingerprint", block_size=2)) == [FIRST, SECOND]
    assert read_header(folder) == MADE
    assert read_statistics(shard_path(folder, 0)) == {"blocks": 2}


def test_an_unfinished_folder_is_read_only_when_asked(folder: Path) -> None:
    shard_path(folder, 0).unlink()
    with pytest.raises(UsageError, check=wording):
        read(folder)
    assert list(read(folder, partial=True)) == [SECOND]


def test_what_is_no_folder_of_trajectories_is_refused(folder: Path, tmp_path: Path) -> None:
    def refused(where: Path = folder, **wanted: Any) -> None:
        with pytest.raises(UsageError, check=wording):
            read(where, **wanted)

    refused(model="other")
    refused(block_size=4)
    refused(tmp_path / "nowhere")
    write_header(folder, replace(MADE, format=99))
    refused()
    (folder / HEADER).write_text("{}")
    refused()


@pytest.mark.parametrize("content", [b"", b"PAR1 torn", None])
def test_a_damaged_shard_is_named(folder: Path, content: bytes | None) -> None:
    path = shard_path(folder, 0)
    path.write_bytes(path.read_bytes()[:-9] if content is None else content)
    with pytest.raises(UsageError, check=wording):
        list(read(folder))
    with pytest.raises(UsageError, check=wording):
        read_statistics(path)
