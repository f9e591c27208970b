"""What a terminal shows of a sweep: the table at any width, and the sentences under it."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from support.asserting import known
from support.wording import wording

from specbench.report.terminal.sweep import SHOWN, interval, sentences, sweep_table

NAN = float("nan")
RUN = {
    "task": {"name": "humaneval", "version": 2},
    "model": {"name": "smollm2-135m", "dtype": "float32"},
    "environment": {"device": {"name": "a CPU"}},
}
LONG = "lookahead window_size=15 ngram_size=5 guess_set_size=15 pool_from_prompt=true shift=random"


def cell(label: str, speedup: float = NAN, **more: Any) -> dict[str, Any]:
    low, high = (speedup - 0.05, speedup + 0.05) if speedup == speedup else (NAN, NAN)
    return {
        "label": label, "method": label.split()[0], "concurrency": 1, "set": "tuning", "prompts": 164,
        "tokens_per_forward": 12.345, "decode_tok_s": 12345.67, "speedup": speedup, "speedup_low": low,
        "speedup_high": high, "chosen_low": low - 0.05, "chosen_high": high + 0.05, "verdict": "faster",
        "blocks": 164.0, "rows_per_step": 128.4, "best": False, "within_noise": False, "stopped": "", **more,
    }  # fmt: skip


def large(label: str) -> dict[str, Any]:
    """A row as it is for a cell that cannot run."""
    nothing = dict.fromkeys(cell(label), NAN)
    return {**nothing, "label": label, "concurrency": 1, "set": "tuning", "stopped": "too large"}


PLAIN = cell("ar", tokens_per_forward=1.0, decode_tok_s=101.5, rows_per_step=1.0)
FEW = [
    PLAIN, cell("jf n=16", 1.5, stopped="halved"), cell("jf n=32", 2.5, best=True, within_noise=True),
    cell(LONG, 2.45, within_noise=True, stopped="interval"),
]  # fmt: skip


def shown(rows: Sequence[dict[str, Any]], width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(sweep_table(RUN, pd.DataFrame(rows)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_head_says_how_the_prompts_were_chosen() -> None:
    task = {
        "name": "humaneval", "version": 2, "options": {}, "prompts": 32, "prompts_sha256": "0",
        "taken": {"of": 164, "seed": 0, "held_out": 16},
    }  # fmt: skip
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(sweep_table({**RUN, "task": task}, pd.DataFrame(FEW)))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert lines[:2] == [
        "humaneval v2 · smollm2-135m float32 · a CPU",
        "prompts: 16 of 164, drawn by seed 0, and 16 held out",
    ]


@pytest.mark.parametrize("verified", [True, False])
def test_the_head_says_which_data_are_unverified(verified: bool) -> None:
    file = {"name": "mine.jsonl", "sha256": "b" * 64, "bytes": 2, "revision": None, "verified": verified}
    task = {
        "name": "aime25", "version": 1, "options": {}, "prompts": 30, "prompts_sha256": "0", "data": [file],
    }  # fmt: skip
    console = Console(file=io.StringIO(), width=140, color_system=None)
    console.print(sweep_table({**RUN, "task": task}, pd.DataFrame(FEW)))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert (lines[1].strip() == f"data unverified: mine.jsonl, sha256 {'b' * 64}") != verified


@pytest.mark.parametrize("width", [80, 140])
def test_no_figure_is_broken_and_no_label_lost(width: int) -> None:
    text = shown(FEW, width)
    assert max(map(len, text.splitlines())) <= width
    for row in FEW[1:]:
        figures = f"164 +12\\.35 +12345\\.7 +{row['speedup']:.2f} \\[{row['speedup'] - 0.05:.2f}, .*\\] +128"
        assert re.search(figures, text), text
    assert re.search(r"^ar +164 +1\.00 +101\.5 +1 +1", text, re.MULTILINE)
    assert re.search(r"^cell +prompts +TPF +tok/s +speedup +rows", text, re.MULTILINE)
    assert "…" not in text
    # The long label may be folded, but is there to the last letter, ahead of its figures.
    rule = next(at for at, line in enumerate(text.splitlines()) if line.startswith("───"))
    table = text.splitlines()[rule + 1 : rule + 12]
    column = known(re.search("prompts", text.splitlines()[rule - 1]))
    words = "".join(line[: column.start()].strip() for line in table).replace(" ", "")
    assert LONG.replace(" ", "") in words


def test_the_fastest_is_first_labels_are_no_markup_and_nothing_is_a_dash() -> None:
    lines = shown([*FEW, cell("pld", 0.7)], 140).splitlines()
    names = [line.split()[0] for line in lines if "164" in line and line[:1].isalpha() and "Best" not in line]
    assert names == ["jf", "lookahead", "jf", "pld", "ar"]
    assert wording(shown([PLAIN, cell("jetspec tree=[red]", 1.2)], 140))
    rows = [
        PLAIN,
        cell("jf n=16", tokens_per_forward=None, decode_tok_s=NAN, rows_per_step=NAN),
        cell("jf n=32", tokens_per_forward=NAN),
    ]
    text = shown(rows, 80)
    assert re.search(r"^jf n=16 +164 +– +– +– +–", text, re.MULTILINE), text
    assert "nan" not in text
    assert "None" not in text


def test_only_the_fastest_cells_are_in_the_table_of_each_concurrency() -> None:
    rows = [PLAIN, *(cell(f"jf n={at}", 1 + at / 100) for at in range(SHOWN + 7))]
    text = shown(rows, 80)
    assert wording(text)
    assert "jf n=26 " in text
    assert "jf n=6 " not in text
    assert re.search(r"^ar ", text, re.MULTILINE)
    busy = [{**row, "concurrency": 8} for row in FEW]
    text = shown([*FEW, *busy], 140)
    assert text.index("concurrency 1") < text.index("Best of 2 cells: jf n=32")
    assert text.index("Best of 2 cells: jf n=32") < text.index("concurrency 8")
    assert text.index("concurrency 8") < text.rindex("Best of 2 cells: jf n=32")
    lines = shown(FEW, 140).splitlines()
    (line,) = [line for line in lines if line.startswith("jf n=32")]
    assert line.rstrip().endswith("best")
    (line,) = [line for line in lines if line.startswith(LONG[:30])]
    assert "2.45 [2.40, 2.50]" in line


def test_sentences_of_the_best_cell_and_its_equals() -> None:
    held = [cell("ar", set="held-out", prompts=40), cell("jf n=32", 2.31, set="held-out", prompts=40, best=True)]
    said = sentences(pd.DataFrame([*FEW, *held, *map(large, ["jf n=512", "jf n=640"])]))
    assert said == [
        "Best of 2 cells: jf n=32, faster, speedup 2.50 [2.40, 2.60] (the interval allows for the choice among 2) on "
        f"164 prompts; the other one is within noise of it: {LONG}.",
        "1 slower one was dropped after 164 prompts and is not compared.",
        "On 40 prompts it was not chosen by: speedup 2.31 [2.26, 2.36], faster.",
        "Not run, trees too large: jf n=512, jf n=640.",
    ]
    assert wording(shown([*FEW, large("jf n=512")], 80))
    assert not re.search(r"^jf n=512", shown([*FEW, large("jf n=512")], 80), re.MULTILINE)
    rows = [PLAIN, cell("jf n=1", 2.5, best=True, within_noise=True)]
    rows += [cell(f"jf n={at}", 2.4, within_noise=True) for at in range(2, 8)]
    (one,) = sentences(pd.DataFrame(rows))
    assert one.endswith("; 6 of the 6 others within noise of it: jf n=2, jf n=3, jf n=4, jf n=5 and 2 more.")
    (one,) = sentences(pd.DataFrame([PLAIN, cell("jf n=1", 2.5, best=True, within_noise=True), cell("jf n=2", 1.1)]))
    assert one.endswith("; the other one is not within noise of it.")
    assert sentences(pd.DataFrame([PLAIN, cell("jf n=1", 2.5)])) == []


@pytest.mark.parametrize(
    ("figures", "text"),
    [((1.234, 1.1, 1.3), "1.23 [1.10, 1.30]"), ((1.234, NAN, NAN), "1.23 (too few)"), ((NAN, NAN, NAN), "–")],
)
def test_intervals(figures: tuple[float, float, float], text: str) -> None:
    names = ("speedup", "speedup_low", "speedup_high")
    assert interval(dict(zip(names, figures, strict=True)), "speedup") == text


def test_too_few_prompts_are_said_instead_of_a_list_of_all_cells() -> None:
    few = {"prompts": 2, **dict.fromkeys(("speedup_low", "speedup_high", "chosen_low", "chosen_high"), NAN)}
    rows = [PLAIN, cell("jf n=16", 1.5, **few), cell("jf n=32", 2.5, best=True, **few)]
    (said,) = sentences(pd.DataFrame(rows))
    assert said == (
        "Best of 2 cells: jf n=32, speedup 2.50 (too few) on 2 prompts; too few prompts to tell cells apart."
    )
    assert "within noise" not in shown(rows, 140)


@pytest.mark.parametrize(
    ("prompts", "concurrency", "said"),
    [(16, 16, "fill 16 slots once"), (63, 16, "3.9 times"), (9, 16, "9 prompts do not fill 16 slots")],
)
def test_prompts_that_hardly_fill_the_slots_are_told(prompts: int, concurrency: int, said: str) -> None:
    few = cell("pld", 0.3, concurrency=concurrency, prompts=prompts, blocks=prompts // 64, best=True)
    assert any(said in line and "--limit 64" in line for line in sentences(pd.DataFrame([few])))


@pytest.mark.parametrize(("prompts", "concurrency"), [(64, 16), (1, 1)])
def test_prompts_that_fill_the_slots_are_not(prompts: int, concurrency: int) -> None:
    enough = cell("pld", 0.3, concurrency=concurrency, prompts=prompts, best=True)
    assert not any("slots" in line for line in sentences(pd.DataFrame([enough])))


def test_so_few_blocks_of_sequences_stepped_together_say_how_many_prompts_it_takes() -> None:
    few = cell("pld", 1.3, concurrency=16, prompts=64, blocks=1.0, best=True, speedup_low=NAN, speedup_high=NAN)
    said = sentences(pd.DataFrame([few]))[-1]
    assert said == (
        "No interval: 1 block was timed, 16 sequences together, and an interval takes 6 blocks; use --limit 384."
    )
    enough = {**few, "prompts": 384, "blocks": 6.0}
    assert not any("No interval" in line for line in sentences(pd.DataFrame([enough])))
