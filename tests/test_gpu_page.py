"""The page on what a GPU would tell: its predictions are today's, its commands parse, and it has each part."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from support.wording import wording

from benchmarks.gpu_check import __main__ as gpu_check
from benchmarks.gpu_check.bench import Size
from benchmarks.gpu_check.catalog import DEVICE, PARTS
from benchmarks.gpu_check.parts import concurrency as jf
from benchmarks.gpu_check.parts.steps import AR_SHARE, ROW_AIMS
from benchmarks.gpu_check.predict import COMPILED_MORE
from benchmarks.gpu_check.records import between, number
from benchmarks.gpu_check.shapes import WANTED
from specbench.cli import options
from specbench.cli.app import app, main
from specbench.common import registry
from specbench.common.options import given
from specbench.engine.buckets import ROW_BUCKETS
from specbench.hardware.gpus import find
from specbench.hardware.roofline import step_cost
from specbench.models import configured_shape, resolve
from specbench.profiling.nodes import COPIED, EXPECTED, LEAST, MOST, NODE_S

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "what-a-gpu-would-tell.md"
CARDS = ("h100-sxm", "h200", "b200")
NONE = "none"

#: By the label of a row, its predicted cells as they are printed.
Cells = dict[str, tuple[str, ...]]


# ---------------------------------------------------------------------------------------------------- what the page has


def blocks(text: str, kind: str) -> list[str]:
    """What is between fences of a kind: "console" runs anywhere, "console gpu" on a card."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands(text: str, kind: str) -> list[list[str]]:
    """Commands of the blocks of a kind, in words."""
    lines = (line for block in blocks(text, kind) for line in block.splitlines())
    return [shlex.split(line.removeprefix("$ ")) for line in lines if line.startswith("$ ")]


def prose(text: str) -> list[str]:
    """Lines outside of fences."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE).splitlines()


def tables(text: str) -> Iterator[dict[str, str]]:
    """Rows of all tables, by the heads of their columns."""
    head: list[str] = []
    for line in prose(text):
        if not line.startswith("|"):
            head = []
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not head:
            head = cells
        elif set(line) - set("|- "):
            assert len(cells) == len(head), line
            yield dict(zip(head, cells, strict=True))


def predicted(text: str) -> Cells:
    """What the page predicts; a row that says it predicts nothing is left out."""
    found: Cells = {}
    for row in tables(text):
        label = next(iter(row.values()))
        cells = tuple(cell for head, cell in row.items() if head.startswith("predicted"))
        if set(cells) - {NONE}:
            assert label not in found, f"{label} is there twice"
            found[label] = cells
    return found


# --------------------------------------------------------------------------------------------------- what the code says


def said(argv: Sequence[str]) -> Any:
    """What a command of the page prints, as JSON."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*argv[1:], "--json"]) == 0, argv
    return json.loads(out.getvalue())


