"""The planted faults: each one names what has to fail, and its patch still applies. `make test-faults` plants them."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.wording import wording

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("planted_faults", ROOT / "tests/faults/run.py")
assert _spec is not None
assert _spec.loader is not None
planted = sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(planted)


def test_each_applies_and_names_what_has_to_fail(tmp_path: Path) -> None:
    folder = planted.copied(tmp_path / "copy")
    for fault in planted.faults():
        assert fault.fails, fault.name
        assert all((ROOT / name).is_file() for name in fault.fails), fault.name
        assert planted.apply(fault.patch, folder) is None, fault.name
        assert planted.apply(fault.patch, folder, reverse=True) is None, fault.name


def test_every_area_has_two_and_half_of_all_were_written_without_the_tests_in_sight() -> None:
    found = planted.faults()
    assert len(found) >= 40
    assert min(Counter(fault.area for fault in found).values()) >= 2
    made_up = [fault for fault in found if fault.area != "gpu"]  # those were real, and an outside reading found them
    assert sum(fault.blind for fault in made_up) * 2 >= len(made_up)


def test_a_fault_that_does_not_apply_or_goes_unnoticed_is_a_complaint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # which take most of the time of a test as short as this
    (tmp_path / "sums.py").write_text("def total(a, b):\n    return a + b\n")
    (tmp_path / "test_sums.py").write_text("import sums\ndef test_total():\n    assert sums.total(2, 2) == 4\n")
    diff = "Area: sums\nBreaks: sums\nFails: test_sums.py\nBlind: no\nMissed at first: no\n\n" + (
        "diff --git a/sums.py b/sums.py\n--- a/sums.py\n+++ b/sums.py\n"
        "@@ -1,2 +1,2 @@\n def total(a, b):\n-    return {old}\n+    return {new}\n"
    )

    def complaint(old: str, new: str) -> str | None:
        patch = tmp_path / "fault.patch"
        patch.write_text(diff.format(old=old, new=new))
        found: str | None = planted.unnoticed(planted.read(patch), tmp_path)
        return found

    assert complaint("a + b", "a - b") is None
    assert complaint("a + b", "a * b") == "test_sums.py passes with it"
    assert wording(complaint("a + b + 0", "a - b") or "")
    assert complaint("a + b", "a +") == "test_sums.py did not run: pytest's exit status is 2"
