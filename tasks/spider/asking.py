"""The prompts, and the query in an answer."""

from __future__ import annotations

import re

from specbench.common import Prompt
from specbench.evals import UNPAIRED, Extracted, fenced_code
from specbench.tasks.spider.rows import Schema

_PLAIN = re.compile(r"[A-Za-z_]\w*")

# The beginning of a query: SELECT, or WITH followed by the definition of a table.
_BEGIN = r"(?:SELECT\b|WITH\s+(?:RECURSIVE\s+)?\w+\s*(?:\([^()]*\)\s*)?AS\b)"
_AT_LINE = re.compile(rf"^[ \t]*({_BEGIN})", re.IGNORECASE | re.MULTILINE)
_ANYWHERE = re.compile(rf"\b({_BEGIN})", re.IGNORECASE)
# Up to a semicolon, a blank line, a heading or a fence, none of them inside quotation marks.
_BODY = re.compile(
    r"""(?:'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]+`|(?!;|\n[ \t]*(?:\r?\n|\#\#\#|```|\Z)|```).)*""", re.DOTALL | re.VERBOSE
)

STATEMENT = "statement in the text"


def as_cllm(id: str, schema: Schema, question: str) -> Prompt:
    """CLLM's prompt, without a chat template (``eval/spider/speedup.py`` of Consistency_LLM at commit 2277536).

    CLLM's script reads the names from the database. Here they come from tables.json, which leaves out SQLite's internal
    tables (``sqlite_sequence``).
    """
    tables = "".join(
        f"table named {name} with columns {columns}, " for name, columns in _tables(schema, quoted=False).items()
    )
    asked = (
        "Could you translate the following question into SQL. Please only generate SQL, don't include explanation in "
        f"the answer. The SQL database has {tables}Question: {question}"
    )
    return Prompt(id, f"### Instruction:\n{asked.strip()}\n### Response:\n", False, "", ("### Instruction",))


def as_chat(id: str, schema: Schema, question: str, create: bool) -> Prompt:
    """A user turn: the schema, the question, and the request for one SQLite query.

    Args:
        create: the schema as CREATE TABLE statements; otherwise one line per table.
    """
    tables = create_tables(schema) if create else _list_tables(schema)
    asked = (
        f"Write one SQL query for SQLite that answers the question. Reply with the query alone, in one markdown code "
        f"block.\n\nThe database {schema.db_id} has these tables:\n\n{tables}\n\nQuestion: {question.strip()}"
    )
    return Prompt(id, asked, True)


def query(answer: str) -> Extracted | None:
    """The query in an answer; None without a query.

    It is the last fenced SQL block, else the last fenced block. Without a block it begins with the first SELECT or
    WITH … AS at the start of a line, or else with the first one anywhere, and ends before a semicolon, a blank line, a
    heading or a fence.
    """
    block = fenced_code(answer, r"sql\w*|\w*sql", last=True, continues=lambda text: bool(_AT_LINE.search(text)))
    if block and block.rule != UNPAIRED:
        return Extracted(block.code.strip(), block.rule)
    text = block.code if block else answer
    found = _AT_LINE.search(text) or _ANYWHERE.search(text)
    if found is None:
        return block
    if text[: found.start(1)].endswith("`"):  # inline code: the next backtick ends it
        text = text[: found.end(1)] + text[found.end(1) :].partition("`")[0]
    body = _BODY.match(text, found.start(1))
    assert body is not None, "the pattern also matches an empty string"
    return Extracted(body[0].strip(), block.rule if block else STATEMENT) if body[0].strip() else None


def create_tables(schema: Schema) -> str:
    """The schema as SQL, with Spider's types: text, number, time, boolean, others."""
    statements = []
    columns = schema.columns
    for table, name in enumerate(schema.table_names_original):
        own = {number: column for number, (place, column) in enumerate(columns) if place == table}
        lines = [f"{_quoted(column)} {schema.column_types[number]}" for number, column in own.items()]
        keys = [key if isinstance(key, list) else [key] for key in schema.primary_keys]
        for key in keys:
            if all(number in own for number in key):
                lines.append(f"PRIMARY KEY ({', '.join(_quoted(own[number]) for number in key)})")
        for here, there in schema.foreign_keys:
            place, column = columns[there]
            if here in own and place >= 0:
                target = f"{_quoted(schema.table_names_original[place])}({_quoted(column)})"
                lines.append(f"FOREIGN KEY ({_quoted(own[here])}) REFERENCES {target}")
        statements.append(f"CREATE TABLE {_quoted(name)} (\n  " + ",\n  ".join(lines) + "\n);")
    return "\n\n".join(statements)


def _list_tables(schema: Schema) -> str:
    return "\n".join(f"{table}({', '.join(columns)})" for table, columns in _tables(schema, quoted=True).items())


def _tables(schema: Schema, quoted: bool) -> dict[str, list[str]]:
    write = _quoted if quoted else str
    return {
        write(name): [write(column) for place, column in schema.columns if place == table]
        for table, name in enumerate(schema.table_names_original)
    }


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'
