"""``specbench.run``, ``sweep``, ``train`` and ``load``: typed, documented, and what a notebook shows of them."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import asserting
from support.runs import config_on_disk
from support.wording import wording

import specbench
from specbench.analysis.finished_run import Run
from specbench.cli.app import main
from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.evals.data import DATA_DIR
from specbench.planning.plan import Plan
from specbench.sweeps.sweep_plan import SweepPlan
from specbench.training.training_plan import TrainPlan

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True, scope="module")
def _of_its_package() -> Iterator[None]:
    """HumanEval comes from its package; reading HumanEval+ takes longer than a short run."""
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv(DATA_DIR, raising=False)
        yield


TINY: dict[str, Any] = {"model": "config:tiny", "max_new_tokens": 6, "limit": 2, "quiet": True}


@pytest.mark.parametrize(("name", "plan"), [("run", Plan), ("sweep", SweepPlan), ("train", TrainPlan)])
def test_the_door_has_the_options_of_the_command_as_keywords(name: str, plan: Any) -> None:
    function = getattr(specbench, name)
    assert name in dir(specbench)
    signature = inspect.signature(function)
    assert list(signature.parameters) == list(plan.model_fields)
    assert {p.kind for p in signature.parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    defaults = {n: p.default for n, p in signature.parameters.items() if p.default is not inspect.Parameter.empty}
    assert defaults == {n: info.default for n, info in plan.model_fields.items() if not info.is_required()}
    assert all(f"    {n}: {info.description}" in function.__doc__ for n, info in plan.model_fields.items())
    assert function.__name__ == name


def test_the_door_costs_nothing_until_it_is_used() -> None:
    code = "import sys, specbench; specbench.run, specbench.sweep, specbench.train; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False"]


def test_a_run_from_python_is_the_run_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = specbench.run(**TINY, method="jacobi", out=tmp_path)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", ""), "quiet"
    assert made.folder.parent == tmp_path
    assert [row.method for row in made.summary.rows] == ["ar", "jacobi"]
    frame = made.frame()
    assert len(frame) == 4
    assert "text" in made.frame(text=True)
    assert list(made.methods().method) == ["ar", "jacobi"]
    assert specbench.load(made.folder).equals(frame)
    command = ["run", "--model", "config:tiny", "--max-new-tokens", "6", "--limit", "2", "--method", "jacobi"]
    assert main([*command, "--out", str(tmp_path)]) == 0
    digests = {json.loads((folder / "run.json").read_text())["digest"] for folder in tmp_path.iterdir()}
    assert len(digests) == 1, "the same run, found again where sources are committed"


def test_a_pair_from_python_is_in_the_record_with_all_its_options(tmp_path: Path) -> None:
    settings = ["suffix#2.fallback=recycling budget=9 warm=true", "suffix#2.min_score=0.5"]
    made = specbench.run(**TINY, method="suffix,suffix", settings=settings, out=tmp_path, no_score=True)
    recorded = {spec["label"]: spec for spec in config_on_disk(made.folder)["methods"]}
    fallback = "recycling tree=2.2.2 budget=9 warm=true unknown=skip"
    assert recorded["suffix#2"]["options"]["fallback"] == fallback
    assert [spec.get("stateful") for spec in recorded.values()] == [None, None, True]
    frame = made.frame()
    assert frame[frame.method == "suffix#2"].place.tolist() == [1, 2]
    assert frame[frame.method != "suffix#2"].place.isna().all()
    assert frame[frame.method == "suffix#2"].measure_retrieved.between(0, 1).all()
    # What the record says is the same run again.
    again = specbench.run(
        **TINY,
        method="suffix,suffix",
        settings=[f"suffix#2.fallback={fallback}", settings[1]],
        out=tmp_path,
        no_score=True,
    )
    assert config_on_disk(again.folder)["digest"] == config_on_disk(made.folder)["digest"]


def test_paths_may_be_texts_and_progress_goes_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = specbench.run(**{**TINY, "quiet": False}, method="ar", out=str(tmp_path), no_score=True)  # type: ignore[arg-type]
    printed = capsys.readouterr()
    assert printed.out == ""
    assert wording(printed.err)
    assert made.summary.rows[0].accuracy is None


def test_a_notebook_shows_a_table_whose_texts_are_escaped(tmp_path: Path) -> None:
    made = specbench.run(**TINY, method="jacobi", out=tmp_path / "<b>runs<b>")
    shown = Run(made.folder)._repr_html_()
    assert shown.count("<tr>") == 3
    assert "<b>" not in shown
    assert "&lt;b&gt;" in shown


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"task": "humaneval,gsm8k"}, UsageError),
        ({"method": "jacoby"}, UsageError),
        ({"graphs": "on", "device": "cpu"}, EnvironmentRefused),
    ],
)
def test_mistakes_are_sentences(values: dict[str, Any], error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error, check=wording):
        specbench.run(**{**TINY, **values}, out=tmp_path)
    assert not [*tmp_path.iterdir()]


def test_what_is_said_by_place_is_refused_and_what_has_to_be_said_is_named() -> None:
    functions: list[Any] = [specbench.run, specbench.sweep, specbench.train]
    for function in functions:
        with pytest.raises(UsageError, check=wording):
            function("config:tiny", method="jacobi")
    with pytest.raises(UsageError, check=wording):
        specbench.train()


def test_numbers_may_be_numpys(tmp_path: Path) -> None:
    """As a loop over an array has them."""
    values = {**TINY, "limit": np.int64(1), "temperature": np.float32(0.5)}
    made = specbench.run(**values, method="ar", out=tmp_path, no_score=True)
    plan = config_on_disk(made.folder)["plan"]
    assert (plan["limit"], plan["temperature"]) == (1, 0.5)


def test_a_runs_threads_are_its_own(tmp_path: Path) -> None:
    """The next one has torch's again, or what the program has chosen since, and none is mixed up with another."""
    before = torch.get_num_threads()
    own = {**TINY, "max_new_tokens": 2, "limit": 1, "method": "ar", "out": tmp_path, "no_score": True}
    asked = [specbench.run(**own, threads=before + 1), specbench.run(**own, threads=before + 2), specbench.run(**own)]
    assert torch.get_num_threads() == before
    try:
        torch.set_num_threads(before + 3)
        asked.append(specbench.run(**own))
    finally:
        torch.set_num_threads(before)
    runs = [config_on_disk(each.folder) for each in asked]
    assert [run["environment"]["cpu"]["torch_threads"] for run in runs] == [before + more for more in (1, 2, 0, 3)]
    assert len({run["digest"] for run in runs[:3]}) == 3


