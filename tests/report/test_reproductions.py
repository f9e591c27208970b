"""Files of published tables: each runs something or says what it needs, and printed figures meet their rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.runs import EXACT, answers, folder, run_config

from specbench.common import UsageError, parse_flags
from specbench.planning import Plan, resolve
from specbench.report import find_reproduction, published_claims, reproduction_report, reproductions
from specbench.report.claims.check import Check
from specbench.report.claims.listing import table_of
from specbench.report.claims.reproductions import Reproduction, check_picture, compare_published
from specbench.report.document import Table
from specbench.sweeps import CampaignPlan, campaign_blocks, campaign_plans, parse_campaign, parse_written
from specbench.sweeps.running import expanded

#: What the five sources have, by our names.
PUBLISHED = {
    "jf": "table-3 fig-2 fig-5 fig-6 fig-7a fig-7b",
    "cllm": "table-1 table-2 table-3 table-4 table-5 table-6 table-7 table-8 table-9 fig-3",
    "lookahead": "fig-speed fig-step grid",
    "msn": "table-1 table-2 table-3 table-4 table-5 table-6 fig-4 fig-5 fig-6 fig-7",
    "jetspec": "grid gamma branches session fig-race",
}
EVERY = [(source, table) for source, tables in PUBLISHED.items() for table in tables.split()]


def test_every_published_table_has_a_file() -> None:
    assert sorted(reproductions()) == sorted(EVERY)


@pytest.mark.parametrize(("source", "table"), EVERY)
def test_a_file_runs_something_or_says_what_it_needs(source: str, table: str) -> None:
    made, file = find_reproduction(source, table)
    assert bool(made.campaign) + bool(made.run) + bool(made.needs) == 1
    assert {*made.claims} <= {table_of(claim) for claim in published_claims().claims}
    assert bool(made.small) != bool(made.needs)
    for scale in ("full", "small"):
        options: Any = made.options(scale)
        if made.run:
            assert check_picture(made, file) if made.picture else made.claims
            resolve(parse_flags(Plan, parse_written(options, file, Plan)))
        elif made.campaign:
            plans = campaign_plans(parse_flags(CampaignPlan, {}), parse_campaign(options, file))
            for block in campaign_blocks(plans):
                expanded(block.plan)
                assert scale == "full" or block.plan.limit, "few prompts"
                assert scale == "full" or block.plan.model.startswith("smollm2-135m")


def test_unknown_names_are_refused() -> None:
    for names in (("jff", "table-3"), ("jf", "table-99")):
        with pytest.raises(UsageError):
            find_reproduction(*names)


@pytest.fixture
def coder(tmp_path: Path) -> list[Path]:
    """Runs of Jacobi Forcing's published coder on two tasks, at 4.0 and 2.0 tokens per forward."""
    made = []
    for task, forwards in (("humaneval", 6), ("gsm8k", 12)):
        config = run_config(["jf"], 24)
        model = config.model.model_copy(update={"name": "jf-coder-7b", "dummy": False, "dtype": "bfloat16"})
        options = {"multiblock": True, "recycling": True, "block_size": 64, "num_blocks": 2, "pool_size": 4}
        methods = [
            spec if spec.label == "ar" else spec.model_copy(update={"name": "jf", "options": options})
            for spec in config.methods
        ]
        config = config.model_copy(
            update={"model": model, "methods": methods, "task": config.task.model_copy(update={"name": task})}
        )
        ended: dict[str, Any] = {"finish_reason": "stop"}  # Jacobi Forcing counts answers that ended
        drafted = answers("jf", 24, decode_s=0.24, target_forwards=forwards, **ended)
        records = [*answers("ar", 24, decode_s=0.72, **ended), *drafted]
        made.append(folder(tmp_path / task, config, records, lossless={"jf": EXACT}))
    return made


def test_printed_figures_meet_the_row_of_their_task(coder: list[Path]) -> None:
    made = Reproduction(title="t", claims=["jf-humaneval", "jf-gsm8k"], campaign={"model": "x"})
    found = {(each.claim.id, each.figure): each for each in compare_published(made, coder)}
    there: dict[str, Check] = {
        task: found[key]
        for task in ("humaneval", "gsm8k")
        for key in found
        if key[1] == "TPF" and key[0].startswith(f"jf-{task}/jf-mr")
    }
    assert {task: each.ours for task, each in there.items()} == {"humaneval": 4.0, "gsm8k": 2.0}
    assert there["gsm8k"].verdict == "not comparable", "it is the coder, not the model of that row"
    assert {key[0].partition("/")[2].partition("-")[0] for key in found} == {"ar", "jf"}, "no row of other methods"
    (table,) = [block for block in reproduction_report(made, list(found.values())) if isinstance(block, Table)]
    rows = {row.key: [cell.text for cell in row.cells] for row in table.rows}
    assert [column.title for column in table.columns][:5] == ["method", "task", "TPF", "ours", ""]
    printed = {key: row[2] for key, row in rows.items() if "/jf-mr" in key}
    assert sorted(printed.values()) == ["4.0", "4.1"]


def test_an_agreeing_figure_has_a_sign(coder: list[Path]) -> None:
    made = Reproduction(title="t", claims=["jf-humaneval"], campaign={"model": "x"})
    found = compare_published(made, coder)
    (table,) = [block for block in reproduction_report(made, found) if isinstance(block, Table)]
    signs = {each.verdict for each in found}
    texts = {cell.text for row in table.rows for cell in row.cells}
    for verdict, sign in (("repeated", "="), ("not repeated", "≠")):
        assert (verdict in signs) == (sign in texts)
