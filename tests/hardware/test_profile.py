"""A profile's files: figures in the CSV, and reading back what this version wrote and what it did not."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from support.runs import MEASURED, made_up_profile
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.hardware.roofline import bound_s, step_cost
from specbench.hardware.stored_profile import PROFILE, SCHEMA, base_context, read_profile, steps_csv


def test_the_csv_has_a_row_for_each_point_and_units_in_its_columns() -> None:
    profile = made_up_profile()
    rows = list(csv.DictReader(io.StringIO(steps_csv(profile))))
    assert len(rows) == len(profile.points) == 14 * 5 + 4 * 4
    assert list(rows[0]) == [
        *("rows", "context_tokens", "slots", "step_ms", "step_low_ms", "step_high_ms", "steps", "flops", "bytes"),
        *("intensity_flop_per_byte", "achieved_gflop_s", "achieved_gb_s", "bound_ms", "share_of_bound"),
    ]
    known = {(p.rows, p.context, p.slots): p for p in profile.points}
    for row in rows:
        key = int(row["rows"]), int(row["context_tokens"]), int(row["slots"])
        point, cost = known.pop(key), step_cost(profile.shape, *key)
        seconds = float(row["step_ms"]) / 1e3
        assert seconds == pytest.approx(point.seconds, rel=1e-5)
        assert float(row["achieved_gflop_s"]) * 1e9 == pytest.approx(cost.flops / seconds, rel=1e-4)
        assert float(row["achieved_gb_s"]) * 1e9 == pytest.approx(cost.bytes / seconds, rel=1e-4)
        assert float(row["intensity_flop_per_byte"]) == pytest.approx(cost.flops / cost.bytes, rel=1e-5)
        least = bound_s(cost, profile.ceilings)
        assert float(row["bound_ms"]) == pytest.approx(1e3 * least, rel=1e-5)
        assert float(row["share_of_bound"]) == pytest.approx(least / point.seconds, rel=1e-4)
    assert not known


def test_contexts_ceilings_and_digest() -> None:
    assert made_up_profile().ceilings.bytes_per_s == MEASURED["read_bytes_per_s"] > MEASURED["copy_bytes_per_s"]
    assert base_context((128, 512, 2048)) == 512
    assert base_context((16, 64)) == 64
    assert base_context((100000, 2000)) == 2000
    one = made_up_profile()
    assert one.digest() == made_up_profile(points=one.points[:-1]).digest()
    assert one.digest() != made_up_profile(settings={"compile": True}).digest()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    profile = made_up_profile()
    (tmp_path / PROFILE).write_text(json.dumps(profile.model_dump(mode="json")))
    assert read_profile(tmp_path) == profile


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        f'{{"schema_version": {SCHEMA + 1}}}',
        f'{{"schema_version": {SCHEMA}}}',
    ],
)
def test_what_cannot_be_read_says_why(tmp_path: Path, text: str) -> None:
    (tmp_path / PROFILE).write_text(text)
    with pytest.raises(UsageError, check=wording):
        read_profile(tmp_path)
