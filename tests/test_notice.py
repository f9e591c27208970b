"""NOTICE: every text of other people is named where it is, and is theirs word for word where theirs is at hand."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from importlib.util import find_spec
from pathlib import Path

from support.asserting import data_folder
from support.oracles import needs

from specbench.evals import plus_checks
from specbench.evals.data import manifest
from specbench.evals.judge import judge_prompts
from specbench.evals.task import Question

ROOT = Path(__file__).parents[1]
NOTICE = (ROOT / "NOTICE").read_text()
NAMED = re.findall(r"^((?:specbench|tasks|methods)/\S+)$", NOTICE, re.MULTILINE)

#: Phrases that address a model. Prompts of our own avoid them, so a match is a quoted prompt.
ADDRESSES = re.compile(r"\bYou (are|will)\b|\b[Pp]lease\b|Let's think|A chat between")


def test_every_file_that_it_names_is_there() -> None:
    assert len(NAMED) > 15
    for name in NAMED:
        assert (ROOT / name).exists(), name


def test_every_text_that_addresses_a_model_in_others_words_is_named() -> None:
    files = [file for name in ("tasks", "methods", "specbench") for file in (ROOT / name).rglob("*.py")]
    found = {file for file in files if any(map(ADDRESSES.search, _texts(file)))}
    found |= {*(ROOT / "specbench" / "models" / "templates").iterdir()}
    assert len(found) > 8
    assert {str(file.relative_to(ROOT)) for file in found} <= {*NAMED}


def test_trained_weights_that_are_shipped_are_named() -> None:
    shipped = {str(file.parents[1].relative_to(ROOT)) for file in (ROOT / "methods").rglob("*.safetensors")}
    assert shipped
    assert shipped <= {*NAMED}


def _texts(file: Path) -> list[str]:
    """A source's texts but for its docstrings."""
    tree = ast.parse(file.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]


@needs("evalplus")
def test_evalplus_says_what_we_say() -> None:
    spec = find_spec("evalplus")
    assert spec is not None
    assert spec.origin is not None
    theirs = Path(spec.origin).with_name("codegen.py").read_text()
    for text in (plus_checks._INSTRUCTION, plus_checks._RESPONSE):
        assert f'"{text}"' in theirs


def test_a_judge_reads_fastchats_prompts_word_for_word() -> None:
    (file,) = manifest(Path(judge_prompts.__file__).with_name("prompts.toml"))
    published = data_folder(file.name) / file.name
    assert hashlib.sha256(published.read_bytes()).hexdigest() == file.sha256
    rows = {row["name"]: row for row in map(json.loads, published.read_text().splitlines())}
    made = judge_prompts.JudgePrompts(published.parent)
    for references in (None, ("R1", "R2")):
        for answers in (["A1"], ["A1", "A2"]):
            asked = made.render(Question(("Q1", "Q2"), references), answers)
            theirs = rows[asked.name]
            fields = {"question": "Q1", "answer": "A1", **{f"question_{at}": f"Q{at}" for at in (1, 2)}}
            fields |= {f"{kind}_{at}": f"{kind[0].upper()}{at}" for kind in ("answer", "ref_answer") for at in (1, 2)}
            read = theirs["prompt_template"]
            for field, text in fields.items():
                read = read.replace(f"{{{field}}}", text)
            assert (asked.system, asked.user) == (theirs["system_prompt"], read)
