"""Acceptance of drafts, held to code of another kind over the raw lines of ``requests.jsonl``."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import recompute
from support import runs

from specbench.analysis.acceptance.definitions import define
from specbench.analysis.acceptance.drafts import acceptance
from specbench.results.request_schema import RequestRecord

METHODS = ("pld", "lookahead", "recycling")


@pytest.fixture(scope="module")
def traced(cli: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A traced run: its trees say what was drafted, and which rows could not be accepted."""
    out = tmp_path_factory.mktemp("traced")
    rows = [json.dumps({"id": f"q{at}", "prompt": f"one two three one two {at} one two"}) for at in range(7)]
    (out / "mine.jsonl").write_text("\n".join(rows))
    task = ("--task", "prompts", "--data-file", out / "mine.jsonl", "--max-new-tokens", 24, "--trace")
    cli.ok("run", "--model", "config:tiny", "--method", ",".join(METHODS), *task, "--out", out / "runs")
    (folder,) = (out / "runs").glob("[!.]*")
    return folder


def steps(line: dict[str, Any]) -> list[tuple[int, int]]:
    """(draft tokens, accepted ones) of each forward of a line, from its trees."""
    trees = line["tokens"]["drafts"]
    return [(len(tree["ids"]) - len(tree["draft_only"]), len(tree["path"])) for tree in trees]