def foretold(argv: Sequence[str]) -> Cells:
    """What the check predicts: rows of the table that a command of the page prints."""
    assert argv[:3] == ["python3", "-m", "benchmarks.gpu_check"], argv
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert gpu_check.main(argv[3:]) == 0, argv
    lines = [line for line in out.getvalue().splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert rows[0][1:] == [f"predicted, {name}" for name in CARDS]
    assert len({row[0] for row in rows}) == len(rows), "a name is there twice"
    return {label: tuple(cells) for label, *cells in rows[2:]}


def datasheets(listed: Sequence[Mapping[str, Any]]) -> Cells:
    cards = [next(one for one in listed if one["gpu"] == name) for name in CARDS]
    names = {"memory, GB": "memory GB", "matrix product, TFLOP/s": "bf16"}
    return {label: tuple(number(card[field]) for card in cards) for label, field in names.items()}


def nodes(told: Mapping[str, Any]) -> Cells:
    """Rows of a model: AR at the memory wall, kernels, and what sampling costs."""
    model = told["model"].removeprefix("config:")
    steps = {(step["rows"], step["sampled"], step["fused"]): step for step in told["steps"]}
    ar, tree, sampled = steps[1, False, True], steps[64, False, True], steps[64, True, True]
    moved = ar["weight_bytes"] + ar["cache_bytes"]

    def cells(of: Callable[[float, str], float]) -> tuple[str, ...]:
        """A figure that follows from the milliseconds of AR's step, with its range."""
        found = []
        for name in CARDS:
            ends = sorted(of(ms, name) for ms in ar["predicted_ms_between"][name])
            found.append(number(of(ar["predicted_ms"][name], name)) + between(*ends))
        return tuple(found)

    found: Cells = {
        f"{model}: AR step, ms": cells(lambda ms, name: ms),
        f"{model}: AR decoding, tok/s": cells(lambda ms, name: 1e3 / ms),
        f"{model}: AR step, share of the copy bandwidth": cells(
            lambda ms, name: moved / (1e6 * COPIED * find(name).bandwidth_gb_s) / ms
        ),
        f"{model}: step of 64 rows at T=0.8 over greedy": tuple(
            number(sampled["predicted_ms"][name] / tree["predicted_ms"][name]) for name in CARDS
        ),
    }
    for fused, how in ((True, "fused"), (False, "as transformers has it")):
        one, many = steps[1, False, fused], steps[64, False, fused]
        (few,), (more,) = set(one["nodes_of_layers"]), set(many["nodes_of_layers"])
        counts = (few, more, one["nodes_outside"], one["nodes"], many["nodes"])
        found[f"{model}, {how}"] = tuple(f"{count:,}" for count in counts)
    return found


def eagle(told: Mapping[str, Mapping[str, Any]]) -> Cells:
    """The target's step of EAGLE-3's round, by card."""
    cells = [next(cell for cell in told[name]["cells"] if cell["label"] == "eagle3") for name in CARDS]
    (rows,) = {cell["rows"] for cell in cells}
    label = f"EAGLE-3: target's step of {rows} rows over AR step"
    return {label: tuple(f"{cell['times_ar']:.2f}" for cell in cells)}


def crossing(told: Mapping[str, Mapping[str, Any]]) -> Cells:
    """What ``jf`` gains over AR, by sequences and card."""
    return {
        f"{WANTED[1]}: jf over ar, {count} sequences": tuple(
            number(jf._ACCEPTANCE / cell["times_ar"])
            for name in CARDS
            for cell in told[name]["cells"]
            if cell["concurrency"] == count and cell["label"] != "ar"
        )
        for count in Size().concurrency
    }


def agreed(*all_told: Cells) -> Cells:
    """What several commands say together; what two of them say has to be the same."""
    found: Cells = {}
    for told in all_told:
        assert {label: found[label] for label in found.keys() & told} == {
            label: told[label] for label in found.keys() & told
        }
        found |= told
    return found


def by_code(text: str) -> Cells:
    """What the commands of the page print today, as the page prints it."""
    found: list[Cells] = []
    dry: dict[str, dict[str, Any]] = {"run": {}, "sweep": {}}
    for argv in commands(text, "console"):
        if argv[0] == "python3":
            found.append(foretold(argv))
        elif argv[1] == "list":
            found.append(datasheets(said(argv)))
        elif argv[1] == "profile":
            found.append(nodes(said(argv)))
        else:
            told = said(argv)
            dry[argv[1]][told["device"]] = told
    return agreed(*found, eagle(dry["run"]), crossing(dry["sweep"]))


#: Rows of the check's table that the page does without: of the same tables, and of no other meaning.
LEFT_OUT = (
    r"(compiled |plain )?step of \d+ rows, ms",
    r"(compiled|plain) (AR step, |AR decoding|step of \d+ rows over one row).*",
    r"JetSpec, \d+ rows, \d tokens a round: decoding, tok/s",
    r"JetSpec, \d+ rows, [46] tokens a round: round.*",  # as long as at 2
    r"step of \d+ rows: (kernels|launches a layer, kernels)",  # in the table of kernels
    r"(SDPA with a dense mask|flash-attn of a chain), .*",  # as long as tree attention
)


def left_out(label: str) -> bool:
    return any(re.fullmatch(rf"(\S+: )?{pattern}", label) for pattern in LEFT_OUT)


def differing(text: str, told: Cells) -> list[str]:
    """Labels of rows that are not what the code says, that it does not say, or that are missing."""
    found = predicted(text)
    labels = (label for label in dict.fromkeys([*told, *found]) if label in found or not left_out(label))
    return [label for label in labels if told.get(label) != found.get(label)]


@pytest.fixture(scope="module")
def text() -> str:
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def told(text: str, tmp_path_factory: pytest.TempPathFactory) -> Cells:
    """Once for all tests, in a folder without stored profiles, from which a dry run would project."""
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path_factory.mktemp("empty"))
        return by_code(text)


def test_every_predicted_number_is_what_the_code_says_today(text: str, told: Cells) -> None:
    assert len(told) > 60
    assert differing(text, told) == []


def test_what_is_left_out_is_there(told: Cells) -> None:
    for pattern in LEFT_OUT:
        assert [label for label in told if re.fullmatch(rf"(\S+: )?{pattern}", label)], pattern
    for label, cells in told.items():
        if found := re.fullmatch(r"(\S+: JetSpec, \d+ rows), [46] (tokens a round: round.*)", label):
            assert cells == told[f"{found[1]}, 2 {found[2]}"]
        if found := re.fullmatch(r"(\S+: )(?:SDPA with a dense mask|flash-attn of a chain)(, .*)", label):
            assert cells == told[f"{found[1]}tree attention{found[2]}"]


