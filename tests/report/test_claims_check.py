"""Published rows held against planted runs: repeated, not repeated, and each reason why they cannot be compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.runs import EXACT, LOSSY, answers, folder, run_config
from support.wording import wording

from specbench.analysis import UNLIKE
from specbench.common import UsageError
from specbench.report.claims.catalog import Catalog, read
from specbench.report.claims.check import TOLERANCE, WIDEST, Check, check, check_claims
from specbench.report.claims.section import claims_section
from specbench.report.gathering import gather, read_whole_run
from specbench.results.request_schema import RequestRecord
from specbench.results.schema import RunConfig, SamplingSpec

# The run below: 24 tokens after the first in 8 forwards, 3.00 per forward; AR takes 24 forwards and 3 times as long.
CLAIM = """
[parameters]
"Qwen3-8B" = 7568405504

[gpus]
"A100" = ["a100-80gb"]
"H100" = ["h100-sxm"]

[[table]]
name = "t"
paper = "P"
source = "Table 1"
url = "https://a.invalid/1"
gpu = "A100"
model = "Qwen3-8B"
task = "humaneval"
temperature = 0
metric = "%"
tpf_is = "pooled"
claim = [
  { method = "pld", FIGURES },
]
"""

PROMPTS = 24


def catalog(figures: str, **table: str) -> Catalog:
    """A table of one row; what is named here stands in the table instead."""
    text = CLAIM.replace("FIGURES", figures)
    for name, value in table.items():
        (before,) = [line for line in CLAIM.splitlines() if line.startswith(f"{name} = ")]
        text = text.replace(before, f"{name} = {value}" if value else "")
    return read(text)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Run folders; each of the same arguments once."""
    made: dict[str, Path] = {}

    def plant(prompts: int = PROMPTS, change: Any = None, uneven: int = 0, **changes: Any) -> Path:
        key = repr((prompts, change, uneven, changes))
        if key not in made:
            more = {key: changes.pop(key) for key in ("right", "lossless", "finish") if key in changes}
            made[key] = folder(
                tmp_path_factory.mktemp("run"),
                _config(prompts, changes),
                [
                    *answers("ar", prompts, decode_s=0.72),
                    *answers("pld", range(0, prompts, 2), decode_s=0.24, target_forwards=8),
                    *answers("pld", range(1, prompts, 2), decode_s=0.24, target_forwards=8 + uneven),
                ],
                change=change,
                **{"lossless": {"pld": EXACT}, **more},
            )
        return made[key]

    return plant


def _config(prompts: int, changes: Mapping[str, Any]) -> RunConfig:
    made = run_config(["pld"], prompts, **{k: v for k, v in changes.items() if k not in ("model", "task", "lot")})
    parts = {part: getattr(made, part).model_copy(update=changes.get(part, {})) for part in ("model", "task")}
    return made.model_copy(update=parts)


def one(path: Path, published: Catalog, figure: str) -> Check:
    (found,) = [each for each in check(published, read_whole_run(path)) if each.figure == figure]
    return found


def all_right(record: RequestRecord) -> bool:
    return True


@pytest.mark.parametrize(
    ("figures", "figure", "verdict"),
    [
        ("tpf = 3.00", "TPF", "repeated"), ("tpf = 3.0", "TPF", "repeated"),
        ("tpf = 3.2", "TPF", "not repeated"), ("tpf = 2.9", "TPF", "not repeated"),
        ("tpf = 3", "TPF", "repeated"),  # a figure of one digit says no more
        ("speedup = 3.0", "speedup", "repeated"), ("speedup = 2.5", "speedup", "not repeated"),
        ("speedup = 3.5", "speedup", "not repeated"),
        ("accuracy = 98.0, tpf = 3", "score", "repeated"), ("accuracy = 60.0, tpf = 3", "score", "not repeated"),
    ],
)  # fmt: skip
def test_a_figure_is_repeated_where_our_interval_covers_it(
    planted: Callable[..., Path], figures: str, figure: str, verdict: str
) -> None:
    found = one(planted(right=all_right), catalog(figures), figure)
    assert (found.verdict, found.why, found.row) == (verdict, (), "pld")
    assert found.low is not None
    assert found.high is not None
    assert found.ours is not None
    assert found.low <= found.ours <= found.high


