"""Plain English, as far as a list of words can check it; ``docs/contribute/index.md`` has the rules."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: Words that made our texts hard to read: write after, next to, reported, no one, whoever's name, simulated acceptance.
REFUSED = re.compile(r"\b(behind|beside|told|nobody|whoever|lottery|by lot)\b", re.I)
TEXTS = {".py", ".md", ".toml", ".yaml", ".yml", ".jinja", ".tmpl", ".css", ".js", ".cpp", ".h", ".cff"}
#: Texts that others wrote, or that a model wrote: recorded runs, prompts and answers, reports made from them.
OTHERS = (
    "results/2",
    "results/sweep",
    "reports/report",
    "tests/small_data",
    "tests/graders",
    "tests/fuzz/corpus",
    "tests/wording",
)


def sources() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    return [ROOT / name for name in listed if Path(name).suffix in TEXTS and not name.startswith(OTHERS)]


def test_pages_and_code_use_plain_words() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources()
        if path.exists() and path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if REFUSED.search(line)
    ]
    assert not found, "\n".join(found)


def test_module_docstrings_do_not_repeat_the_file_name() -> None:
    found = []
    for path in sources():
        if path.suffix == ".py" and path.exists():
            words = re.findall(r"[a-z0-9]+", (ast.get_docstring(ast.parse(path.read_text())) or "").lower())
            name = (path.parent.name if path.stem == "__init__" else path.stem).lower().strip("_").split("_")
            if words[: len(name)] == name and len(words) > len(name):
                found.append(str(path.relative_to(ROOT)))
    assert not found


@pytest.mark.parametrize("line", ["the clock stops behind it", "Nobody asks", "# as told"])
def test_a_refused_word_is_found(line: str) -> None:
    assert REFUSED.search(line)