def drafted(lines: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [step for line in lines for step in steps(line) if step[0]]


def lines_of(folder: Path, method: str) -> list[dict[str, Any]]:
    return [line for line in runs.requests_on_disk(folder) if line["method"] == method]


def records_of(folder: Path, method: str) -> list[RequestRecord]:
    return [RequestRecord.model_validate(line) for line in lines_of(folder, method)]


@pytest.mark.parametrize("method", METHODS)
def test_summary_agrees_with_the_traced_trees(traced: Path, method: str) -> None:
    rows = json.loads((traced / "summary.json").read_text())["rows"]
    found = next(row["acceptance"] for row in rows if row["method"] == method)
    mine = drafted(lines_of(traced, method))
    tokens, accepted = (sum(column) for column in zip(*mine, strict=True))
    assert accepted, "a figure of nothing would agree with anything"
    assert (found["drafts"], found["draft_tokens"], found["accepted_tokens"]) == (len(mine), tokens, accepted)
    assert found["length"]["value"] == pytest.approx(1 + accepted / len(mine))
    assert found["length_without_bonus"] == pytest.approx(accepted / len(mine))
    assert found["rate"] == pytest.approx(accepted / tokens)
    assert found["histogram"] == {
        str(n): [kept for _, kept in mine].count(n) for n in range(1 + max(mine, key=lambda m: m[1])[1])
    }
    for at, share in found["positions"].items():
        assert share == pytest.approx(sum(kept >= int(at) for _, kept in mine) / len(mine))
    assert math.fsum(found["positions"].values()) == pytest.approx(accepted / len(mine))
    low, high = found["length"]["low"], found["length"]["high"]
    assert 1 <= low <= found["length"]["value"] <= high


@pytest.mark.parametrize("method", ["pld", "lookahead", "jf", "jetspec"])
def test_papers_definitions_agree_with_other_code(method: str) -> None:
    folder = runs.PIECES["headline-gsm8k"]
    answers = recompute.read(folder).row(method)
    found = {each.name: each.value for each in define(records_of(folder, method), "papers") or ()}
    assert found == pytest.approx(recompute.as_papers_count(answers))
    tau = {each.name: each.value for each in define(records_of(folder, method), "eagle") or ()}
    assert found["rounds"] == pytest.approx(tau["average acceptance length"])


def test_a_row_without_drafts_has_no_acceptance(traced: Path) -> None:
    assert acceptance(records_of(traced, "ar")) is None
    assert define(records_of(traced, "ar"), "vllm") is None


def test_tokens_accepted_beyond_the_budget_count(traced: Path) -> None:
    cut = [line for method in METHODS for line in lines_of(traced, method) if line["overshoot_tokens"]]
    assert cut
    for line in cut:
        accepted = sum(kept for _, kept in steps(line))
        assert accepted == sum(line["accepted_lengths"]) - len(line["accepted_lengths"]) + line["overshoot_tokens"]
        assert sum(n * many for n, many in enumerate(line["acceptance_histogram"])) == accepted


def test_lines_without_the_new_fields_are_read(traced: Path) -> None:
    def older(line: dict[str, Any], **more: Any) -> RequestRecord:
        kept = {name: value for name, value in line.items() if name not in ("draft_tokens", "acceptance_histogram")}
        return RequestRecord.model_validate({**kept, **more})

    lines = lines_of(traced, "pld")
    new, old = acceptance(records_of(traced, "pld")), acceptance([older(line) for line in lines])
    assert new is not None
    assert old is not None
    assert (old.length, old.positions, old.histogram) == (new.length, new.positions, new.histogram)
    assert (old.rate, old.draft_tokens) == (None, None)
    assert acceptance([older(line, tokens=None) for line in lines]) is None
    assert "acceptance_histogram" not in older(lines[0]).model_dump()


# ------------------------------------------------------------------------------------------------------- definitions


def defined(records: list[RequestRecord], engine: str) -> dict[str, Any]:
    found = define(records, engine)
    assert found is not None
    return {each.name: each.value for each in found}


class Observed:
    """vLLM's counters, fed draft by draft as its scheduler feeds them."""

    def __init__(self) -> None:
        self.drafts = self.tokens = self.accepted = 0
        self.per_position: Counter[int] = Counter()

    def observe(self, tokens: int, accepted: int) -> None:
        self.drafts += 1
        self.tokens += tokens
        self.accepted += accepted
        self.per_position.update(range(accepted))


@pytest.mark.parametrize("method", METHODS)
def test_vllms_definitions_equal_its_counters_replayed(traced: Path, method: str) -> None:
    counted = Observed()
    for tokens, accepted in drafted(lines_of(traced, method)):
        counted.observe(tokens, accepted)
    found = defined(records_of(traced, method), "vllm")
    assert (found["num_drafts"], found["num_draft_tokens"]) == (counted.drafts, counted.tokens)
    assert found["mean_acceptance_length"] == pytest.approx(1 + counted.accepted / counted.drafts)
    assert found["draft_acceptance_rate"] == pytest.approx(counted.accepted / counted.tokens)
    rates = [counted.per_position[at] / counted.drafts for at in range(max(counted.per_position) + 1)]
    assert found["per_position_acceptance_rate"] == pytest.approx(rates)
    llama = defined(records_of(traced, method), "llama.cpp")
    assert list(llama.values()) == pytest.approx(
        [counted.drafts, counted.tokens, counted.accepted, counted.accepted / counted.tokens,
         1 + counted.accepted / counted.drafts, pytest.approx(rates)]
    )  # fmt: skip


def test_vllms_own_counters_of_a_stored_run_agree() -> None:
    """vLLM wrote its counters per request; a draft had 5 tokens, and the last one perhaps fewer."""
    checked = 0
    for line in lines_of(runs.PIECES["engines"], "vllm:ngram"):
        drafts = math.ceil((line["tree_rows"] - line["target_forwards"]) / 5)
        theirs = line["measures"]["mean_acceptance_length"]
        counted = (theirs - 1) * drafts
        assert counted == pytest.approx(round(counted)), "no count of drafts but this one makes a whole number"
        kept = [tokens - 1 for tokens in line["accepted_lengths"]]
        trimmed = round(counted) - sum(kept)
        # vLLM counts before it cuts an answer at its budget, which only the last step of a cut answer shows.
        assert trimmed == 0 or (trimmed > 0 and line["finish_reason"] == "length" and kept[-1] + trimmed <= 5)
        kept[-1] += trimmed
        accepted = Counter(each for each in kept if each)
        accepted[0] = drafts - accepted.total()
        assert accepted[0] >= 0
        histogram = [accepted[each] for each in range(6)]
        more = {"draft_tokens": line["tree_rows"] - line["target_forwards"], "acceptance_histogram": histogram}
        found = defined([RequestRecord.model_validate({**line, **more})], "vllm")
        assert found["mean_acceptance_length"] == pytest.approx(theirs)
        assert found["num_drafts"] == drafts
        checked += 1
    assert checked == 40


def test_other_tools_definitions_follow_from_the_raw_lines(traced: Path) -> None:
    lines = lines_of(traced, "pld")
    records = records_of(traced, "pld")
    accepted = sum(kept for _, kept in drafted(lines))
    forwards = sum(len(line["accepted_lengths"]) for line in lines)
    tokens = [len(line["output_ids"]) for line in lines]
    sglang = defined(records, "sglang")
    lengths = [len(line["output_ids"]) / len(line["accepted_lengths"]) for line in lines]
    assert sglang["spec_accept_length"] == pytest.approx(sum(lengths) / len(lengths))
    assert sglang["avg_spec_accept_length"] == pytest.approx(1 + accepted / forwards)
    assert sum(sglang["spec_correct_drafts_histogram"]) == sglang["spec_verify_ct"] == forwards
    nvidia = defined(records, "tensorrt-llm")
    assert nvidia["acceptance_length"] == pytest.approx(sum(tokens) / (forwards + len(lines)))
    rates = [
        sum(kept for _, kept in steps(line)) / sum(made for made, _ in steps(line))
        for line in lines
        if sum(made for made, _ in steps(line))
    ]
    assert nvidia["acceptance_rate"] == pytest.approx(sum(rates) / len(rates))
    chunks = [[1, *line["accepted_lengths"]] for line in lines]
    bench = defined(records, "speed-bench")
    assert bench["Average_AL"] == pytest.approx(sum(sum(each) / len(each) for each in chunks) / len(chunks))
    flat = [length for each in chunks for length in each]
    for length, share in bench["Joint_Acceptance_Rate"].items():
        assert share == pytest.approx(sum(each >= length for each in flat) / len(flat))
    eagle = defined(records, "eagle")
    assert eagle["average acceptance length"] == pytest.approx((forwards + accepted) / forwards)
    taken = [kept for _, kept in drafted(lines)]
    for depth, share in enumerate(eagle["alpha"], 1):
        assert share == pytest.approx(sum(k >= depth for k in taken) / sum(k >= depth - 1 for k in taken))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp", "speed-bench", "eagle"])
def test_report_prints_every_tools_definitions(cli: Any, traced: Path, engine: str) -> None:
    rows = json.loads(cli.ok("report", traced, "--definitions", engine, "--json").out)["rows"]
    assert rows["ar"] is None
    assert list(rows["pld"]) == [*defined(records_of(traced, "pld"), engine)]
    shown = cli.ok("report", traced, "--definitions", engine, columns=140).out
    assert all(name in shown for name in rows["pld"])


def test_definitions_need_a_run(cli: Any) -> None:
    assert "definitions" in cli.refused(2, "report", runs.PIECES["jf-grid"], "--definitions", "vllm")


def test_definitions_of_unknown_tools_are_refused(cli: Any, traced: Path) -> None:
    assert "vllm" in cli.refused(2, "report", traced, "--definitions", "vlm")
    assert "--to" in cli.refused(2, "report", traced, "--definitions", "vllm", "--to", "csv")
