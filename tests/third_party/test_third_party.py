"""A method of somebody else's package, as pip installs it: found by entry point, and run like one of our own."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.models import attached, tiny_llama
from support.processes import install, visible

from specbench.cli.app import main
from specbench.common import registry
from specbench.common.errors import UsageError
from specbench.decoding.protocol import Context
from specbench.engine.sampler import Sampling
from specbench.evals.data import DATA_DIR
from specbench.planning.methods import plan_methods
from specbench.runner import Runner
from specbench.runner.record import Request
from specbench.runner.stop import StopRule

PACKAGE = Path(__file__).parent / "specbench-echo"
VOCAB = 41


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where ``pip install specbench-echo`` put it."""
    folder = tmp_path_factory.mktemp("third-party") / "site"
    install(PACKAGE, folder)
    return folder


@pytest.fixture
def installed(site: Path) -> Iterator[None]:
    with visible(site):
        yield


@pytest.mark.usefixtures("installed")
def test_it_is_listed_with_its_card_presets_and_readme(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "methods", "--json"]) == 0
    rows = {row["method"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["echo"]["from"], rows["jacobi"]["from"]) == ("specbench-echo", "specbench")
    assert rows["echo"]["options"]["length"]["maximum"] == 511
    card = registry.method("echo")
    assert card.folder == site / "specbench_echo"
    assert (card.folder / "README.md").read_text(encoding="utf-8").startswith("# echo")
    options = [method.options for method in plan_methods(["echo", "echo"], ["echo.preset=short", "echo#2.n=3"])[1:]]
    assert [dict(found) for found in options] == [{"length": 2}, {"length": 3}]
    with pytest.raises(UsageError, match="an integer"):
        plan_methods(["echo"], ["echo.n=512"])


@pytest.mark.usefixtures("installed")
def test_the_command_line_runs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(DATA_DIR, raising=False)  # HumanEval+'s data take a second to read
    what = ["--method", "echo", "--set", "echo.preset=short", "--model", "config:tiny", "--no-score"]
    assert main(["run", *what, "--limit", "1", "--max-new-tokens", "12", "--out", str(tmp_path), "--json"]) == 0
    (summary,) = json.loads(capsys.readouterr().out)
    row = next(row for row in summary["rows"] if row["method"] == "echo")
    assert (row["lossless"]["verdict"], row["tokens"], row["rows_per_step"]) == ("exact", 12, 3)
    assert set(row["measures"]) == {"echoed"}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, seed=1)], ids=["greedy", "sampled"])
def test_it_emits_what_ar_emits_in_fewer_forwards(sampling: Sampling) -> None:
    # With tied and narrow weights a model mostly repeats itself, which is what this method bets on.
    model = tiny_llama(VOCAB, tie_word_embeddings=True, initializer_range=0.1)
    requests = [Request(str(n), 0, [n, 7, 7], StopRule(frozenset(), (), 24, str)) for n in range(3)]
    plain, echo = plan_methods(["echo"], ["echo.length=4"])
    with attached(model, slots=2, capacity=40, max_rows=echo.max_rows, sampling=sampling) as engine:
        runner = Runner(engine, lambda label, request: Context(VOCAB, 0, random.Random(0)), 2)
        expected, records = (
            sorted(runner.segment(method, requests), key=lambda record: record.prompt_id) for method in (plain, echo)
        )
    assert [record.output_ids for record in records] == [record.output_ids for record in expected]
    forwards = [sum(record.target_forwards for record in found) for found in (records, expected)]
    assert forwards[0] < forwards[1]
    assert all(record.measures["echoed"] >= record.output_tokens - 1 - record.target_forwards for record in records)


def test_a_name_that_is_taken_is_one_line(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(site, tmp_path / "site")
    (info,) = (tmp_path / "site").glob("*.dist-info")
    (info / "entry_points.txt").write_text("[specbench.methods]\njacobi = specbench_echo\n")
    with visible(tmp_path / "site"):
        assert main(["list", "methods", "--json"]) == 0
    rows = {row["method"]: row["broken"] for row in json.loads(capsys.readouterr().out)}
    assert rows["jacobi"] == "", "ours stands"
    assert rows["jacobi of specbench-echo"] == (
        "method 'jacobi' of specbench-echo is registered by specbench already; uninstall one"
    )
