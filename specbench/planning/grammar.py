"""Read the file of ``--grammar`` and check it with llguidance."""

from __future__ import annotations

from pathlib import Path

from specbench.common import EnvironmentRefused, UsageError, one_line, parse_json
from specbench.results import GrammarSpec

_KINDS = {".json": "json", ".lark": "lark", ".regex": "regex"}


def read_grammar(path: Path) -> GrammarSpec:
    """Read a JSON schema, Lark grammar or regular expression, according to the file's suffix."""
    kind = _KINDS.get(path.suffix)
    if kind is None:
        raise UsageError(f"cannot use --grammar {path}: its suffix is {path.suffix or 'missing'}; name a file {_FILES}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read --grammar {path}: {one_line(str(error))}; name a text file {_FILES}") from None
    if kind == "json":
        parse_json(text, f"--grammar {path}", "fix the file")
    return GrammarSpec.model_validate({"kind": kind, "text": text.rstrip("\n") if kind == "regex" else text})


_FILES = "that ends in .json (a JSON schema), .lark or .regex"


def grammar_source(grammar: GrammarSpec) -> str:
    """A grammar in llguidance's form.

    Raises:
        EnvironmentRefused: llguidance is not installed.
        UsageError: the grammar is wrong.
    """
    try:
        from llguidance import LLMatcher  # imported here: an optional library
    except ImportError:
        raise EnvironmentRefused(
            "cannot use --grammar: llguidance is not installed; run pip install 'specbench-llm[grammar]'"
        ) from None
    try:
        if grammar.kind == "json":
            source = LLMatcher.grammar_from_json_schema(grammar.text)
        else:
            make = {"lark": LLMatcher.grammar_from_lark, "regex": LLMatcher.grammar_from_regex}
            source = make[grammar.kind](grammar.text)
        why = LLMatcher.validate_grammar(source)
    except ValueError as error:  # no JSON, or no object
        why = str(error)
    if why:
        raise UsageError(f"cannot use --grammar: llguidance refuses it: {one_line(why, 200)}; fix the file")
    return source
