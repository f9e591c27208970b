"""Generated blocks of the pages: `make pages` changes nothing, and other code finds the same in the raw files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest
import recompute
from recompute import Answer, Drawn, OverBlocks, Ratio, Run

from benchmarks import pages
from benchmarks.pages import Asked, Block

ROOT = Path(__file__).parents[1]
PAGES = [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages.pages()]
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)} {at}")
    for page in pages.pages()
    for at, block in enumerate(pages.blocks(page.read_text()))
    if block.kind in ("value", "table") and "file=" not in block.words
]

Keep = Callable[[Answer], bool]
Figure = float | Ratio | OverBlocks | Drawn | tuple[float, float, float] | None
Field = Callable[[Run, str, Keep], Figure]
#: A printed figure with its interval, or the sign for one that does not exist.
PRINTED = re.compile(r"(-?\d+(?:,\d{3})*(?:\.\d+)?)(?:×|%| ms)?(?: [\[(]([\d.]+)(?:, | to )([\d.]+)[])])?|–")
#: What looks like a measured figure.
MEASURED = re.compile(r"\d(?:\.\d+)?\s?(?:×|%|ms\b|tok/s|tokens/s)|\d\.\d+ [\[(]\d\.\d+(?:, | to )\d")


def _without_loops(run: Run, row: str, keep: Keep) -> Keep | None:
    """The answers without repetitive ones; None where there is none to leave out."""
    if not run.looping(row) and not run.looping("ar"):
        return None
    unlooped = run.without_loops(row)
    return lambda answer: keep(answer) and unlooped(answer)


def _phase(run: Run, row: str, name: str) -> float:
    return median(spent for answer in run.row(row) for spent in answer["phases_s"][name])


def _acceptance(run: Run, row: str, keep: Keep) -> float:
    lengths = (answer["measures"].get("mean_acceptance_length") for answer in run.row(row, keep))
    return mean(length for length in lengths if length is not None)


def _window(at: int) -> Field:
    start, end = ((0, 16), (16, 32), (32, 64), (64, 128), (128, 256))[at]
    return lambda run, row, keep: run.in_window(row, start, end)


def _turn(at: int) -> Field:
    return lambda run, row, keep: run.speedup(row, keep=lambda answer: answer.key[2] == at + 1)


def _rate(at: int) -> dict[str, Field]:
    return {
        f"rates.{at}.speedup": lambda run, row, keep: run.latency_over(row, at),
        f"rates.{at}.good": lambda run, row, keep: run.good(row, at),
        f"rates.{at}.latency_s.p50": lambda run, row, keep: run.median_latency(row, at),
    }


def _prompts(run: Run, row: str, keep: Keep) -> int:
    return len({answer.key[0] for answer in run.row(row, keep)})


def _options(run: Run, row: str) -> dict[str, Any]:
    return next(spec["options"] for spec in run.head["methods"] if spec["label"] == row)


#: By field: the same figure from the raw files.
FIELDS: dict[str, Field] = {
    "accuracy": lambda run, row, keep: recompute.wilson(run.passed(row), len(run.row(row))),
    "accuracy.passed": lambda run, row, keep: run.passed(row),
    "again.speedup": lambda run, row, keep: run.speedup(row),
    "again.speedup.detectable": lambda run, row, keep: run.speedup(row).tells,
    "bandwidth_share": lambda run, row, keep: run.share(row),
    "decode_tok_s": lambda run, row, keep: recompute.per_second(run.row(row, keep)),
    "e2e_speedup": lambda run, row, keep: 1 if row == "ar" else run.speedup(row, e2e=True),
    "max_new_tokens": lambda run, row, keep: run.head["max_new_tokens"],
    "measures.mean_acceptance_length": _acceptance,
    "options.depth": lambda run, row, keep: _options(run, row)["depth"],
    "options.width": lambda run, row, keep: _options(run, row)["width"],
    "over_base.speedup": lambda run, row, keep: run.speedup(row, "ar@base", keep),
    "phases.draft_s": lambda run, row, keep: _phase(run, row, "draft"),
    "phases.observe_s": lambda run, row, keep: _phase(run, row, "observe"),
    **{f"positions.{at}.speedup": _window(at) for at in range(5)},
    "prompts": _prompts,
    **_rate(0),
    **_rate(1),
    **_rate(2),
    "repeats": lambda run, row, keep: run.head["repeats"],
    "rows_per_step": lambda run, row, keep: recompute.rows(run.row(row, keep)),
    "session.problems": lambda run, row, keep: max(answer.key[2] for answer in run.row(row)),
    "session.sessions": _prompts,
    **{f"session.turns.{at}.speedup": _turn(at) for at in range(4)},
    "speedup": lambda run, row, keep: 1 if row == "ar" else run.speedup(row, keep=keep),
    "speedup.per_prompt.prompts": lambda run, row, keep: run.speedup(row).units,
    "step_s": lambda run, row, keep: recompute.step_ms(run.row(row, keep)) / 1e3,
    "task.prompts": _prompts,
    "text.agreement": lambda run, row, keep: run.agreement(row),
    "text.log_likelihood_per_token": lambda run, row, keep: run.likelihood(row),
    "text.looping": lambda run, row, keep: sum(answer.loop > 0 for answer in run.row(row, keep)),
    "text.without_loops_over_base.speedup": lambda run, row, keep: run.speedup(
        row, "ar@base", run.without_loops(row, "ar@base")
    ),
    "text.without_loops.speedup": lambda run, row, keep: (
        run.speedup(row, keep=less) if (less := _without_loops(run, row, keep)) else None
    ),
    "text.without_loops.tokens_per_forward": lambda run, row, keep: (
        recompute.per_forward(run.row(row, less)) if (less := _without_loops(run, row, keep)) else None
    ),
    "tokens_per_forward": lambda run, row, keep: recompute.per_forward(run.row(row, keep)),
}


def found(asked: Asked, name: str, of: str) -> Figure:
    """A figure of a run, of a part of a sweep, of a sweep's held-out prompts, or of several runs pooled."""
    row = asked.get("row", "ar")
    if "+" in name:
        runs = [recompute.read(pages.place(one)) for one in name.split("+")]
        if of == "speedup":
            return recompute.pooled(runs, row)
        assert of == "tokens_per_forward", of
        return recompute.per_forward([answer for run in runs for answer in run.row(row)])
    folder, keep = pages.place(name), lambda answer: True
    if folder.name.startswith("sweep-"):
        chosen = dict(word.split(":") for word in asked["where"].split(","))
        folder, row = folder / "c1", chosen["label"]
        assert chosen["set"] == "held-out"
        run = recompute.read(folder)
        return FIELDS[of](run, row, lambda answer: not run.everywhere(answer))
    run = recompute.read(folder)
    if folder.parent.name.startswith("sweep-"):
        keep = run.everywhere
    return FIELDS[of](run, row, keep)


