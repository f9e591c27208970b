"""``specbench judge``: a model rates the answers of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from specbench.cli import options, output
from specbench.common import UsageError, keys
from specbench.common.progress import Tenths

if TYPE_CHECKING:
    from specbench.evals.judge.judge import Answer, Judge


_TIMEOUT_S = 300.0


def judge(
    run: Path = options.folders("A folder that specbench run wrote.", "RUN"),
    model: str | None = typer.Option(None, "--judge", help="A model as for --model, or one of --base-url."),
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
    export: Path | None = typer.Option(None, "--export", help="Write FastChat's model_answer files.", metavar="DIR"),
    import_: Path | None = typer.Option(
        None, "--import", help="Take FastChat's *_single.jsonl.", metavar="FILE", exists=True, dir_okay=False
    ),
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
    if model is None and (base_url or api_key_env):
        raise UsageError("--base-url and --api-key-env go with --judge; name the endpoint's model")
    if model is None and export is None and import_ is None:
        raise UsageError("nothing to do; name a judge (--judge), or give --export DIR or --import FILE")
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
    from specbench.evals.judge.mt_bench_files import export as export_answers
    from specbench.evals.judge.mt_bench_files import import_judgments
    from specbench.evals.judge.prompts import JudgePrompts
    from specbench.results import RunFolder, read_run

    options.assert_answers(RunFolder.load(run).run)
    notes = output.stderr()
    writes = model is not None or import_ is not None
    with RunFolder.reopen(run) if writes else nullcontext():
        read = read_run(run)
        asked = questions(read.config.task, data_dir)
        made = answers(read.records, asked, JudgePrompts(data_dir))
        if import_ is not None:
            taken, other = import_judgments(run, import_, read.config, made)
            notes.print(f"{taken} judgments taken" + (f", {other} of other answers left out" if other else ""))
        if export is not None:
            begun = RunFolder.load(run).begun
            for path in export_answers(export, read.config, read.records, asked, begun):
                notes.print(f"wrote {path}", soft_wrap=True, markup=False)
        if model is not None:
            with _made(
                model,
                base_url,
                key,
                timeout or _TIMEOUT_S,
                max_new_tokens,
                made,
                dtype,
                device,
                revision,
                trust_remote_code,
            ) as who:
                progress = Tenths(
                    lambda text: notes.print(text, markup=False),
                    lambda done, total: f"judging answers, {done} of {total} …",
                )
                judge_all(run, who, made, progress, workers)
        read = read_run(run)
    if as_json:
        output.emit_json({"run": str(run), "judged": read.judged})
    elif read.judged:
        from specbench.report.terminal.run import judgments

        for scores in read.judged:
            output.stdout().print(judgments(scores))


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


@contextmanager
def _made(
    model: str,
    base_url: str | None,
    key: str | None,
    timeout: float,
    max_tokens: int,
    answers: list[Answer],
    dtype: str,
    device: str,
    revision: str | None,
    trust_remote_code: bool,
) -> Iterator[Judge]:
    """The judge, closed at the end."""
    if base_url is not None:
        from specbench.evals.judge.endpoint import Endpoint

        with closing(Endpoint(model, base_url, key, max_tokens=max_tokens, timeout_s=timeout)) as there:
            yield there
        return
    output.stderr().print(f"loading {model} …", markup=False)
    from specbench.models import load
    from specbench.runner.local_judge import LocalJudge

    loaded = load(model, dtype=dtype, device=device, revision=revision, trust_remote_code=trust_remote_code)
    with closing(LocalJudge(loaded, [answer.prompt for answer in answers], max_tokens=max_tokens)) as local:
        yield local
