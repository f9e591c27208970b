"""Every kind of fault that a plug-in can commit: its row is marked, and the rows of all others are whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty.decoder import ROWS, SPOILS
from support import asserting, processes
from support.asserting import known

from specbench.cli.app import main
from specbench.common.errors import PluginFault
from specbench.hardware import environment
from specbench.models.loader import load
from specbench.results.engine_facts import ENGINES
from specbench.results.folder import RunFolder

PROMPTS = 3
TOKENS = 3
FAULT = PluginFault.exit_code


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(environment, "git_state", lambda root: ("c" * 40, False))
        load("config:tiny")  # what that imports, no child has to import again
        yield


def installed(site: Path) -> Path:
    """A folder with the package of the faulty method, as pip would leave it."""
    if site.exists():
        return site
    shutil.copytree(Path(__file__).parents[1] / "faulty", site / "faulty_plugin")
    info = site / "faulty_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[specbench.methods]\nfaulty = faulty_plugin\n")
    return site


def run(folder: Path, *kinds: str, early: bool = False, fresh: bool = False) -> asserting.Forked:
    """A run of plain decoding and of a faulty row for each kind, in a child, from its own working directory.

    A ``fresh`` interpreter is needed where a kind starts threads of OpenMP, which hang in a fork of a process that had
    some.
    """
    site = installed(folder / "site")
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"text {number}"}) + "\n" for number in range(PROMPTS)))
    labels = ["faulty" if at == 0 else f"faulty#{at + 1}" for at in range(len(kinds))]
    what: list[object] = ["run", "--model", "config:tiny", "--task", "prompts", "--data-file", data, "--threads", 1]
    what += ["--method", ",".join(["ar", *["faulty"] * len(kinds)]), "--max-new-tokens", TOKENS, "--out", "runs"]
    for label, kind in zip(labels, kinds, strict=True):
        what += ["--set", f"{label}.kind={kind}", "--set", f"{label}.early={early}"]

    if fresh:
        done = processes.python("-m", "specbench", *what, cwd=folder, site=site)
        output = folder / "output"
        output.mkdir()
        (output / "stdout").write_text(done.stdout)
        (output / "stderr").write_text(done.stderr)
        return asserting.Forked(output, 0, done.returncode)

    def call() -> int:
        with processes.visible(site):
            return main([str(each) for each in what])

    return asserting.call(folder / "output", call, cwd=folder).wait()


def made_in(folder: Path) -> RunFolder:
    (made,) = (folder / "runs").iterdir()
    return RunFolder.load(made)


def texts(found: RunFolder) -> dict[str, dict[str, list[int]]]:
    """Label of each row -> its answers by prompt."""
    rows: dict[str, dict[str, list[int]]] = {}
    for record in found.records():
        answers = rows.setdefault(record.method, {})
        assert record.prompt_id not in answers, "a record is there once"
        answers[record.prompt_id] = record.output_ids
    return rows


@pytest.fixture(scope="module")
def all_kinds(tmp_path_factory: pytest.TempPathFactory) -> tuple[asserting.Forked, RunFolder]:
    """One run with every kind that ends no more than its own row, and a row without a fault after all of them."""
    folder = tmp_path_factory.mktemp("faulty")
    return run(folder, *ROWS, "none", fresh=True), made_in(folder)


@pytest.mark.parametrize("kind", ROWS)
def test_its_row_is_marked(kind: str, all_kinds: tuple[asserting.Forked, RunFolder]) -> None:
    _, found = all_kinds
    summary = found.summary()
    assert summary is not None
    row = summary.rows[1 + ROWS.index(kind)]
    assert row.failed.startswith("method 'faulty' (from faulty-plugin) ")
    assert row.fault


def test_the_others_are_complete(all_kinds: tuple[asserting.Forked, RunFolder]) -> None:
    done, found = all_kinds
    assert done.code == FAULT, done.err
    assert "Traceback" not in done.err
    assert found.finished
    answers = texts(found)
    assert len(answers["ar"]) == PROMPTS
    assert answers[f"faulty#{len(ROWS) + 1}"] == answers["ar"]
    summary = found.summary()
    assert summary is not None
    assert [row.method for row in summary.rows if not row.failed] == ["ar", f"faulty#{len(ROWS) + 1}"]
    for theirs in answers.values():  # what was decoded before a fault is plain decoding's too
        assert theirs.items() <= answers["ar"].items()


@pytest.mark.parametrize("kind", ["sets a narrow default dtype", "changes the working directory", "sets threads"])
def test_a_setting_changed_in_prepare_is_put_back(kind: str, tmp_path: Path) -> None:
    done = run(tmp_path, kind, early=True)
    assert done.code == FAULT, done.err
    found = made_in(tmp_path)
    assert found.finished
    assert texts(found).keys() == {"ar"}
    assert known(found.read(ENGINES)).failed.keys() == {"faulty"}


@pytest.mark.parametrize("kind", SPOILS)
def test_a_changed_model_ends_the_run(kind: str, tmp_path: Path) -> None:
    done = run(tmp_path, kind, "none")
    assert (done.code, "Traceback" in done.err) == (FAULT, False), done.err
    found = made_in(tmp_path)
    assert not found.finished, "the others cannot go on with another model"
    assert known(found.read(ENGINES)).failed.keys() == {"faulty"}
    answers = texts(found)
    for theirs in answers.values():
        assert theirs.items() <= answers["ar"].items() or len(answers["ar"]) < PROMPTS


def test_the_same_command_goes_on_without_it(tmp_path: Path) -> None:
    kind = "writes weights past their version"
    run(tmp_path, kind, "none")
    before = texts(made_in(tmp_path))
    done = run(tmp_path, kind, "none")
    assert done.code == FAULT, done.err
    found = made_in(tmp_path)
    assert found.finished
    answers = texts(found)
    assert answers["faulty#2"] == answers["ar"]
    assert len(answers["ar"]) == PROMPTS
    assert all(theirs.items() <= answers[row].items() for row, theirs in before.items())