def fault(asked: Asked, printed: str) -> str:
    """What is wrong with a printed figure; empty where the raw files say the same."""
    wanted = [(name, of) for name in asked["run"].split(",") for of in asked["of"].split(",")]
    quantities = [match.groups() for match in PRINTED.finditer(printed)] * (len(wanted) if printed == "–" else 1)
    if len(quantities) != len(wanted):
        return f"{printed!r} has {len(quantities)} figures, not {len(wanted)}"
    for quantity, (name, of) in zip(quantities, wanted, strict=True):
        figure = found(asked, name, of)
        if not _agrees(quantity, figure, asked):
            shown = (figure.value, figure.interval) if isinstance(figure, (Ratio, OverBlocks)) else figure
            return f"{of} of {name}: printed {printed!r}, recomputed {shown}"
    return ""


def _agrees(quantity: Sequence[str | None], figure: Figure, asked: Asked) -> bool:
    """Whether a printed value with its ends is a figure, rounded to as many digits."""
    value, low, high = quantity
    if value is None or figure is None:
        return value is figure is None
    scale = {"%": 100, "ms": 1e3}.get(asked.get("as", ""), 1)
    if isinstance(figure, Drawn):
        half = 0.5 * 10.0 ** -len(value.partition(".")[2]) + 1e-9
        return scale * figure.least - half <= float(value) <= scale * figure.most + half
    numbers = (
        figure if isinstance(figure, tuple) else (figure.value if isinstance(figure, (Ratio, OverBlocks)) else figure,)
    )
    for text, number in zip((value.replace(",", ""), low, high), numbers, strict=False):
        if text is None or abs(float(text) - scale * number) > 0.5 * 10.0 ** -len(text.partition(".")[2]) + 1e-9:
            return False
    if not isinstance(figure, (Ratio, OverBlocks)):
        return low is None or isinstance(figure, tuple)
    if low is None or high is None:
        return figure.interval is None or asked.get("interval") == "no"
    return figure.has(low, high) if isinstance(figure, Ratio) else figure.has(low, high, scale)


@pytest.mark.parametrize("page", PAGES)
def test_make_pages_leaves_no_difference(page: Path) -> None:
    assert pages.filled(page.read_text(), page) == page.read_text(), "run make pages"


@pytest.mark.parametrize("block", BLOCKS)
def test_figures_are_recomputed_from_raw_files(block: Block) -> None:
    assert not [wrong for asked, printed in block.figures() if (wrong := fault(asked, printed))]


