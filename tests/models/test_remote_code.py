"""Python that comes with a model: off unless the flag says so, never asked for, and on record where it was on."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import asserting, decoders, engines
from support.models import save

from specbench.cli.app import main
from specbench.common.errors import UsageError
from specbench.evals.data import DATA_DIR
from specbench.hardware import environment
from specbench.models.loader import load
from specbench.results.schema import RunConfig

FLAG = "--trust-remote-code"
ANSWERS = "y\n" * 8

CONFIGURATION = """
from pathlib import Path
from transformers import LlamaConfig
Path({marker!r}).touch()
class OwnConfig(LlamaConfig):
    model_type = "own-llama"
"""
MODEL = """
from transformers import LlamaForCausalLM
from .configuration_own import OwnConfig
class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""
TOKENIZER = """
from pathlib import Path
from transformers import PreTrainedTokenizerFast
Path({marker!r}).touch()
class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


def _change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def own_model(folder: Path) -> Path:
    """A checkpoint of a model type that transformers does not know; its Python writes ``ran`` into its folder."""
    save(folder)
    (folder / "configuration_own.py").write_text(CONFIGURATION.format(marker=str(folder / "ran")))
    (folder / "modeling_own.py").write_text(MODEL)
    auto = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    _change(folder / "config.json", model_type="own-llama", architectures=["OwnForCausalLM"], auto_map=auto)
    return folder


def own_tokenizer(folder: Path) -> Path:
    """A Llama with a tokenizer that transformers does not know; its Python writes ``ran`` into its folder."""
    save(folder)
    (folder / "tokenization_own.py").write_text(TOKENIZER.format(marker=str(folder / "ran")))
    auto = {"AutoTokenizer": [None, "tokenization_own.OwnTokenizer"]}
    _change(folder / "tokenizer_config.json", tokenizer_class="OwnTokenizer", auto_map=auto)
    return folder


@pytest.fixture(autouse=True)
def _quick_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of a short run's time otherwise: HumanEval+'s data read, and git asked for this checkout's state."""
    monkeypatch.delenv(DATA_DIR, raising=False)
    monkeypatch.setattr(environment, "git_state", lambda root: ("c" * 40, False))


@pytest.fixture
def specbench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., asserting.Forked]:
    """The command line with somebody who says yes to all that is asked."""
    # Where transformers copies such Python to before it runs it.
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))

    def call(*argv: object) -> asserting.Forked:
        what = ("--method", "ar", "--limit", 1, "--max-new-tokens", 4, "--no-score", "--json")
        child = asserting.start(
            tmp_path / "output", *argv, *what, answers=ANSWERS, cwd=tmp_path, env={"COLUMNS": "400"}
        )
        return child.wait()

    return call


@pytest.mark.parametrize("make", [own_model, own_tokenizer])
def test_it_runs_with_the_flag_alone_and_the_record_says_so(
    make: Callable[[Path], Path], specbench: Any, tmp_path: Path
) -> None:
    folder = make(tmp_path / "own")
    ended = specbench("run", "--model", folder)  # nothing is asked
    assert ended.code == 2, ended.err
    errors = [line for line in ended.err.splitlines() if not line.startswith("loading ")]
    assert len(errors) == 1, ended.err
    assert errors[0].startswith("error: ")
    assert all(part in errors[0] for part in (" own ", FLAG))
    assert ended.out == ""
    assert not (folder / "ran").exists()
    assert not (tmp_path / "results").exists()

    ended = specbench("run", "--model", folder, FLAG)
    assert ended.code == 0, ended.err
    assert (folder / "ran").exists()
    (found,) = json.loads(ended.out)
    assert json.loads((tmp_path / found["folder"] / "run.json").read_text())["model"]["remote_code"] is True


def test_a_configuration_cannot_bring_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A type with a tokenizer but without a causal LM: the class would come from the folder that it names.
    folder = own_model(tmp_path / "own")
    file = tmp_path / "mine.json"
    auto = {"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    file.write_text(json.dumps({"model_type": "t5", "name_or_path": str(folder), "auto_map": auto}))
    monkeypatch.setattr("sys.stdin", io.StringIO(ANSWERS))
    with pytest.raises(UsageError, match=FLAG):
        load(f"config:{file}")
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("more", [("--method", "sps", "--set", "sps.draft={own}"), ("--base", "{own}")])
def test_draft_models_and_bases_are_refused_too(
    more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = own_model(tmp_path / "own")
    monkeypatch.setattr("sys.stdin", io.StringIO(ANSWERS))
    what = ["run", "--model", "config:tiny", "--limit", "1", "--max-new-tokens", "4", "--out", str(tmp_path / "runs")]
    assert main([*what, *(word.format(own=folder) for word in more)]) == 2
    assert FLAG in capsys.readouterr().err.splitlines()[-1]
    assert not (folder / "ran").exists()


# Where each command loads its model.
LOADERS = ("specbench.runner.loading.load", "specbench.models.loader.load")  # in this order: one imports the other


@pytest.mark.parametrize(
    "argv",
    [
        "run", "check-lossless", "sweep --method jacobi --grid n=4", "profile --out {out}",
        "sweep --tune --method jacobi --grid n=4 --limit 1 --held-out 1",
        "train --collect --prompts gsm8k-train --out {out}",
        "train jetspec --prompts gsm8k-train --out {out}", "score --judge config:tiny",
    ],
    ids=lambda argv: argv.split()[0],
)  # fmt: skip
def test_every_command_that_loads_a_model_has_the_flag(
    argv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = []

    def loader(name: str, *, trust_remote_code: bool, **more: Any) -> Any:
        passed.append(trust_remote_code)
        raise UsageError("that was enough")

    for where in LOADERS:
        monkeypatch.setattr(where, loader)
    monkeypatch.chdir(tmp_path)
    command = argv.format(out=tmp_path / "out").split()
    if command[0] == "score":
        command += [str(engines.folder(tmp_path, {"ar": {"81": ["a", "b"], "111": ["c", "d"]}}))]
        monkeypatch.setattr("specbench.evals.judge.judge.judge_questions", lambda *given: {})
        monkeypatch.setattr("specbench.evals.judge.judge.judged_answers", lambda *given: [])
        monkeypatch.setattr("specbench.evals.judge.judge_prompts.JudgePrompts", lambda folder: None)
    else:
        command += ["--model", "config:tiny"]
    assert [main([*command, *flags]) for flags in ([], [FLAG])] == [2, 2]
    assert passed == [False, True]


def test_a_run_with_code_says_so_and_is_another_run() -> None:
    config = decoders.config(["ar", "jacobi"], 3)
    assert config.digest() == "c8da90f7ea0f152ba4cff2ddfcdcda0bad9a864b183bfc57821503b6da3f5eed"
    assert "remote_code" not in config.model_dump(mode="json")["model"]  # written and named as ever
    trusted = config.model_copy(update={"model": config.model.model_copy(update={"remote_code": True})})
    assert trusted.model_dump(mode="json")["model"]["remote_code"] is True
    assert trusted.digest() != config.digest()
    for one in (config, trusted):
        assert RunConfig.model_validate(one.model_dump(mode="json")) == one
