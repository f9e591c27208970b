"""``specbench score``: grade the answers of a run, or let a judge model rate them."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import typer

from specbench.cli import options, output
from specbench.common import Tenths, UsageError, keys

_TIMEOUT_S = 300.0


def score(
    run: Path = options.folders("A folder that specbench run wrote.", "RUN"),
    workers: int | None = typer.Option(None, "--workers", min=1, help="Answers graded at a time; default all cores."),
    judge: str | None = typer.Option(
        None, "--judge", help="Rate by this model instead: as for --model, or one of --base-url.", metavar="MODEL"
    ),
    base_url: str | None = typer.Option(None, "--base-url", help="OpenAI-compatible, as http://localhost:8000/v1."),
    api_key_env: str | None = typer.Option(
        None, "--api-key-env", help="Environment variable with the key.", metavar="VAR"
    ),
    timeout: float | None = typer.Option(
        None, "--timeout", min=0.1, max=86400, help="Seconds for one answer of an endpoint.", show_default="300"
    ),
    workers_of_judge: int = typer.Option(
        1, "--judge-workers", min=1, max=64, help="Questions asked of an endpoint at once.", metavar="N"
    ),
    max_new_tokens: int | None = typer.Option(
        None, "--max-new-tokens", min=1, help="Per judgment.", show_default="2048"
    ),
    dtype: str = options.plan_option("dtype"),
    device: str = options.plan_option("device"),
    revision: str | None = options.plan_option("revision"),
    trust_remote_code: bool = options.plan_option("trust_remote_code"),
    data_dir: Path | None = options.plan_option("data_dir"),
    as_json: bool = options.JSON,
) -> None:
    """Grade the answers of a run, finished or not; with --judge, rate them from 1 to 10 with FastChat's prompts.

    No answer is generated again, and grading never imports torch. Ratings are
    stored as they come, and answers equal to AR's share its rating; repeating an
    interrupted command continues it.
    """
    if judge is None:
        local = {
            "--dtype": dtype != "auto",
            "--device": device != "auto",
            "--revision": revision,
            "--trust-remote-code": trust_remote_code,
        }
        remote = {"--base-url": base_url, "--api-key-env": api_key_env, "--timeout": timeout}
        more = {"--judge-workers": workers_of_judge > 1, "--max-new-tokens": max_new_tokens}
        if unused := [name for name, given in {**local, **remote, **more}.items() if given]:
            raise UsageError(f"{unused[0]} needs --judge MODEL; add it, or leave {unused[0]} out")
        _score(run, workers, data_dir, as_json)
        return
    if workers is not None:
        raise UsageError("--workers is for grading without --judge; use --judge-workers")
    if base_url is not None and (dtype != "auto" or device != "auto" or revision or trust_remote_code):
        raise UsageError(
            "--dtype, --device, --revision and --trust-remote-code are for a local judge; "
            "leave them out with --base-url"
        )
    if base_url is None and timeout is not None:
        raise UsageError("--timeout needs --base-url; a local judge has no time limit")
    if base_url is None and workers_of_judge > 1:
        raise UsageError("--judge-workers needs --base-url; a local judge takes one question at a time")
    key, most = _key(base_url, api_key_env), max_new_tokens or 2048
    from specbench.analysis import read_run
    from specbench.results import RunFolder

    options.assert_answers(RunFolder.load(run).run)
    notes = output.stderr()

    def say(text: str) -> None:
        notes.print(text, markup=False)

    if base_url is None:
        from specbench.runner import judge_runs

        loading = {"dtype": dtype, "device": device, "revision": revision, "trust_remote_code": trust_remote_code}
        judge_runs([run], judge, say, data_dir, max_tokens=most, **loading)
    else:
        from specbench.evals import Endpoint, JudgePrompts, judge_all, judge_questions, judged_answers

        with RunFolder.reopen(run):
            read = read_run(run)
            made = judged_answers(read.records, judge_questions(read.config.task, data_dir), JudgePrompts(data_dir))
            progress = Tenths(say, lambda done, total: f"judging answers, {done} of {total} …")
            with closing(Endpoint(judge, base_url, key, max_tokens=most, timeout_s=timeout or _TIMEOUT_S)) as who:
                judge_all(run, who, made, progress, workers_of_judge)
    read = read_run(run)
    if as_json:
        output.emit_json({"run": str(run), "judged": read.judged})
    elif read.judged:
        from specbench.report import judgment_report, render_terminal

        for scores in read.judged:
            output.stdout().print(render_terminal([*judgment_report(scores)]))


def _score(run: Path, workers: int | None, data_dir: Path | None, as_json: bool) -> None:
    from specbench.results import RunFolder
    from specbench.runner import rescore

    folder = RunFolder.load(run)
    options.assert_answers(folder.run)
    notes = output.stderr()
    summary = rescore(folder, data_dir, lambda text: notes.print(f"{text} …"), workers)
    if as_json:
        output.emit_json({"run": folder.run, "summary": summary.written()})
        return
    from specbench.report import render_terminal, run_report

    output.stdout().print(render_terminal(run_report(folder.run, summary)))


def _key(base_url: str | None, variable: str | None) -> str | None:
    if variable is None:
        return None
    if base_url is None:
        raise UsageError("--api-key-env needs --base-url; a local judge needs no key")
    key = os.environ.get(variable, "").strip()
    # A text that does not look like a variable may be the key itself, given by mistake.
    name = f"environment variable {variable}" if keys.is_variable(variable) else "what --api-key-env names"
    if not key:
        raise UsageError(f"{name} is not set; put the key of --base-url into a variable, and give its name")
    if fault := keys.fault_of(key):
        raise UsageError(f"{name} {fault}; set it again, or leave --api-key-env out where no key is needed")
    if keys.is_variable(variable):
        keys.named(variable)
    return key
