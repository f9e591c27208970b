"""``sweep`` over models and tasks: one folder, one table, and killing it changes neither."""

from __future__ import annotations

import csv
import io
import json
import random
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import recompute
from small_data.speed import QUALITATIVE
from support import asserting, runs
from support.wording import wording

from specbench.analysis import Metric, Quality, TaskQuality, load_methods
from specbench.common import SpecbenchError, parse_flags
from specbench.evals.data import DATA_DIR
from specbench.models.names import configs
from specbench.results import ModelSpec, campaign_runs, read_campaign
from specbench.sweeps import CampaignPlan, campaign_blocks, campaign_plans, run_campaign, running

SHORT = ("--limit", 2, "--max-new-tokens", 4, "--no-score", "--deterministic")
COUNTS = ["model", "task", "temperature", "method", "prompts", "requests", "tokens", "tokens_per_forward", "lossless"]


@pytest.fixture
def other(tmp_path: Path) -> str:
    """A second tiny model."""
    shape = {**json.loads(configs()["tiny"].read_text()), "num_hidden_layers": 1}
    (tmp_path / "small.json").write_text(json.dumps(shape))
    return f"config:{tmp_path / 'small.json'}"


@pytest.fixture
def asked(tmp_path: Path, other: str) -> Path:
    """Two models, three tasks and three methods as a file."""
    own = tmp_path / "mine.jsonl"
    own.write_text("".join(f'{{"prompt": "Count to {n}."}}\n' for n in range(4)))
    speed = tmp_path / "speed.jsonl"
    speed.write_text("".join(f"{json.dumps(row)}\n" for row in QUALITATIVE))
    file = tmp_path / "six.yaml"
    file.write_text(
        f"model: [config:tiny, {other}]\ntask: [humaneval, prompts, speed-bench]\nmethod: [jacobi, pld, lookahead]\n"
        f"task-set: {{prompts.file: {own}, speed-bench.file: {speed}}}\nlimit: 2\n"
        "max-new-tokens: 4\nno-score: true\ndeterministic: true\n"
    )
    return file


def only(out: Path) -> Path:
    (folder,) = out.glob("campaign-*")
    return folder


def requests_in(out: Path) -> int:
    while True:
        with suppress(FileNotFoundError):  # a folder gets its final name while it is looked into
            return sum(len(file.read_text().splitlines()) for file in out.rglob("requests.jsonl"))


def more_than(out: Path, least: int) -> bool:
    return requests_in(out) > least


def test_a_killed_campaign_ends_with_the_same_table(cli: Any, tmp_path: Path, asked: Path) -> None:
    unbroken, out = tmp_path / "unbroken", tmp_path / "out"
    cli.ok("sweep", "--file", asked, "--out", unbroken)
    total = requests_in(unbroken)
    blocks = read_campaign(only(unbroken)).blocks
    assert len({(block.model, block.task) for block in blocks}) == 6

    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    for least in sorted(rng.sample(range(total - 12), 3)):
        if requests_in(out) <= least:
            asserting.killed(
                tmp_path / "output", "sweep", "--file", asked, "--out", out,
                when=partial(more_than, out, least), delay=rng.uniform(0, 0.05),
            )  # fmt: skip
    assert requests_in(out) < total, f"seed {seed}"
    cli.ok("sweep", "--file", asked, "--out", out)
    table = ("--rows", "model,method", "--columns", "task", "--value", "tpf")
    shown = [cli.ok("report", only(path), "--to", "csv", *table).out for path in (unbroken, out)]
    assert shown[0] == shown[1], f"seed {seed}"
    found = [load_methods(only(path))[COUNTS] for path in (unbroken, out)]
    pd.testing.assert_frame_equal(found[0], found[1], obj=f"seed {seed}")
    assert len(found[0]) == 6 * 4
    assert requests_in(out) == total


