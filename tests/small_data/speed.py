"""CodeSearchNet and SPEED-Bench in miniature: rows of our own with all the columns of the published ones."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def _function(name: str, documentation: str, body: str) -> Row:
    code = f'def {name}(x):\n    """\n    {documentation}\n    """\n    {body}'
    return {
        "repository_name": "someone/geese", "func_path_in_repository": f"geese/{name}.py", "func_name": name,
        "whole_func_string": code, "language": "python", "func_code_string": code,
        "func_code_tokens": ["def", name, "(", "x", ")"], "func_documentation_string": documentation,
        "func_documentation_tokens": documentation.split(), "split_name": "test",
        "func_code_url": f"https://example.org/{name}",
    }  # fmt: skip


FUNCTIONS: list[Row] = [
    _function("double", "Twice the number.\n\n    :param x: a number\n    :return: twice as much", "return 2 * x"),
    _function("flock", "  Sorts geese by size, the largest first.  ", "return sorted(x)[::-1]"),
    _function("umlaut", "Zählt die Gänse — ohne Küken.", "return len(x)"),
]
#: The same as CodeSearchNet's own files have them.
OWN_FUNCTIONS: list[Row] = [
    {
        "repo": row["repository_name"], "path": row["func_path_in_repository"], "func_name": row["func_name"],
        "original_string": row["whole_func_string"], "language": "python", "code": row["func_code_string"],
        "code_tokens": row["func_code_tokens"], "docstring": row["func_documentation_string"],
        "docstring_tokens": row["func_documentation_tokens"], "sha": "0" * 40, "url": row["func_code_url"],
        "partition": "test",
    }
    for row in FUNCTIONS
]  # fmt: skip

PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
CATEGORIES = (
    "coding", "humanities", "math", "multilingual", "qa", "rag", "reasoning", "roleplay", "stem", "summarization",
    "writing",
)  # fmt: skip
TIERS = ("low_entropy", "mixed", "high_entropy")


def _question(at: int, category: str, kind: str | None, *turns: str) -> Row:
    return {
        "question_id": f"{at:032x}", "category": category, "sub_category": kind, "turns": list(turns),
        "source": "https://example.org", "src_id": f"test_{at}", "difficulty": "easy", "multiturn": len(turns) > 1,
    }  # fmt: skip


QUALITATIVE: list[Row] = [
    _question(at, category, "de-en" if category == "multilingual" else None, f"Tell me of {category}.", *more)
    for at, category in enumerate(CATEGORIES)
    for more in [("And again, shorter.",) if at % 3 == 0 else ()]
]
THROUGHPUT: list[Row] = [
    _question(100 + at, tier, kind, f"{kind}: " + "one goose after the other, " * 20)
    for at, (tier, kind) in enumerate([(tier, kind) for tier in TIERS for kind in ("sorting", "creative writing")])
]
