"""``import`` and what other commands do with its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import runs
from support.wording import wording

FILES = Path(__file__).parents[1] / "results" / "imports"


@pytest.fixture
def folder(cli: Any, tmp_path: Path) -> Path:
    vllm = [f"{label}={FILES / f'vllm_{label}.json'}" for label in ("ar", "spec")]
    return Path(cli.ok("import", *vllm, "--out", tmp_path / "in").out.splitlines()[-1])


def test_what_import_prints(cli: Any, tmp_path: Path) -> None:
    files = [FILES / "guidellm.json", f"aiperf={FILES / 'aiperf_spec.jsonl'}", FILES / "vllm_spec.json"]
    assert wording(cli.ok("import", *files, "--out", tmp_path / "in").out)
    found = json.loads(cli.ok("import", *files, "--out", tmp_path / "in", "--json").out)
    assert [row["label"] for row in found["rows"]] == ["guidellm", "aiperf", "vllm_spec"]
    assert len(list((tmp_path / "in").iterdir())) == 2


def test_show_compare_and_checks_say_what_measured(
    cli: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs.derived(tmp_path / "run")
    monkeypatch.chdir(tmp_path)  # where a long path wraps depends on its length
    near = folder.relative_to(tmp_path)
    for command in (["show", near], ["show", near, "--requests"], ["check-run", near], ["compare", near, "run"]):
        assert wording(cli.ok(*command).out)
    shown = json.loads(cli.ok("show", folder, "--requests", "--json").out)
    assert (len(shown["requests"]), [row["imported"] for row in shown["rows"]]) == (16, [True, True])
    rows = json.loads(cli.ok("compare", run, folder, "--json").out)["rows"]
    assert [(row["run"], row["method"], row["imported"]) for row in rows] == [
        ("A", "ar", False), ("A", "jetspec", False), ("B", "ar", True), ("B", "spec", True),
    ]  # fmt: skip


def test_a_report_takes_imports_with_and_without_runs(cli: Any, folder: Path, tmp_path: Path) -> None:
    run = runs.derived(tmp_path / "run")
    for folders in ([folder], [folder, run]):
        found = json.loads(cli.ok("report", *folders, "--out", tmp_path / "report", "--json").out)
        assert (found["imports"], found["skipped"]) == ([folder.name], [])
        for name in ("report.html", "report.md"):
            page = (tmp_path / "report" / name).read_text(encoding="utf-8")
            assert "measured by vllm bench serve (version not in its file)" in page
            assert "answers were not compared" in page


def test_what_imports_cannot_do_is_refused(cli: Any, folder: Path, tmp_path: Path) -> None:
    file = FILES / "vllm_ar.json"
    for command in (
        ["compare", folder, folder, "--fail-under", 0.9],
        ["import", file, file, "--out", tmp_path],
        ["import", f"a:b={file}", "--out", tmp_path],
        ["import", tmp_path / "missing.json"],
        ["score", folder],
    ):
        result = cli(*command)
        assert result.code == 2
        assert wording(result.error)


def test_a_file_cannot_bring_markup_or_codes(cli: Any, tmp_path: Path) -> None:
    content = json.loads((FILES / "vllm_ar.json").read_text(encoding="utf-8"))
    content["model_id"], content["backend"] = "<script>alert(1)</script>\x1b[31m", "\x1b[31m`x`"
    (tmp_path / "odd.json").write_text(json.dumps(content), encoding="utf-8")
    shown = cli.ok("import", tmp_path / "odd.json", "--out", tmp_path / "in").out
    assert "\x1b" not in shown
    cli.ok("report", tmp_path / "in", "--out", tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "\x1b" not in page