def test_figures_of_a_campaign_follow_from_its_records(cli: Any, tmp_path: Path, other: str) -> None:
    cli.ok("sweep", "--model", f"config:tiny,{other}", "--method", "jacobi", "--grid", "n=2,4", *SHORT, "--grid",
           "temperature=0,1", "--out", tmp_path / "out")  # fmt: skip
    folder = only(tmp_path / "out")
    by_hand = {}
    for _, place in campaign_runs(folder):
        run = runs.config_on_disk(place)
        for label in {spec["label"] for spec in run["methods"]}:
            lines = [line for line in runs.requests_on_disk(place) if line["method"] == label]
            mine = [recompute.Answer(line, shared=False) for line in lines]
            key = run["model"]["name"], run["sampling"]["temperature"], label
            by_hand[key] = sum(each.decoded for each in mine) / sum(each["target_forwards"] for each in mine)
    assert len(by_hand) == 2 * 2 * 3
    rows = load_methods(folder)
    found = {(row.model, row.temperature, row.method): row.tokens_per_forward for row in rows.itertuples()}
    assert found == pytest.approx(by_hand)
    table = ("--rows", "block_size", "--columns", "model,temperature", "--value", "tpf", "--to", "csv")
    lines = list(csv.DictReader(io.StringIO(cli.ok("report", folder, *table).out)))
    shown = {(each["figure"], each["row"]): float(each["value"]) for each in lines if each["value"]}
    assert shown == pytest.approx(
        {
            (f"tokens_per_forward {model}, T = {heat:g}", label.partition("=")[2]): value
            for (model, heat, label), value in by_hand.items()
            if label != "ar"
        },
        rel=1e-5,
    )


def test_one_model_and_task_is_a_plain_sweep(cli: Any, tmp_path: Path) -> None:
    cli.ok("sweep", "--model", "config:tiny", "--method", "jacobi", "--grid", "n=2", *SHORT, "--out", tmp_path)
    (folder,) = tmp_path.iterdir()
    assert (folder / "sweep.json").exists()
    assert "block_size" in cli.ok("show", folder, "--rows", "block_size", "--value", "tpf,vram").out


def test_a_command_line_replaces_options_of_the_file(asked: Path, tmp_path: Path) -> None:
    plan = CampaignPlan(file=asked, model="config:tiny", limit=1, out=tmp_path)
    blocks = campaign_blocks(campaign_plans(plan))
    assert [(block.plan.model, block.plan.limit) for block in blocks] == [("config:tiny", 1)] * 3
    assert [len(block.plan.task_settings) for block in blocks] == [0, 1, 1]


def test_each_of_the_runs_has_its_own_options(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(
        "model: config:tiny\nruns:\n- {method: pld}\n- {method: jf, grid: {n: [4, 8]}, temperature: [0, 1]}\n"
    )
    plans = [block.plan for block in campaign_blocks(campaign_plans(CampaignPlan(file=file)))]
    assert [(each.method, tuple(each.grid), each.temperature) for each in plans] == [
        ("pld", ("concurrency=1",), None), ("jf", ("n=4,8",), 0.0), ("jf", ("n=4,8",), 1.0),
    ]  # fmt: skip
    assert len({block.folder for block in campaign_blocks(campaign_plans(CampaignPlan(file=file)))}) == 3


def test_a_failed_block_leaves_the_others(
    tmp_path: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch, cli: Any
) -> None:
    whole = running.run_sweep

    def failing(plan: Any) -> Path:
        if plan.task == "prompts":
            raise SpecbenchError("no memory")
        return whole(plan)

    monkeypatch.setattr("specbench.sweeps.campaigns.run_sweep", failing)
    own = ("--task", "prompts,humaneval", "--task-set", f"prompts.file={prompts}")
    command = ("sweep", "--model", "config:tiny", "--method", "pld", *own, *SHORT, "--out", tmp_path)
    assert "no memory" in cli(*command).error
    blocks = read_campaign(only(tmp_path)).blocks
    assert [(block.task, bool(block.sweep), block.failed) for block in blocks] == [
        ("prompts", False, "no memory"), ("humaneval", True, ""),
    ]  # fmt: skip
    monkeypatch.setattr("specbench.sweeps.campaigns.run_sweep", whole)
    cli.ok(*command)
    finished = read_campaign(only(tmp_path)).blocks
    assert all(block.sweep for block in finished)
    monkeypatch.setattr("specbench.sweeps.campaigns.run_sweep", failing)
    assert "no memory" in cli(*command).error
    assert [block.sweep for block in read_campaign(only(tmp_path)).blocks] == [block.sweep for block in finished]


def test_mistakes_are_found_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.sweeps.campaigns.run_sweep", lambda plan: pytest.fail("it ran"))
    values: dict[str, Any]
    for values in ({"grid": ("typo=1",)}, {"task": "humaneval,nothing"}, {"task_settings": ("gsm8k.style=x",)}):
        given = {"model": "config:tiny,config:tiny", "method": "pld", "out": tmp_path, **values}
        plan = parse_flags(CampaignPlan, given)
        with pytest.raises(SpecbenchError):
            run_campaign(campaign_plans(plan))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text",
    ["- a", "modl: x", "limit: [1, 2]", "no-score: maybe", "limit: x", "runs: []", "train: msn", "file: other.yaml",
     "temperature: [0, x]", "grid: {n: [4]}\nruns: [{grid: {n: [4]}}, {grid: {n: [8]}}]"],
)  # fmt: skip
def test_a_wrong_file_is_refused(cli: Any, tmp_path: Path, text: str) -> None:
    (tmp_path / "wrong.yaml").write_text(f"{text}\n")
    result = cli(
        "sweep",
        "--model",
        "config:tiny",
        "--method",
        "jacobi",
        "--file",
        tmp_path / "wrong.yaml",
        "--out",
        tmp_path / "o",
    )
    assert result.code == 2
    assert wording(result.error.replace(str(tmp_path), ""))


