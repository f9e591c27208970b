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

from specbench.report.render.terminal import render_terminal
from specbench.report.tables.notes import PromptSupply
from specbench.report.tables.sweep import SHOWN, sentences, sweep_advice, sweep_report

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
        "blocks": 164.0, "rows_per_step": 128.4, "best": False, "within_noise": False, "stopped": "", "accuracy": NAN,
        **more,
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
    console.print(render_terminal(sweep_report(RUN, pd.DataFrame(rows))))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 140])
def test_no_figure_is_broken_and_no_label_lost(width: int) -> None:
    text = shown(FEW, width)
    assert max(map(len, text.splitlines())) <= width
    for row in FEW[1:]:
        figures = f"164 +12\\.35 +12345\\.7 +{row['speedup']:.2f} \\[{row['speedup'] - 0.05:.2f}, .*\\] +128"
        assert re.search(figures, text), text
    assert re.search(r"^ar +164 +1\.00 +101\.5 +1 +1", text, re.MULTILINE)
    assert re.search(r"^configuration +prompts +TPF +tok/s +speedup +rows", text, re.MULTILINE)
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
    assert names == ["jf", "lookahead", "jf", "ar", "pld"], "ar stands where its speed puts it"
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


def test_a_method_that_writes_its_own_text_stands_next_to_its_accuracy() -> None:
    rows = [{**each, "accuracy": 0.5} for each in (*FEW, cell("fast-dllm", 1.9, own_text=True))]
    for width in (80, 140):
        text = shown(rows, width)
        assert max(map(len, text.splitlines())) <= width
        assert re.search(r"^fast-dllm +164 .* 50% +own text *$", text, re.MULTILINE), text
    assert "accuracy" not in shown([{**each, "accuracy": 0.5} for each in FEW], 80).split("tok/s and TPF")[0]


@pytest.mark.parametrize("low", [0.82, NAN], ids=["slower", "too few"])
def test_what_is_slower_than_plain_decoding_is_never_best(low: float) -> None:
    slow = {"chosen_low": NAN, "chosen_high": NAN, "verdict": "slower" if low == low else "too few prompts"}
    rows = [
        {**PLAIN, "concurrency": 8},
        cell("suffix", 0.87, best=True, within_noise=True, concurrency=8, **slow),
        cell("pld", 0.6, concurrency=8),
    ]
    text = shown(rows, 140)
    first = (
        "Plain decoding (ar) is fastest" if low == low else "No method is shown to be faster than plain decoding (ar)"
    )
    assert f"{first} at 8 sequences; the best" in text
    assert "is 0.87 of it" in text
    assert re.search(rf"^ar .* {'fastest' if low == low else 'highest speed'} *$", text, re.MULTILINE)
    assert not re.search(r"best *$|Best", text, re.MULTILINE)
    names = [line.split()[0] for line in text.splitlines() if re.match(r"(ar|pld|suffix) +164", line)]
    assert names == ["ar", "suffix", "pld"]
    advice = sweep_advice(RUN, pd.DataFrame(rows), [(1, 1.0)], "suffix")
    assert not advice["faster"]
    assert advice["sentences"][-1] == "Use: specbench run --method ar"


def test_advice_asks_for_no_more_prompts_than_there_are() -> None:
    blocks = {"blocks": 1.0, "prompts": 16, "concurrency": 8, "speedup_low": NAN, "speedup_high": NAN}
    cells = pd.DataFrame([cell("jf n=8", 1.2, best=True, **{**blocks, "chosen_low": NAN, "chosen_high": NAN})])
    few, many = (" ".join(sentences(cells, PromptSupply("mine.jsonl", count))) for count in (16, 192))
    assert "needs 192 prompts; mine.jsonl has 16" in few
    assert "--limit" not in few
    assert "use --limit 192" in many


def test_only_the_fastest_cells_are_in_the_table_of_each_concurrency() -> None:
    rows = [PLAIN, *(cell(f"jf n={at}", 1 + at / 100) for at in range(SHOWN + 7))]
    text = shown(rows, 80)
    assert wording(text)
    assert "jf n=26 " in text
    assert "jf n=6 " not in text
    assert re.search(r"^ar ", text, re.MULTILINE)
    busy = [{**row, "concurrency": 8} for row in FEW]
    text = shown([*FEW, *busy], 140)
    assert text.index("Concurrency 1") < text.index("Best of 2 configurations: jf n=32")
    assert text.index("Best of 2 configurations: jf n=32") < text.index("Concurrency 8")
    assert text.index("Concurrency 8") < text.rindex("Best of 2 configurations: jf n=32")
    lines = shown(FEW, 140).splitlines()
    (line,) = [line for line in lines if line.startswith("jf n=32")]
    assert line.rstrip().endswith("best")
    (line,) = [line for line in lines if line.startswith(LONG[:30])]
    assert "2.45 [2.40, 2.50]" in line
