"""Folders that are made, or refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.wording import wording

from specbench.common import EnvironmentRefused
from specbench.common.files import check_writable, make_folder


def test_a_folder_is_made_with_those_above_it(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_more_folders_in_each_other_than_pathlib_takes_are_refused(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d"] * 1900)  # within what Linux takes of a path
    with pytest.raises(EnvironmentRefused, check=wording):
        check_writable(deep)