def test_a_judge_and_quality_are_further_columns(
    cli: Any, tmp_path: Path, task_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def measured(plan: Any, say: Any) -> None:
        asked.append(plan)
        for name in plan.models:
            model = ModelSpec(
                name=name, source=name, revision=None, fingerprint="0" * 64, dtype="float32", device="cpu",
                parameters=1, weight_bytes=4, dummy=False,
            )  # fmt: skip
            found = Metric(metric="acc", filter="none", value=0.25, stderr=None, higher_is_better=True)
            task = TaskQuality(
                task="arc", version="1", shots=0, documents=4, of=4, data="json", revision="x", documents_hash="d",
                task_hash="t", metrics=[found],
            )  # fmt: skip
            made = Quality(model=model, lm_eval="0", limit=None, chat=False, tasks=[task], groups=[])
            plan.out.mkdir(exist_ok=True)
            (plan.out / "one.json").write_text(made.model_dump_json())

    monkeypatch.setenv(DATA_DIR, str(task_data))
    monkeypatch.setattr("specbench.quality.measure_quality", measured, raising=False)
    monkeypatch.setattr("specbench.runner.local_judge.LocalJudge.ask", lambda self, prompt: "Rating: [[7]]")
    command = ("sweep", "--model", "config:tiny", "--task", "mt-bench", "--method", "pld", *SHORT, "--out", tmp_path)
    more = ("--judge", "config:tiny", "--quality", "arc")
    for _ in range(2):
        cli.ok(*command, *more)
    assert len(asked) == 1, "a measured model is not measured again"
    rows = load_methods(only(tmp_path))
    assert list(zip(rows["method"], rows["rating"], rows["quality_arc"], strict=True)) == [
        ("ar", 7.0, 0.25), ("pld", 7.0, 0.25),
    ]  # fmt: skip
    assert "7.00" in cli.ok("show", only(tmp_path), "--value", "rating,quality_arc").out


def test_a_campaign_without_a_finished_block_says_why(cli: Any, tmp_path: Path) -> None:
    command = ("sweep", "--model", "config:tiny", "--task", "traces,traces-", "--out", tmp_path)
    assert wording(cli.refused(2, *command))
    result = cli("sweep", "--model", "config:tiny", "--task", "traces", "--grid", "temperature=0,1", *SHORT,
                 "--method", "pld", "--out", tmp_path)  # fmt: skip
    assert result.code == 3
    assert result.out.count("missing: config:tiny on traces") == 2


def test_a_dry_run_predicts_every_block(cli: Any, tmp_path: Path) -> None:
    command = ("sweep", "--model", "config:tiny", "--task", "humaneval,gsm8k", "--method", "pld", "--dry-run")
    found = json.loads(cli.ok(*command, "--json", "--out", tmp_path).out)
    assert [[cell["label"] for cell in each["cells"]] for each in found] == [["ar", "pld"]] * 2
    assert "config:tiny on gsm8k" in cli.ok(*command, "--out", tmp_path).out
    assert not list(tmp_path.iterdir())