def test_a_sweep_from_python(tmp_path: Path) -> None:
    made = specbench.sweep(
        method="jacobi", grid=["n=2,4"], model="config:tiny", limit=2, max_new_tokens=6, no_score=True, quiet=True,
        out=tmp_path,
    )  # fmt: skip
    assert made.folder.parent == tmp_path
    assert set(made.frame().label) == {"ar", "jacobi n=2", "jacobi n=4"}
    assert set(made.summary) == {1}
    shown = made._repr_html_()
    assert "jacobi n=2" in shown
    assert shown.startswith("<table")


def test_a_training_from_python_refuses_as_the_command_does(tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=wording):
        specbench.train(method="jetspec", model="config:tiny", out=tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


NOTEBOOKS = sorted((ROOT / "docs").glob("*.ipynb"))


def test_the_lines_of_a_notebook_run(tmp_path: Path) -> None:
    import nbformat

    cells = [cell for path in NOTEBOOKS for cell in nbformat.read(path, as_version=4).cells]
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    assert len(code) > 3

    def lines() -> int:
        exec("\n".join(code), {})
        return 0

    done = asserting.call(tmp_path / "output", lines, cwd=tmp_path, env={"MPLBACKEND": "agg"}).wait()
    assert done.code == 0, done.err
    assert "requests" in done.err, "progress"
    assert [*(tmp_path / "results").iterdir()]


@pytest.mark.slow  # its kernel is a process of its own
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    """Two decoders compared and drawn in ten lines."""
    import nbclient
    import nbformat

    read = nbformat.read(notebook, as_version=4)
    lines = [line for cell in read.cells if cell.cell_type == "code" for line in cell.source.splitlines() if line]
    assert len(lines) <= 10
    assert all(cell.outputs == [] for cell in read.cells if cell.cell_type == "code"), "committed without outputs"
    ran = nbclient.NotebookClient(read, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in ran.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = json.dumps(outputs)
    assert all(word in shown for word in ("jacobi", "pld", "speedup_low")), "the tables"
    assert any("image/png" in output.get("data", {}) for output in outputs), "the picture"
    assert "requests" in shown, "progress"
    assert "tok/s" in shown, "progress"
    assert [*(tmp_path / "results").iterdir()]


@pytest.mark.slow
def test_keywords_are_typed(tmp_path: Path) -> None:
    file = tmp_path / "use.py"
    file.write_text(
        "import specbench\n"
        "run = specbench.run(limit=8, method='pld', settings=['pld.k=2'])\n"
        "reveal_type(run.summary.rows[0].tokens_per_forward)\n"
        "specbench.run(limt=8)\n"
        "specbench.sweep(graphs='maybe')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(file)],
        capture_output=True, text=True, check=False, timeout=600, cwd=ROOT,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith(str(file)) or "use.py" in line]
    assert [line.split(":")[1] for line in lines if "error" in line] == ["4", "5"], done.stdout
    assert any("float | None" in line or "Union[builtins.float, None]" in line for line in lines), done.stdout
