"""Profiles of this machine, stored where commands look for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specbench.common.files import write_json_atomic
from specbench.hardware.stored_profile import PROFILE, Profile
from specbench.planning import auto_size
from specbench.planning.plan import PROFILES


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Stores a profile and returns its folder; no GPU is here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(auto_size.gpus, "seen", list)

    def put(profile: Profile, name: str = "20261101T000000Z-profile") -> Path:
        folder = tmp_path / PROFILES / name
        folder.mkdir(parents=True)
        write_json_atomic(folder / PROFILE, profile.model_dump(mode="json"))
        return folder

    return put
