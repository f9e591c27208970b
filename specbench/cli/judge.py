"""``specbench judge``: a model rates the answers of a run."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from specbench.cli import options, output
from specbench.common import UsageError, keys
from specbench.common.progress import Tenths

if TYPE_CHECKING:
    from specbench.evals.judge.judge import Judge


_TIMEOUT_S = 300.0


def judge(
    run: Path = options.folders("A folder that specbench run wrote.", "RUN"),
    model: str = typer.Option(..., "--judge", help="A model as for --model, or one of --base-url."),
    base_url: str | None = typer.Option(None, "--base-url", help="OpenAI-compatible, as http://localhost:8000/v1."),
    api_key_env: str | None = typer.Option(
        None, "--api-key-env", help="Environment variable with the key.", metavar="VAR"
    ),
    timeout: float | None = typer.Option(
        None, "--timeout", min=0.1, max=86400, help="Seconds for one answer of an endpoint.", show_default="300"
    ),
    workers: int = typer.Option(
        1, "--judge-workers", min=1, max=64, help="Questions asked of an endpoint at once.", metavar="N"
    ),
    max_new_tokens: int = typer.Option(2048, "--max-new-tokens", min=1, help="Per judgment."),
    dtype: str = options.of("dtype"),
    device: str = options.of("device"),
    revision: str | None = options.of("revision"),
    trust_remote_code: bool = options.of("trust_remote_code"),
    data_dir: Path | None = options.of("data_dir"),
    as_json: bool = options.JSON,
) -> None:
    """Rate a run's answers from 1 to 10 with FastChat's prompts; ratings are kept as they come.

    Answers equal to AR's take its rating. Repeating an interrupted command goes on.
    """
    if base_url is not None and (dtype != "auto" or device != "auto" or revision or trust_remote_code):
        raise UsageError(
            "--dtype, --device, --revision and --trust-remote-code are of a judge that runs here; "
            "leave them out for --base-url"
        )
    if base_url is None and timeout is not None:
        raise UsageError("--timeout goes with --base-url; a judge that runs here takes as long as it takes")
    if base_url is None and workers > 1:
        raise UsageError("--judge-workers goes with --base-url; a judge that runs here takes one question at a time")
    key = _key(base_url, api_key_env)
    from specbench.evals.judge.judge import answers, judge_all, questions
    from specbench.evals.judge.prompts import JudgePrompts
    from specbench.results import RunFolder, read_run

    options.assert_answers(RunFolder.load(run).run)
    notes = output.stderr()
    with RunFolder.reopen(run):
        read = read_run(run)
        made = answers(read.records, questions(read.config.task, data_dir), JudgePrompts(data_dir))
        with ExitStack() as stack:
            who: Judge
            if base_url is not None:
                from specbench.evals.judge.endpoint import Endpoint

                seconds = timeout or _TIMEOUT_S
                who = stack.enter_context(
                    closing(Endpoint(model, base_url, key, max_tokens=max_new_tokens, timeout_s=seconds))
                )
            else:
                notes.print(f"loading {model} …", markup=False)
                from specbench.models import load
                from specbench.runner.local_judge import LocalJudge

                loaded = load(model, dtype=dtype, device=device, revision=revision, trust_remote_code=trust_remote_code)
                prompts = [answer.prompt for answer in made]
                who = stack.enter_context(closing(LocalJudge(loaded, prompts, max_tokens=max_new_tokens)))
            progress = Tenths(
                lambda text: notes.print(text, markup=False),
                lambda done, total: f"judging answers, {done} of {total} …",
            )
            judge_all(run, who, made, progress, workers)
        read = read_run(run)
    if as_json:
        output.emit_json({"run": str(run), "judged": read.judged})
    elif read.judged:
        from specbench.report import judgment_report, render_terminal

        for scores in read.judged:
            output.stdout().print(render_terminal([*judgment_report(scores)]))


def _key(base_url: str | None, variable: str | None) -> str | None:
    if variable is None:
        return None
    if base_url is None:
        raise UsageError("--api-key-env goes with --base-url; a judge that runs here needs no key")
    key = os.environ.get(variable, "").strip()
    # What is not written as variables are may be the key itself, given by mistake.
    name = f"environment variable {variable}" if keys.is_variable(variable) else "what --api-key-env names"
    if not key:
        raise UsageError(f"{name} is not set; put the key of --base-url into a variable, and give its name")
    if fault := keys.fault_of(key):
        raise UsageError(f"{name} {fault}; set it again, or leave --api-key-env out where no key is needed")
    if keys.is_variable(variable):
        keys.named(variable)
    return key
