"""``reproduce`` on dummy weights: its list, what it refuses, its dry run, a table and a picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.wording import wording

from specbench.common import Child
from specbench.evals.grading import launch
from specbench.report.claims import reproductions as room
from specbench.report.claims.reproductions import Reproduction, reproductions

OWN = {
    "table-1": Reproduction(
        title="Ours", claims=["cllm-gsm8k", "spec-bench-a100-7b", "jf-humaneval"], rows=["method"],
        campaign={
            "model": "config:tiny", "method": ["jacobi", "pld"], "task": "humaneval", "limit": "2",
            "max-new-tokens": "4", "no-score": "true",
        },
        small={"method": "pld"}, value=["tokens_per_forward", "rating"],  # no judge is asked
    ),
    "fig-1": Reproduction(
        title="A picture", run={"model": "config:tiny", "method": "jacobi", "task": "humaneval", "max-new-tokens": "6"},
        small={"limit": "1", "no-score": "true"}, picture={"trajectory": "yes", "method": "jacobi"},
    ),
    "fig-2": Reproduction(
        title="A race", run={"model": "config:tiny", "method": "jacobi", "task": "humaneval", "max-new-tokens": "6"},
        small={"limit": "1", "no-score": "true"}, picture={"race": "ar,jacobi"},
    ),
    "fig-3": Reproduction(
        title="A round", run={"model": "config:tiny", "method": "jacobi", "task": "humaneval", "max-new-tokens": "6"},
        small={"limit": "1", "no-score": "true"}, picture={"round": "99", "method": "jacobi"},  # more than it has
    ),
    "table-2": Reproduction(title="Trainings", needs="it takes trainings"),
}  # fmt: skip


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of our own."""
    monkeypatch.setattr(room, "reproductions", lambda: {("x", name): made for name, made in OWN.items()})


def test_the_list_has_every_table(cli: Any) -> None:
    listed = json.loads(cli.ok("reproduce", "--json").out)
    assert [(each["source"], each["table"]) for each in listed] == list(reproductions())
    assert wording.sentences(cli.ok("reproduce", columns=100).out)


@pytest.mark.parametrize(
    ("code", "argv"),
    [(2, ["jf"]), (2, ["unknown", "table-1"]), (2, ["jf", "table-99"]), (2, ["jf", "table-3", "--scale", "tiny"]),
     (3, ["cllm", "table-6"])],
)  # fmt: skip
def test_what_cannot_be_made_is_refused(cli: Any, code: int, argv: list[str]) -> None:
    assert wording(cli.refused(code, "reproduce", *argv))


def test_full_scale_needs_a_card(cli: Any, ours: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "CUDA" in cli.refused(3, "reproduce", "x", "table-1", "--out", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_table_is_made_and_compared(cli: Any, ours: None, tmp_path: Path) -> None:
    command = ("reproduce", "x", "table-1", "--device", "cpu", "--out", tmp_path)
    found = json.loads(cli.ok(*command, "--json").out)
    assert {each["row"] for each in found["figures"]} == {"ar", "jacobi", "pld"} - {"jacobi", "pld"}
    shown = cli.ok(*command, columns=120).out
    assert shown.index("Ours") < shown.index("Printed and ours")
    small = cli.ok("reproduce", "x", "table-1", "--scale", "small", "--out", tmp_path, columns=120)
    assert "jacobi" not in small.out.partition("Printed")[0]
    assert {path.name for path in tmp_path.iterdir()} == {"campaign-x-table-1-full", "campaign-x-table-1-small"}


@pytest.mark.parametrize(("table", "suffix"), [("fig-1", "svg"), ("fig-2", "html"), ("fig-3", "svg")])
def test_a_picture_is_drawn(cli: Any, ours: None, tmp_path: Path, table: str, suffix: str) -> None:
    cli.ok("reproduce", "x", table, "--scale", "small", "--out", tmp_path)
    (folder,) = tmp_path.iterdir()
    assert len((folder / f"x-{table}.{suffix}").read_text()) > 500


def test_a_dry_run_says_memory_hours_and_downloads(cli: Any, tmp_path: Path) -> None:
    (small,) = json.loads(cli.ok("reproduce", "jf", "fig-7a", "--scale", "small", "--dry-run", "--json").out)
    assert (small["prompts"], small["configurations"], small["fetch"]) == (4, 10, [])
    assert small["memory_bytes"] > 135e6 * 4
    (full,) = json.loads(cli.ok("reproduce", "jf", "fig-7a", "--dry-run", "--json").out)
    assert full["fetch"] == ["JacobiForcing/JacobiForcing_Coder_7B_v1"]
    assert full["memory_bytes"] > 7e9 * 2  # 7B weights, at least in 16 bits
    assert "JacobiForcing" in cli.ok("reproduce", "jf", "fig-7a", "--dry-run").out.replace("\n", "")


@pytest.mark.slow
@pytest.mark.parametrize(("source", "table"), [key for key, made in reproductions().items() if not made.needs])
def test_every_table_runs_at_small_scale(
    cli: Any, tmp_path: Path, task_data: Path, source: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepting = (
        f"import sys\nfrom pathlib import Path\nsys.path.append({str(Path(__file__).parents[1])!r})\n"
        "import small_data\nfrom specbench.evals.__main__ import main\n"
        f"with small_data.accept(Path({str(task_data)!r})):\n    sys.exit(main(sys.argv[1:]))"
    )

    def scorer(command: list[str], **how: Any) -> Child:
        """The scoring process, which takes our data for the published as this one does."""
        return Child([sys.executable, "-c", accepting, *command[3:]], **how)

    monkeypatch.setenv("SPECBENCH_DATA", str(task_data))
    monkeypatch.setattr(launch, "Child", scorer)
    cli.ok("reproduce", source, table, "--scale", "small", "--limit", 1, "--out", tmp_path)