def test_a_report_judges_as_the_check_does_by_the_most_similar_run(planted: Callable[..., Path]) -> None:
    far, near = planted(task={"name": "gsm8k"}), planted()
    apart = "task: gsm8k, not humaneval"
    for figures, runs, verdict, differs in (
        ("tpf = 3.0", [far, near], "repeated", ""),
        ("tpf = 2.9, speedup = 3.0", [near, far], "not repeated", ""),
        ("tpf = 3.0, speedup = 3.0", [far], "not comparable", apart),
    ):
        section = claims_section(gather(runs), catalog(figures))
        (table,) = [found for found in section.tables() if found.name == "claims pld"]
        (row,) = table.rows
        cells = {column.key: cell.text for column, cell in zip(table.columns, row.cells, strict=True)}
        assert (cells["tpf_here"], cells["tpf_verdict"], cells["differs"]) == ("3.00", verdict, differs)
        assert one(far if differs else near, catalog(figures), "TPF").verdict == verdict


def test_without_an_interval_ours_may_be_a_tenth_off(planted: Callable[..., Path]) -> None:
    path = planted()
    speed = one(path, catalog("tok_s = 100"), "tok/s").ours
    assert speed is not None
    for off, verdict in ((0.99 * TOLERANCE, "repeated"), (1.01 * TOLERANCE, "not repeated")):
        for there in (speed / (1 + off), speed / (1 - off)):
            found = one(path, catalog(f"tok_s = {there:.4f}"), "tok/s")
            assert (found.verdict, found.low, found.high) == (verdict, None, None)


def test_a_wide_interval_covers_too_much_to_repeat_anything(planted: Callable[..., Path]) -> None:
    found = one(planted(prompts=6, uneven=16), catalog("tpf = 1.4"), "TPF")
    assert found.ours is not None
    assert found.low is not None
    assert found.high is not None
    assert (found.high - found.low) / 2 > WIDEST * found.ours
    assert found.low < 1.4 < found.high
    assert found.verdict == "not comparable"
    assert found.why == (f"too few prompts: the interval is [{found.low:.2f}, {found.high:.2f}]",)
    few = one(planted(prompts=2), catalog("tpf = 3.0"), "TPF")
    assert (few.verdict, few.why) == ("not comparable", ("too few prompts for an interval: 2",))


def _unsure(content: dict[str, Any]) -> None:
    content["disturbed"] = {"reasons": ["other processes took 31% of the cores"]}


FIGURES = "tpf = 3.0, speedup = 3.0"

