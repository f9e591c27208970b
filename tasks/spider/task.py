"""Spider (Yu et al. 2018, arXiv 1809.08887): a question about a database, answered by one SQL query.

The databases of the development split do not occur in the training split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

from specbench.common import Options as OptionsBase
from specbench.common import Prompt, UsageError, option
from specbench.evals import Sandbox, Verdict, manifest, resolve_file, sql_checks
from specbench.tasks.spider import asking
from specbench.tasks.spider.rows import Question, databases, fingerprint, load


class Options(OptionsBase):
    """Options of the task."""

    style: Literal["auto", "chat", "cllm"] = option(
        "auto", help="chat: through the chat template; cllm: that paper's prompt; auto: chat if there is a template"
    )
    tables: Literal["create", "columns"] = option(
        "create", help="how style=chat shows the schema: create: CREATE TABLE statements; columns: table(columns)"
    )
    distinct: Literal["drop", "keep"] = option(
        "drop", help="drop: remove DISTINCT from both queries, as the test-suite evaluation does; keep: DISTINCT counts"
    )


class Task:
    """The questions of the development split. Verdict: execution accuracy, on the database of the question."""

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        """``data_dir``: folder of dev.json, tables.json and database/; None searches the usual places."""
        self.options = options
        files = [partial(resolve_file, file, data_dir) for file in manifest(Path(__file__).with_name("task.toml"))]
        dev, self._tables, self._train = files[0](), files[1](), files[2]
        questions, self._schemas = load(dev, self._tables)
        self._questions = {f"spider/{number}": found for number, found in enumerate(questions)}
        self._databases = databases(dev.parent / "database", (row.db_id for _, row in questions))

    def prompts(self, chat: bool) -> list[Prompt]:
        """All questions in data order."""
        return self._asked(self._questions, chat)

    def training_prompts(self, chat: bool) -> list[Prompt]:
        """The questions of train_spider.json, in the prompts of the development split."""
        questions, _ = load(self._train(), self._tables)
        return self._asked({f"spider/{number}": found for number, found in enumerate(questions)}, chat)

    def _asked(self, questions: Mapping[str, tuple[str, Question]], chat: bool) -> list[Prompt]:
        if self.options.style == "auto":
            self.options = self.options.model_copy(update={"style": "chat" if chat else "cllm"})
        if self.options.style == "chat" and not chat:
            raise UsageError("style=chat needs a model with a chat template; this one has none, so use style=cllm")
        return [self._ask(id, row) for id, (_, row) in questions.items()]

    def score(self, prompt_id: str, text: str) -> Verdict:
        """Run an answer's query and the gold query in the sandbox. ``also`` has "executes": the query ran."""
        if prompt_id not in self._questions:
            raise UsageError(f"spider has no question '{prompt_id}'; the run was made with other data")
        where, row = self._questions[prompt_id]
        found = asking.query(text)
        if found is None:
            return Verdict(False, "empty", "the answer has no query", {"executes": False})
        keep = self.options.distinct == "keep"
        verdict = self._checker.check(self._databases[row.db_id], row.query, where, found.code, keep)
        return replace(verdict, extracted=found.rule)

    @cached_property
    def versions(self) -> dict[str, str]:
        """Versions of the comparison of results, SQLite and the databases, which affect verdicts."""
        found = {"comparison": sql_checks.VERSION, "sqlite": sql_checks.SQLITE}
        return {**found, "databases": fingerprint(self._databases)[:16]}

    @property
    def isolation(self) -> list[str]:
        """What confines the queries that ``score`` runs, one line each."""
        return self._checker.isolation()

    def _ask(self, id: str, row: Question) -> Prompt:
        schema = self._schemas[row.db_id]
        if self.options.style == "cllm":
            return asking.as_cllm(id, schema, row.question)
        return asking.as_chat(id, schema, row.question, create=self.options.tables == "create")

    @cached_property
    def _checker(self) -> sql_checks.Checker:
        return sql_checks.Checker(Sandbox())