def test_commands_that_disagree_are_found() -> None:
    assert agreed({"one": ("1",)}, {"one": ("1",), "two": ("2",)}) == {"one": ("1",), "two": ("2",)}
    with pytest.raises(AssertionError):
        agreed({"one": ("1",)}, {"one": ("2",)})


def test_a_wrong_digit_a_missing_row_and_an_invented_one_are_found(text: str, told: Cells) -> None:
    for label, cells in ((label, cells) for label, cells in told.items() if not left_out(label)):
        row = next(line for line in text.splitlines() if line.startswith(f"| {label} |"))
        for cell in cells:
            wrong = f"{(int(cell[0]) + 1) % 10}{cell[1:]}"
            assert differing(text.replace(row, row.replace(f" {cell} |", f" {wrong} |")), told) == [label]
        assert differing(text.replace(f"{row}\n", ""), told) == [label]
    invented = next(line for line in text.splitlines() if "jf over ar, 1 " in line)
    more = invented.replace("jf over ar, 1 ", "jf over ar, 1000 ")
    (label,) = differing(text.replace(invented, f"{invented}\n{more}"), told)
    assert label.endswith("jf over ar, 1000 sequences")


def test_what_the_tables_are_said_to_show(told: Cells, text: str) -> None:
    """Words of the page that follow from its figures."""
    for model in ("qwen3-8b", "qwen2.5-7b", "llama-3.2-1b"):
        shares = [float(cell.split()[0]) for cell in told[f"{model}: AR step, share of the copy bandwidth"]]
        assert 1 > shares[0] > shares[1] > shares[2]
    assert wording(text)
    for at in range(len(CARDS)):
        ratios = {count: told[f"{WANTED[1]}: jf over ar, {count} sequences"][at] for count in Size().concurrency}
        assert [count for count, ratio in ratios.items() if float(ratio) >= 1] == [1, 2, 4, 8]
    shape = configured_shape(resolve(f"config:{WANTED[1]}"), "bfloat16")
    assert shape is not None
    rows = Size().attention_rows
    for context in Size().contexts:
        flops = step_cost(shape, rows, context).flops - step_cost(shape, rows, 1).flops
        by_flops = [1e6 * flops / shape.attention[0].layers / (1e12 * (find(name).bf16 or 0)) for name in CARDS]
        label = f"{WANTED[1]}: tree attention, {rows} rows behind {context}: a layer, µs"
        assert told[label] == tuple(map(number, by_flops)), "arithmetic takes longer on all three"


def test_words_of_the_page_that_are_numbers_of_the_code(text: str) -> None:
    size, (_, drafter) = Size(), jf._methods()
    compiled = [COMPILED_MORE[family] for family in WANTED]
    words = " ".join(text.split())
    for said_so in (
        f"and {NODE_S * 1e6:g} µs for each kernel",
        f"between {LEAST.node_s * 1e6:g} and {MOST.node_s * 1e6:g} µs",
        f"{COPIED:.3g} of the datasheet's bandwidth",
        f"at {EXPECTED.library:g} of what a copy reaches, between {MOST.library:g} and {LEAST.library:g}",
        f"{EXPECTED.host_s * 1e3:g} ms, between {LEAST.host_s * 1e3:g} and {MOST.host_s * 1e3:g}",
        f"of {size.context} cached tokens",
        f"takes 1 to {size.rows} rows",
        f"behind {size.crowd_context} tokens",
        f"the {drafter.max_rows} rows of its largest tree",
        f"launch {compiled[0]} kernels more than a fused one in Qwen3 and {compiled[1]} in Qwen2",
        f"up to {size.rows} rows have graphs of their own at {len(ROW_BUCKETS)} row counts",
    ):
        assert said_so in words
    assert AR_SHARE == 0.9
    assert wording(words)
    assert gpu_check.SECONDS == 15 * 60


# --------------------------------------------------------------------------------------------------- commands and parts


class Parsed(Exception):
    """A command line has become a plan, or the arguments of a check; nothing is to follow."""