#: What is other in the run, or in the published table and row, and the reasons of TPF and of the speedup.
APART: dict[str, tuple[dict[str, Any], dict[str, str], str, str, str]] = {
    "model": (
        {"model": {"name": "smollm2-135m", "parameters": 134_515_008}}, {}, FIGURES,
        "model: smollm2-135m, not Qwen3-8B", "model: smollm2-135m, not Qwen3-8B",
    ),
    "dummy": ({"model": {"dummy": True}}, {}, FIGURES, "model: dummy weights", "model: dummy weights"),
    "not given": ({}, {"model": ""}, FIGURES, "model: config:qwen3-8b, not given there", ""),
    "GPU": ({}, {"gpu": '"H100"'}, FIGURES, "", "GPU: NVIDIA A100-SXM4-80GB, not H100"),
    "no GPU": ({}, {"gpu": ""}, FIGURES, "", "GPU: NVIDIA A100-SXM4-80GB, not given there"),
    "task": ({}, {"task": '"gsm8k"'}, FIGURES, "task: humaneval, not gsm8k", ""),
    "batch": ({}, {}, f"{FIGURES}, batch = 8", "batch: 1, not 8", ""),
    "temperature": ({}, {"temperature": "1"}, FIGURES, "temperature: 0, not 1", ""),
    "sampled": (
        {"sampling": SamplingSpec(temperature=0.6, top_k=0, top_p=1, seed=0)}, {}, FIGURES,
        "temperature: 0.6, not 0", "",
    ),
    "options": ({}, {}, f"{FIGURES}, options = {{ n = 64 }}", "n: 16, not 64", ""),
    "weights": (
        {}, {}, f'{FIGURES}, trained_for = "cllm"', "weights: trained for no method, published ones for cllm", "",
    ),
    "trained": (
        {"model": {"name": "smollm2-135m-msn"}}, {"model": '"SmolLM2-135M"'}, FIGURES,
        "weights: trained for msn, published ones for no method", "",
    ),
    "dtype": ({"model": {"dtype": "float32"}}, {}, FIGURES, "", "dtype: float32, not 16 bits"),
    "traced": ({"trace": True}, {}, FIGURES, "", "the run was traced, which slows its steps"),
    "disturbed": ({"change": _unsure}, {}, FIGURES, "", "the run was disturbed"),
    "lossy": ({"lossless": {"pld": LOSSY}}, {}, FIGURES, "the run's text is not AR's (lossy)", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", APART)
def test_what_was_measured_on_something_else_gives_its_reason_and_no_verdict(
    planted: Callable[..., Path], case: str
) -> None:
    run, table, figures, of_tpf, of_speedup = APART[case]
    found = {each.figure: each for each in check(catalog(figures, **table), read_whole_run(planted(**run)))}
    for figure, why in (("TPF", of_tpf), ("speedup", of_speedup or of_tpf)):
        if why:
            assert found[figure].verdict == "not comparable"
            assert why in found[figure].why
        else:
            assert (found[figure].verdict, found[figure].why) == ("repeated", ())


def test_a_method_that_claims_no_losslessness_is_compared(planted: Callable[..., Path]) -> None:
    def claims_nothing(content: dict[str, Any]) -> None:
        content["rows"][1]["lossless_claimed"] = False

    path = planted(lossless={"pld": LOSSY}, change=claims_nothing)
    assert one(path, catalog(FIGURES), "TPF").verdict == "repeated"


def test_ar_of_a_disturbed_run_is_not_compared_either(planted: Callable[..., Path]) -> None:
    published = read(CLAIM.replace('{ method = "pld", FIGURES }', '{ method = "ar", tok_s = 41 }'))
    assert one(planted(change=_unsure), published, "tok/s").why == ("the run was disturbed",)
    assert one(planted(), published, "tok/s").verdict != "not comparable"


def test_a_model_of_its_size_is_compared_and_named_but_not_by_its_answers(planted: Callable[..., Path]) -> None:
    path = planted(model={"name": "config:llama-3-8b", "parameters": 8_030_261_248}, right=all_right)
    published = catalog(f"{FIGURES}, accuracy = 98.0")
    shown_text = "another model of its size: config:llama-3-8b, not Qwen3-8B"
    for figure in ("TPF", "speedup"):
        found = one(path, published, figure)
        assert (found.verdict, found.why) == ("repeated", (shown_text,))
    score = one(path, published, "score")
    assert (score.verdict, score.why) == ("not comparable", ("model: config:llama-3-8b, not Qwen3-8B",))
    half = planted(model={"name": "config:other", "parameters": 4_000_000_000})
    assert one(half, published, "TPF").why == ("model: config:other, not Qwen3-8B",)


def test_scores_need_the_same_metric_and_a_scored_run(planted: Callable[..., Path]) -> None:
    published = catalog("tpf = 3, accuracy = 98.0")
    assert one(planted(), published, "score").why == ("the run has no scores; run specbench score",)
    published = catalog("tpf = 3, accuracy = 6.1", metric='"of 10"')
    assert one(planted(right=all_right), published, "score").why == ("metric: of 10",)


def test_a_methods_own_figures_are_compared_by_name(planted: Callable[..., Path]) -> None:
    def measured(content: dict[str, Any]) -> None:
        content["rows"][1]["measures"] = {"stationary": 1.65}

    published = catalog('also = { stationary = 1.6, "million tokens" = 2 }')
    path = planted(change=measured)
    found = one(path, published, "stationary")
    assert (found.verdict, found.ours, found.published) == ("repeated", 1.65, found.claim.also["stationary"])
    assert one(path, published, "million tokens").why == ("the run has no million tokens of pld",)


def test_spec_benchs_figures_are_compared_as_it_counts_them(tmp_path: Path) -> None:
    made = run_config(["pld"], PROMPTS)
    made = made.model_copy(update={"task": made.task.model_copy(update={"name": "spec-bench"})})
    records = [
        one.model_copy(update={"category": "qa" if at % 2 else "rag"})
        for label, seconds, forwards in (("ar", 0.72, 24), ("pld", 0.24, 8))
        for at, one in enumerate(answers(label, PROMPTS, decode_s=seconds, target_forwards=forwards))
    ]
    run = read_whole_run(folder(tmp_path, made, records))
    group = run.rows[1].groups["qa"]
    assert group.specbench_mat == pytest.approx(25 / 9), "the prefill's token and forward are counted"
    assert (group.tokens_per_forward, 3.0) == (pytest.approx(3.0), 3.0)
    (found,) = check(catalog("tpf = 2.60", task='"spec-bench:qa"'), run)
    assert (found.verdict, found.ours) == ("not repeated", pytest.approx(3.0))
    as_counted = {"tpf_is": '"with-prefill"'}
    (found,) = check(catalog("tpf = 2.78", task='"spec-bench:qa"', **as_counted), run)
    assert (found.verdict, found.ours) == ("repeated", pytest.approx(group.specbench_mat))
    (found,) = check(catalog("tpf = 2.78", task='"spec-bench"', **as_counted), run)
    assert found.ours == pytest.approx(run.rows[1].groups["overall"].specbench_mat)
    (found,) = check(catalog("tpf = 2.60", task='"spec-bench:translation"'), run)
    assert (found.verdict, found.why) == ("not comparable", ("task: no prompts of translation",))


def test_tokens_per_forward_are_counted_as_published(tmp_path: Path) -> None:
    """Half of the answers ended, after 24 tokens in 8 forwards; the others were cut, after 24 in 12."""
    ended = answers("pld", range(0, PROMPTS, 2), decode_s=0.24, target_forwards=8)
    cut = answers("pld", range(1, PROMPTS, 2), decode_s=0.24, target_forwards=12, finish_reason="length")
    ended = [one.model_copy(update={"finish_reason": "stop"}) for one in ended]
    run = read_whole_run(
        folder(tmp_path, run_config(["pld"], PROMPTS), [*answers("ar", PROMPTS, decode_s=0.7), *ended, *cut])
    )
    for name, ours in {"pooled": 48 / 20, "per-answer": 2.5, "jacobi-forcing": 3.0, "with-prefill": 50 / 22}.items():
        found = [each for each in check(catalog(f"tpf = {ours:.3f}", tpf_is=f'"{name}"'), run) if each.figure == "TPF"]
        assert [(each.ours, each.verdict) for each in found] == [(pytest.approx(ours), "repeated")], name


@pytest.mark.parametrize("name", UNLIKE)
def test_a_way_of_counting_that_differs_is_refused(planted: Callable[..., Path], name: str) -> None:
    found = one(planted(), catalog("tpf = 3.0", tpf_is=f'"{name}"'), "TPF")
    assert (found.verdict, found.why) == ("not comparable", (f"TPF: {UNLIKE[name]}",))


def test_only_methods_of_the_run_are_listed_the_comparable_ones_first(planted: Callable[..., Path]) -> None:
    text = CLAIM.replace(
        '{ method = "pld", FIGURES },',
        '{ method = "pld", tpf = 3.0, task = "gsm8k", gpu = "H100" }, { method = "jf", tpf = 4.0 },'
        '{ method = "pld", tpf = 3.0 }, { method = "ar", tpf = 1.0, speedup = 1.0, tok_s = 41 },',
    )
    found = check(read(text), read_whole_run(planted()))
    assert [(each.claim.id, each.figure) for each in found] == [
        ("t/pld", "TPF"), ("t/ar", "tok/s"), ("t/pld-gsm8k", "TPF"),
    ]  # fmt: skip
    assert [each.verdict == "not comparable" for each in found] == [False, False, True]


def test_of_several_rows_the_one_of_the_published_options_is_taken(tmp_path: Path) -> None:
    made = run_config(["pld", "pld#3"], PROMPTS)
    records = [*answers("ar", PROMPTS, decode_s=0.72)]
    records += [*answers("pld", PROMPTS, decode_s=0.4), *answers("pld#3", PROMPTS, decode_s=0.24, target_forwards=8)]
    run = read_whole_run(folder(tmp_path, made, records))
    (found,) = check(catalog("tpf = 3.0, options = { n = 48 }"), run)
    assert (found.row, found.verdict) == ("pld#3", "repeated")
    (found,) = check(catalog("tpf = 3.0"), run)
    assert (found.row, found.verdict) == ("pld", "not repeated")


def test_a_run_that_is_not_finished_is_refused(planted: Callable[..., Path]) -> None:
    path = planted(finish=False)
    with pytest.raises(UsageError, check=wording):
        check_claims(catalog("tpf = 3.0"), path)
    assert check_claims(catalog("tpf = 3.0"), planted())[0].verdict == "repeated"
