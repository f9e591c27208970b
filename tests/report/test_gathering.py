"""What a report is made of: found wherever it lies, used whole or not at all, and named when it is not used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support import runs
from support.runs import EXACT, answers, folder, run_config
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.hardware.stored_profile import PROFILE, Profile
from specbench.report.document import Section
from specbench.report.gathering import gather, read_whole_run
from specbench.report.page import sweeps as sweeps_page
from specbench.report.page.build import build_what_can_be

Damage = Callable[[Path], object]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run of ar and jf on eight prompts."""
    records = [*answers("ar", 8, decode_s=1.0), *answers("jf", 8, decode_s=0.5, target_forwards=8)]
    return folder(tmp_path / "runs", run_config(["jf"], 8), records, lossless=dict.fromkeys(["ar", "jf"], EXACT))


def profile(at: Path) -> Path:
    at.mkdir(parents=True)
    (at / PROFILE).write_text(runs.made_up_profile().model_dump_json())
    return at


def test_an_odd_folder_leaves_the_others_in_the_report(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = runs.made_up_profile().model_dump(mode="json")
    odd: dict[str, dict[str, object]] = {
        "context": {"base_context": 7},
        "ceiling": {"measured": {**content["measured"], "flops_per_s": 0}},
    }
    for name, fields in odd.items():
        profile(run.parent / name).joinpath(PROFILE).write_text(json.dumps({**content, **fields}))
    profile(run.parent / "unshown")
    profile(run.parent / "whole")
    section = sweeps_page.profile_section

    def shown(name: str, read: Profile) -> Section:
        return section(name, read.model_copy(update={"points": []}) if name == "unshown" else read)

    monkeypatch.setattr(sweeps_page, "profile_section", shown)
    document, found = build_what_can_be(gather([run.parent]))
    assert {each.folder for each in found.skipped} == {"context", "ceiling", "unshown"}
    assert [each.path for each in found.runs] == [run]
    assert [name for name, _ in found.profiles] == ["whole"]
    assert "profiles" in [section.id for section in document.sections]


def lines(run: Path, change: Callable[[list[str]], list[str]]) -> None:
    file = run / "requests.jsonl"
    file.write_text("".join(change(file.read_text().splitlines(keepends=True))))


def edited(file: str, **fields: object) -> Damage:
    def damage(run: Path) -> None:
        content = json.loads((run / file).read_text())
        (run / file).write_text(json.dumps({**content, **fields}))

    return damage


def row(**fields: object) -> Damage:
    def damage(run: Path) -> None:
        content = json.loads((run / "summary.json").read_text())
        content["rows"][1] |= fields
        (run / "summary.json").write_text(json.dumps(content))

    return damage


def reversed_rows(run: Path) -> None:
    content = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**content, "rows": content["rows"][::-1]}))


def projection(text: str) -> Damage:
    return lambda run: (run / "projection-x.json").write_text(text)


#: One damage per file, and those that only a report reads; the tests of the reader have all others.
DAMAGES: dict[str, tuple[Damage, str]] = {
    "run.json cut off": (lambda run: (run / "run.json").write_text("{"), "run.json is damaged"),
    "run.json lost": (lambda run: (run / "run.json").unlink(), "has no run.json"),
    "another task": (edited("run.json", task={"name": "t"}), "field 'task.version'"),
    "cut off in a line": (lambda run: lines(run, lambda all: [*all[:-1], all[-1][:50]]), "it holds 7 requests of jf"),
    "rows in another order": (reversed_rows, "another order"),
    "summary with words for figures": (row(tokens_per_forward="fast"), "field 'rows.1.tokens_per_forward'"),
    "a projection of nothing": (projection('{"rows": 1}'), "damaged"),
    "a projection of another": (
        projection('{"rows": {"pld": {"decode_tok_s": {"value": 2, "low": 1, "high": 3}}}, "gpu": "x", "device": "y"}'),
        "another run",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_damaged_is_named_and_not_used(run: Path, name: str) -> None:
    damage, reason = DAMAGES[name]
    profile(run.parent / "sound")
    damage(run)
    found = gather([run.parent])
    assert [name for name, _ in found.profiles] == ["sound"]
    assert found.runs == ()
    (skipped,) = found.skipped
    assert skipped.folder == run.name
    assert reason in skipped.why
    assert str(run.parent) not in skipped.why, "a report may be published without the folder's location"
    with pytest.raises(UsageError, check=wording):
        gather([run])


def test_a_sound_run_is_used_and_one_that_was_killed_is_not_complete(run: Path) -> None:
    found = gather([run.parent])
    (made,) = found.runs
    assert found.skipped == ()
    assert (made.id, made.folder, made.complete) == (run.name, run.name, True)
    assert [row.method for row in made.rows] == ["ar", "jf"]
    assert made.tallies["jf"].accepted_lengths == {3: 64}
    pooled = made.tallies["jf"].tokens_per_forward("pooled")
    assert pooled is not None
    assert pooled.value == pytest.approx(24 / 8)
    (run / "DONE").unlink()
    lines(run, lambda all: [*all[:-1], all[-1][:50]])  # its last line was torn; its summary is of an earlier command
    made = read_whole_run(run)
    assert not made.complete
    assert made.rows[1].requests == 7
    assert made.rows[1].tokens_per_forward == pytest.approx(3)


def test_they_are_found_below_a_folder_once_each(run: Path, tmp_path: Path) -> None:
    outer = run.parent
    profile(outer / "deep" / "er" / "p")
    (outer / "deep" / "link").symlink_to(outer)
    (outer / ".hidden.tmp").mkdir()
    shutil.copytree(run, outer / ".hidden.tmp" / "draft")
    (outer / "notes").mkdir()
    (outer / "README.md").write_text("")
    found = gather([outer, run, outer / "deep"])
    assert [made.folder for made in found.runs] == [run.name]
    assert [name for name, _ in found.profiles] == ["p"]
    assert found.skipped == ()
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "file").write_text("")
    with pytest.raises(UsageError, check=wording):
        gather([empty])
    with pytest.raises(UsageError, check=wording):
        gather([empty / "nowhere"])
    with pytest.raises(UsageError, check=wording):
        gather([empty / "file"])


def test_a_copy_is_not_a_second_run(run: Path) -> None:
    shutil.copytree(run, run.parent / "copy")
    found = gather([run.parent])
    assert len(found.runs) == 1
    assert [(each.folder, each.why) for each in found.skipped] == [("copy", f"the same run as {run.name}")]


def test_a_damaged_sweep_or_profile_is_named(tmp_path: Path, run: Path) -> None:
    (profile(tmp_path / "runs" / "p") / PROFILE).write_text("{}")
    swept = tmp_path / "runs" / "s"
    swept.mkdir()
    (swept / "sweep.json").write_text(json.dumps({"schema_version": 1}))
    found = gather([tmp_path / "runs"])
    assert len(found.runs) == 1
    assert {each.folder for each in found.skipped} == {"p", "s"}
    assert all("damaged" in each.why or "lost" in each.why for each in found.skipped)