def parse(argv: Sequence[str], patched: pytest.MonkeyPatch) -> None:
    """Takes a command line as far as its plan.

    Raises:
        Parsed: it is one.
    """

    def stop(*arguments: Any, **more: Any) -> Any:
        raise Parsed

    if argv[0] == "make":
        assert re.search(rf"^{argv[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), argv
        raise Parsed
    if argv[0] == "python3":
        assert argv[1:3] == ["-m", "benchmarks.gpu_check"], argv
        patched.setattr(gpu_check, "check", stop)
        patched.setattr(gpu_check.signal, "signal", lambda *_: None)  # it would stay for the tests that follow
        assert gpu_check.main(argv[3:]) == 0, argv  # 2 says what is wrong
        return
    assert argv[0] == "specbench", argv
    patched.setattr(options, "given", lambda plan, values: stop(given(plan, values)))
    with typer.main.get_command(app).make_context("specbench", [*argv[1:]]) as context:
        context.command.invoke(context)


def test_commands_for_a_card_parse(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = commands(text, "console gpu")
    assert len(listed) > 15
    for argv in listed:
        with pytest.raises(Parsed):
            parse(argv, monkeypatch)
    assert not re.search(r"^\$ ", "\n".join(prose(text)), re.MULTILINE)


def test_runs_for_a_card_are_planned_without_one(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Methods, their options and the task of each run are known; a dry run is as far as it goes here."""
    monkeypatch.chdir(ROOT)
    runs = [argv for argv in commands(text, "console gpu") if argv[:2] == ["specbench", "run"]]
    assert len(runs) >= 3
    for argv in runs:
        assert main([*argv[1:], "--dry-run"]) == 0, capsys.readouterr().err


def test_commands_that_do_not_parse_are_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in ("python3 -m benchmarks.gpu_check --only stepps", "make gpu-czech"):
        with pytest.raises(AssertionError):
            parse(shlex.split(wrong), monkeypatch)
    with pytest.raises(Exception, check=wording):  # noqa: B017
        parse(["specbench", "profile", "--rowz", "1"], monkeypatch)
    assert wording(capsys.readouterr().err)


def unnamed(text: str, parts: Sequence[str]) -> list[str]:
    """Parts of the check that no command of the page runs by name."""
    only = [argv[argv.index("--only") + 1].split(",") for argv in commands(text, "console gpu") if "--only" in argv]
    return [part for part in parts if part not in {name for names in only for name in names}]


def test_every_part_of_the_check_has_its_place(text: str) -> None:
    parts = [part.name for part in PARTS]
    assert unnamed(text, parts) == []
    assert unnamed(text, [*parts, "new"]) == ["new"]
    assert f"`{DEVICE.name}`" in text


def test_aims_are_the_parts_own(text: str) -> None:
    """An aim in a row is written in one of the sources of the parts, as it is."""
    sources = "".join(path.read_text() for path in (ROOT / "benchmarks/gpu_check/parts").glob("*.py"))
    aims = {row["aim"].strip("`") for row in tables(text) if row.get("aim")}
    ladder = {f"<= {bound:g}" for bound in ROW_AIMS.values()}
    assert ladder < aims
    assert [aim for aim in aims - ladder if f'">{aim[1:]}"' not in sources and f'"{aim}"' not in sources] == []
    for row in tables(text):
        if found := re.search(r"step of (\d+) rows over one row", row.get("figure", "")):
            bound = ROW_AIMS.get(int(found[1]))
            assert row["aim"] == (f"`<= {bound:g}`" if bound else ""), row


def test_every_recipe_has_a_command(text: str) -> None:
    trained = {argv[2] for argv in commands(text, "console gpu") if argv[:2] == ["specbench", "train"]}
    recipes = {card.info.get("trains", name) for name, card in registry.methods().items() if card.info.get("recipe")}
    assert trained == recipes


# -------------------------------------------------------------------------------------------------- marked as predicted


def unmarked(text: str) -> list[str]:
    """Lines that call a number measured, and numbers with a unit or a fraction that stand in no predicted column."""
    lines = prose(text)
    found = [line for line in lines if "measured" in line.lower() and re.search(r"\d", line)]
    words = re.sub(r"`[^`]*`|\]\([^)]*\)", "", "\n".join(line for line in lines if not line.startswith("|")))
    numbers = re.findall(r"\d[\d,]*\.\d+(?: \S+)?|\d[\d,.]* (?:ms|µs|tok/s|GB/s|TFLOP/s|%|times)", words)
    assumed = f"{NODE_S * 1e6:g} µs"
    return found + [number for number in numbers if number.rstrip(",.;") != assumed]


def test_no_number_is_said_to_be_measured_and_none_stands_outside_of_the_tables(text: str) -> None:
    assert unmarked(text) == []
    for planted in ("AR took 3.98 ms here.", "It was measured as 4.", "Of 12 ms", "| AR | 4 ms, measured |"):
        assert unmarked(f"{text}\n{planted}\n"), planted


def test_numbers_of_tables_stand_in_predicted_columns_or_are_aims(text: str) -> None:
    for row in tables(text):
        if "assumed" in row:
            continue
        others = [(head, cell) for head, cell in list(row.items())[1:] if not head.startswith("predicted")]
        assert [cell for head, cell in others if re.search(r"\d", cell) and head != "aim"] == [], row
        assert "yours" not in row or row["yours"] == "", "the page is to be filled by whoever has a card"