@pytest.mark.parametrize("block", BLOCKS[::3])
def test_a_wrong_digit_is_found(block: Block) -> None:
    for asked, printed in list(block.figures())[:4]:
        at = max(match.end(1) for match in PRINTED.finditer(printed) if match[1]) - 1 if printed != "–" else None
        if at is not None:
            assert fault(asked, f"{printed[:at]}{(int(printed[at]) + 1) % 10}{printed[at + 1 :]}")
        if ends := re.search(r"(\d)(\.?\d[])])$", printed):
            assert fault(asked, f"{printed[: ends.start()]}{(int(ends[1]) + 5) % 10}{ends[2]}")


def test_the_demo_table_is_recomputed() -> None:
    block = next(block for block in pages.blocks((ROOT / "README.md").read_text()) if block.kind == "show")
    run = recompute.read(pages.place(block.asked["run"]))
    for label in run.labels:
        (line,) = re.findall(rf"^{label}(?: \(.*\))?  +(.*)$", block.printed, re.M)
        answers, over = run.row(label), {} if label == "ar" else {"speedup": run.speedup(label)}
        wanted = [
            f"{recompute.per_forward(answers):.2f}",
            f"{recompute.per_second(answers):.1f}", "1" if not over else f"{over['speedup'].value:.2f}",
            "1" if not over else f"{run.speedup(label, e2e=True).value:.2f}", f"{run.passed(label)}/{len(answers)}",
            "exact", f"{recompute.cut(answers):.0%}",
        ]  # fmt: skip
        printed = re.split(r"  +", line.strip())
        assert [re.sub(r" \[.*", "", cell) for cell in printed] == wanted
        ends = re.search(r"\[([\d.]+), ([\d.]+)\]", line)
        assert bool(ends) == bool(over)
        assert not ends or over["speedup"].has(*ends.groups())


def _elsewhere(page: object) -> bool:
    """Whether the figures of a page are a training's, which are in the file next to it."""
    assert isinstance(page, Path)
    trained = {"adapters", "heads"} & {*page.parts} and not [*pages.blocks(page.read_text())]
    return bool(trained)


def by_hand(text: str) -> list[str]:
    """Measured figures outside of blocks, fences, code and links; a level of confidence is none."""
    text = re.sub(r"<!-- specbench: stated by=(\S+) -->.*?<!-- /specbench -->", "", text, flags=re.S)
    text = pages.BLOCK.sub("", text)
    for code in (r"^```.*?^```", r"`[^`\n]*`", r"\]\([^)]*\)", r"^    .*$", r"\b95%\s+\w*\s?interval", r"95% paired"):
        text = re.sub(code, "", text, flags=re.M | re.S if "```" in code else re.M)
    return [text[max(0, match.start() - 40) : match.end() + 20] for match in MEASURED.finditer(text)]


@pytest.mark.parametrize("page", [page for page in PAGES if not _elsewhere(page.values[0])])
def test_no_page_states_a_figure_without_its_source(page: Path) -> None:
    text = page.read_text()
    assert not by_hand(text)
    for block in pages.blocks(text):
        assert block.kind in ("value", "table", "show", "words", "link", "picture", "stated")
        assert block.kind != "stated" or (ROOT / block.asked["by"]).exists()
        if block.kind == "picture":
            assert (page.parent / re.findall(r"\]\((.*)\)", block.printed)[0]).exists(), "run make pages"


@pytest.mark.parametrize("text", ["is 1.7× as fast", "takes 4 ms", "gains 18% of it", "at 1.41 [1.28, 1.56]"])
def test_a_figure_written_by_hand_is_found(text: str) -> None:
    assert by_hand(f"The method {text} here.")
    assert not by_hand(f"The method <!-- specbench: value run=demo of=speedup -->{text}<!-- /specbench --> here.")


def test_a_block_of_its_own_needs_no_python() -> None:
    block = "<!-- specbench: table run=demo rows=pld columns=speedup,tokens_per_forward -->\n<!-- /specbench -->"
    (made,) = pages.blocks(pages.filled(block, ROOT / "README.md"))
    ((_, speedup), (_, forward)) = made.figures()
    assert re.fullmatch(r"\d\.\d\d \[\d\.\d\d, \d\.\d\d\]", speedup)
    assert not fault({"run": "demo", "row": "pld", "of": "tokens_per_forward"}, forward)
    assert [*replace(made, kind="link").figures()] == []


def test_what_recomputes_has_nothing_of_specbench() -> None:
    assert not re.search(r"^\s*(?:from|import) specbench", Path(str(recompute.__file__)).read_text(), re.M)
