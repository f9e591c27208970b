"""Grids of options: how they are written, which cells they have, and every refusal in one line."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.asserting import refusal
from support.wording import wording

from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.decoding import Method
from specbench.planning.methods import assign_labels, parse_settings
from specbench.sweeps.grid import MANY, Grid, expand, read_axes


def made(names: str, *axes: str, settings: Sequence[str] = (), **more: Any) -> Grid:
    labels = assign_labels(names.split(","))
    if "asked" in more:
        more["asked"] = parse_settings(labels, more["asked"])
    return expand(labels, parse_settings(labels, settings), read_axes(axes), **more)


def labels(grid: Grid) -> list[str]:
    return [cell.label for cell in grid.cells]


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("0.5:0.95:0.05", ["0.5", "0.55", "0.6", "0.65", "0.7", "0.75", "0.8", "0.85", "0.9", "0.95"]),
        ("16:64:16", ["16", "32", "48", "64"]),
        ("1:2:0.4", ["1", "1.4", "1.8"]),  # the end is not passed
        ("10:30:10", ["10", "20", "30"]),  # no 2E+1
        ("5:5:1", ["5"]),
        ("16, 32 ,64", ["16", "32", "64"]),
        ("7", ["7"]),
    ],
)
def test_ranges_and_lists(written: str, values: list[str]) -> None:
    (axis,) = read_axes([f"n={written}"])
    assert list(axis.values) == values
    assert (axis.written, axis.label, axis.option) == ("n", "", "n")


def test_the_last_axis_runs_fastest_and_methods_follow_each_other() -> None:
    grid = made("jf,jacobi", "n=16,32", "r=0.5,0.9")
    assert labels(grid) == [
        "jf n=16 r=0.5", "jf n=16 r=0.9", "jf n=32 r=0.5", "jf n=32 r=0.9", "jacobi n=16", "jacobi n=32",
    ]  # fmt: skip
    first = grid.cells[1]
    assert first.values == {"block_size": 16, "activation_ratio": 0.9}  # by their own names, typed
    assert first.method.options.model_dump()["activation_ratio"] == 0.9
    assert (grid.baseline.label, grid.concurrency, grid.too_large) == ("ar", (1,), ())


def test_axes_belong_to_methods_rows_and_runs() -> None:
    grid = made("jf,jacobi,pld", "n=16,32", "jacobi.n=4")
    assert labels(grid) == ["jf n=16", "jf n=32", "jacobi n=4", "pld"]  # pld has no n: it is one cell
    grid = made("jf,jf", "jf#2.n=8,16", settings=["jf.n=4"])
    assert labels(grid) == ["jf", "jf#2 n=8", "jf#2 n=16"]
    assert [cell.method.options.model_dump()["block_size"] for cell in grid.cells] == [4, 8, 16]
    grid = made("jf", "concurrency=1,4", "n=16,32")
    assert (grid.concurrency, labels(grid)) == ((1, 4), ["jf n=16", "jf n=32"])


def test_presets_and_too_large_trees_are_cells_apart() -> None:
    grid = made("lookahead", "preset=15/5/15,10/5/10", "W=3,20")
    assert labels(grid) == [f"lookahead preset={p} W={w}" for p in ("15/5/15", "10/5/10") for w in (3, 20)]
    options = [cell.method.options.model_dump() for cell in grid.cells]
    assert [(o["window_size"], o["guess_set_size"]) for o in options] == [(3, 15), (20, 15), (3, 10), (20, 10)]
    assert grid.cells[0].values == {"preset": "15/5/15", "window_size": 3}
    grid = made("jf", "n=64,512", "K=2,4", settings=["jf.pool=16"], refusal=over_5000)
    assert labels(grid) == ["jf n=64 K=2", "jf n=64 K=4"]
    assert [cell.label for cell in grid.too_large] == ["jf n=512 K=2", "jf n=512 K=4"]


def over_5000(method: Method) -> str | None:
    return f"{method.label}: no room for {method.max_rows} rows; lower pool_size" if method.max_rows > 5000 else None


def test_where_no_cell_fits_the_smallest_says_why() -> None:
    text = refusal(EnvironmentRefused, made, "jf", "n=512,400", settings=["jf.pool=16"], refusal=over_5000)
    assert wording(text)


def test_an_aliass_default_gives_way_to_what_is_swept() -> None:
    # As a model's alias sets them: no one can leave them out, and they say nothing of the options that are swept.
    alias = ["jf.block_size=64", "jf.pool_size=7"]
    grid = made("jf", "n=16,32", settings=alias, asked=[])
    assert [c.method.options.model_dump()["block_size"] for c in grid.cells] == [16, 32]
    assert [c.method.options.model_dump()["pool_size"] for c in grid.cells] == [7, 7]
    plain = made("jf", "preset=M,R", settings=["jf.multiblock=true", "jf.recycling=true"], asked=[])
    assert [c.method.options.model_dump()["recycling"] for c in plain.cells] == [False, True]
    with pytest.raises(UsageError, check=wording):
        made("jf", "n=16,32", settings=["jf.block_size=64"], asked=["jf.block_size=64"])


def test_a_file_says_the_same_as_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text("grid:\n  n: [16, 32]\n  jf.r: 0.5:0.9:0.2\n  K: 1,2\n  init: [random]\n  multiblock: [true, no]\n")
    written = read_axes(["n=16,32", "jf.r=0.5:0.9:0.2", "K=1,2", "init=random", "multiblock=true,no"])
    assert read_axes([], file) == written
    assert read_axes(["pool=4"], file) == (*read_axes(["pool=4"]), *written)


@pytest.mark.parametrize("text", ["4:32:4", "0.50:0.60:0.05", "1:10:1"])
def test_yaml_makes_no_number_of_a_range(tmp_path: Path, text: str) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text(f"grid:\n  n: {text}\n")  # YAML 1.1 has 4:32:4 as 16324, to base 60
    assert read_axes([], file) == read_axes([f"n={text}"])


@pytest.mark.parametrize(
    ("names", "axes", "settings", "says"),
    [
        pytest.param("jf", [], [], ["nothing to sweep; write --grid"], id="no axis"),
        pytest.param("ar", ["concurrency=1,2"], [], ["nothing to sweep but ar", "name a --method"], id="only ar"),
        pytest.param("jf", ["n"], [], ["--grid n: write OPTION="], id="no values"),
        pytest.param("jf", ["=4"], [], ["--grid =4: write OPTION="], id="no option"),
        pytest.param("jf", ["n=4,,8"], [], ["--grid n=4,,8 has an empty value"], id="an empty value"),
        pytest.param("jf", ["blocksize=4"], [], ["unknown option", "of jf", "did you mean block_size"], id="misspelt"),
        pytest.param("jf", ["zzz=4"], [], ["unknown option", "of jf", "known: ", "specbench list jf"], id="far off"),
        pytest.param("jf", ["jacobi.n=4"], [], ["'jacobi'", "--method"], id="does not run"),
        pytest.param("jf", ["n=4,8,4"], [], ["--grid n has the value 4 twice"], id="a value twice"),
        pytest.param("jf", ["n=4,04"], [], ["--grid n has the value 04 twice"], id="a value in two spellings"),
        pytest.param("jf", ["n=4", "n=8"], [], ["--grid n is given twice"], id="an axis twice"),
        pytest.param("jf", ["n=4,8", "block-size=16"], [], ["n and block-size are one option"], id="two names"),
        pytest.param("jf", ["n=4,8", "jf.n=16"], [], ["--grid n applies to no method"], id="an axis that is outdone"),
        pytest.param("jf", ["n=4"], ["jf.block-size=8"], ["block-size of jf", "set and swept"], id="set and swept"),
        pytest.param("jf", ["r=0.5,3"], [], ["'activation_ratio' of jf", "from 0 to 1"], id="r of 3"),
        pytest.param("jf", ["preset=M,X"], [], ["unknown preset 'X' of jf"], id="no such preset"),
        pytest.param("jacobi", ["preset=M"], [], ["unknown option 'preset' of jacobi"], id="has no presets"),
        pytest.param("jf", ["n=1:2:x"], [], ["n=1:2:x", "LOW:HIGH:STEP takes three numbers"], id="no step"),
        pytest.param("jf", ["n=1:inf:1"], [], ["LOW:HIGH:STEP takes three numbers"], id="endless"),
        pytest.param("jf", ["n=1e9999999"], [], ["option 'block_size' of jf"], id="one value beyond all"),
        pytest.param("jf", ["n=8:4:1"], [], ["n=8:4:1 is empty"], id="upside down"),
        pytest.param("jf", ["n=4:8:0"], [], ["n=4:8:0 is empty"], id="step 0"),
        pytest.param("jf", ["n=1:1e12:1"], [], ["1,000,000,000,000 values", "larger STEP"], id="too long"),
        pytest.param("jf", ["n=4", "concurrency=0,1"], [], ["concurrency takes 1 or more, not 0"], id="no sequence"),
    ],
)  # fmt: skip
def test_refusals(names: str, axes: list[str], settings: list[str], says: list[str]) -> None:
    text = refusal(UsageError, made, names, *axes, settings=settings)
    assert all(part in text for part in says), text


@pytest.mark.parametrize(
    ("method", "axes", "settings", "cell"),
    [
        ("suffix", ["k=4,8"], ["requests=3"], "suffix k=4"),
        ("suffix", ["requests=0,3"], [], "suffix requests=3"),
        ("suffix", ["preset=vllm"], [], "suffix preset=vllm"),
        ("suffix", ["fallback=pld,recycling warm=true"], [], "suffix fallback=recycling warm=true"),
        ("recycling", ["budget=8"], ["retrieve=suffix preset=arctic"], "recycling budget=8"),
        ("suffix,recycling", ["k=4"], ["recycling.warm=true"], "recycling"),
    ],
)
def test_a_cell_that_learns_from_earlier_requests_is_refused(
    method: str, axes: list[str], settings: list[str], cell: str
) -> None:
    """It would meet them in an order of its own, in several processes, and again where it is halved."""
    result = refusal(UsageError, made, method, *axes, settings=settings)
    assert wording(result)


def test_a_pair_is_swept_as_a_row_is() -> None:
    grid = made("suffix", "fallback=pld k=3,recycling budget=9", "k=4,8", settings=["factor=2"])
    assert labels(grid)[:2] == ["suffix fallback=pld k=3 k=4", "suffix fallback=pld k=3 k=8"]
    assert [cell.method.max_rows for cell in grid.cells] == [5, 9, 9, 9]
    assert grid.cells[2].values["fallback"] == "recycling tree=2.2.2 budget=9 warm=false unknown=skip"
    assert grid.cells[0].method.options.model_dump()["factor"] == 2.0


@pytest.mark.parametrize("axes", [["n=1:100000:1", "K=1:100:1"], ["n=1:10000000:1"], ["n=1:4000:1", "pool=1:2500:1"]])
def test_ten_million_cells_are_refused_at_once(axes: list[str]) -> None:
    begun = time.process_time()
    with pytest.raises(UsageError, check=wording):
        made("jf", *axes)
    assert time.process_time() - begun < 1


def test_many_cells_run_when_the_user_insists() -> None:
    axes = ["n=1:48:1", "pool=1:21:1", "r=0.5"]
    assert MANY < 48 * 21
    with pytest.raises(UsageError, check=wording):
        made("jf", *axes)
    grid = made("jf", *axes, insist=True)
    assert len(grid.cells) + len(grid.too_large) == 48 * 21
    with pytest.raises(UsageError, check=wording):
        made("jf", *axes, "concurrency=1,2")
