"""Run folders derived from a committed one, with requests changed as a test wants them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specbench.results.read import read_run
from specbench.results.schema import RequestRecord, RunConfig
from specbench.results.summary import RunContents, summarise

RESULTS = Path(__file__).parents[1] / "results"

#: Folders of it that results/README.md names. Others there are somebody's own runs, of which nothing can be expected.
CURATED = [
    RESULTS / name
    for line in (RESULTS / "README.md").read_text().splitlines()
    if line.startswith("|")
    for name in re.findall(r"\]\(([^)/]+)\)", line)
]

#: Those of them that are runs, the oldest first.
COMMITTED = sorted(folder for folder in CURATED if (folder / "run.json").exists())

#: A run of 40 prompts and five rows: AR and ``jetspec`` with four settings.
GSM8K = next(RESULTS.glob("*-9de7f64d"))

Change = Callable[[dict[str, Any]], object]


def derived(
    out: Path,
    request: Change | None = None,
    run: Change | None = None,
    *,
    source: Path = GSM8K,
    labels: tuple[str, ...] = ("ar", "jetspec"),
) -> Path:
    """A finished run of this schema of some rows of a committed one, its files in agreement with each other.

    Args:
        out: the folder to make.
        request: changes a line of ``requests.jsonl`` in place.
        run: changes the content of ``run.json`` in place.
        labels: the rows that are kept.
    """
    content = json.loads((source / "run.json").read_text())
    content["methods"] = [spec for spec in content["methods"] if spec["label"] in labels]
    if run:
        run(content)
    lines = [json.loads(line) for line in (source / "requests.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["method"] in labels]
    for line in lines:
        if request:
            request(line)
    kept = {line["request_id"] for line in lines}
    verdicts = (source / "verdicts.jsonl").read_text().splitlines(keepends=True)
    out.mkdir(parents=True)
    (out / "run.json").write_text(json.dumps(content))
    (out / "requests.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (out / "verdicts.jsonl").write_text("".join(line for line in verdicts if json.loads(line)["request"] in kept))
    config = RunConfig.model_validate({name: content[name] for name in RunConfig.model_fields if name in content})
    summary = summarise(
        RunContents(config, [RequestRecord.model_validate(line) for line in lines], read_run(out).verdicts)
    )
    (out / "summary.json").write_text(json.dumps(summary.written()))
    (out / "DONE").write_text("")
    return out


def timed(factor: Callable[[dict[str, Any]], float]) -> Change:
    """A change that multiplies the times of a request."""

    def change(line: dict[str, Any]) -> None:
        by = factor(line)
        for name in ("ttft_s", "decode_s", "latency_s", "prefill_share_s", "decode_share_s"):
            line[name] *= by

    return change
