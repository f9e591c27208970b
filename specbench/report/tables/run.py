"""The headline table of a run, for a terminal of 80 columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.report.tables import text_quality as degeneration
from specbench.report.tables.end_to_end import end_to_end
from specbench.report.tables.fair_baseline import engines
from specbench.report.tables.figures import accuracy, lossless, name, number, plain, speedup
from specbench.report.tables.notes import notes
from specbench.report.tables.session import session_table
from specbench.results import BASELINE
from specbench.results.bandwidth import bandwidth_line
from specbench.results.disturbance import UNSURE, disturbance_line
from specbench.results.engine_line import layers_line
from specbench.results.grades import ORDER
from specbench.results.judgments import remarks
from specbench.results.run_file import device_name
from specbench.results.schema import PHASES, SimulatedAcceptance, TaskSpec
from specbench.results.summary_schema import MethodSummary, Rate, RunSummary

#: Letters of a row's name that stand in one line.
_LABEL = 10


def headline(run: Mapping[str, Any], summary: RunSummary, judged: Sequence[Mapping[str, Any]] = ()) -> RenderableType:
    """The table of one run."""
    model, task, sampling = run["model"], run["task"], run["sampling"]
    how = "greedy" if sampling["temperature"] == 0 else f"T={sampling['temperature']:g} seed {sampling['seed']}"
    device = device_name(run)
    title = Text()
    title.append(f"{task['name']} v{task['version']}", style="bold")
    title.append(f" · {model['name']} {model['dtype']}{' (dummy weights)' if model['dummy'] else ''} · {device}\n")
    chosen = TaskSpec.model_validate(task)
    asked = [how, *([] if chosen.taken else [chosen.said]), f"at most {run['max_new_tokens']} new tokens"]
    title.append(" · ".join([*asked, f"concurrency {run['concurrency']}"]), style="dim")
    if chosen.taken:  # a line of its own: behind the others it would break at 80 columns
        title.append(f"\n{chosen.said}", style="dim")
    if layers := layers_line(summary.engine):
        title.append(f"\n{layers}", style="dim")
    if memory := bandwidth_line(summary):
        title.append(f"\n{memory}", style="dim")
    if disturbed := disturbance_line(summary):
        title.append(f"\n{disturbed}", style="yellow")
    simulated = run.get("simulated", {})
    if simulated:
        title.append(f"\n{simulated_title(simulated)}", style="bold red")
    # Of a lottery's text there is nothing to say, neither right nor AR's.
    metric = "" if simulated else task.get("metric", "pass@1")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    # Where a terminal is too narrow the words wrap; a figure is never cut or broken.
    table.add_column("method", min_width=6, overflow="fold")
    for column in ("tokens", "TPF", "tok/s"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("speedup", no_wrap=True)
    table.add_column("e2e", justify="right", no_wrap=True)
    table.add_column("cut", justify="right", no_wrap=True)
    if metric:
        table.add_column(metric, justify="right", min_width=6, overflow="fold")
    exact = all(row.lossless and row.lossless.verdict == "exact" for row in summary.rows)
    table.add_column("acceptance" if simulated else "lossless", min_width=8 if exact else 11, overflow="fold")
    for row in summary.rows:
        right = [accuracy(row.accuracy)] if metric else []
        table.add_row(
            shown_as(row, summary),
            str(row.tokens),
            number(row.tokens_per_forward, 2),
            number(row.decode_tok_s, 1),
            speedup(row.speedup) if row.method != BASELINE else "1",
            "1" if row.baseline else number(row.e2e_speedup.value if row.e2e_speedup else None, 2),
            f"{row.truncated / row.requests:.0%}" if row.requests else "–",
            *right,
            acceptance(row) if simulated else lossless(row.lossless),
        )
    further: list[RenderableType] = [end_to_end(summary.rows)] if any(row.ttft_speedup for row in summary.rows) else []
    further += engines(run, summary)
    further += [session_table(summary.rows)] if any(row.session for row in summary.rows) else []
    further += degeneration.texts(run, summary)
    further += [judgments(scores) for scores in judged]
    if any(score and score.passed for row in summary.rows for score in row.metrics.values()):  # no table of zeros
        further.append(metrics(summary, chosen.metric))
    if any(row.groups for row in summary.rows):
        further.append(groups(summary))
    parted = [row for row in summary.rows if row.lossless and row.lossless.verdict != "exact"]
    graded = {row.method: row.lossless.rates for row in parted if row.lossless and row.lossless.rates}
    if graded:
        further.append(rate_table(graded))
    if any(row.phases for row in summary.rows):
        further.append(phases(summary))
    if any(row.gpu for row in summary.rows):
        further.append(gpu(summary))
    parts: list[RenderableType] = [title, Text(), table]
    for part in further:
        parts += [Text(), part]
    parts += [Text()] if further else []
    said = notes(run, summary) if judged or simulated else [*_not_judged(run["task"]), *notes(run, summary)]
    return Group(*parts, *(Text(note, style="dim") for note in said))


def shown_as(row: MethodSummary, summary: RunSummary) -> str:
    """A row's name, with the size of its trees where nobody has set it."""
    auto = row.method in summary.engine.get("calibrated", []) and row.rows_per_step is not None
    shown = f"{row.method} ({row.rows_per_step:.0f} rows)" if auto else name(row)
    # An engine and its mode are two words, and two lines where one would take the room of the figures.
    return shown.replace(":", ":\n", 1) if row.other and len(shown) > _LABEL else shown


def finding(summary: RunSummary) -> str:
    """What was found, in a sentence: which methods are faster than AR and which slower, and whose texts are AR's.

    Only intervals that exclude 1 are called faster or slower; rows that failed are left out. Empty with nothing but AR.
    """
    rows = [
        row
        for row in summary.rows
        if row.method != BASELINE and row.speedup and not (row.simulated or row.again or row.failed)
    ]
    if not rows:
        return ""
    by_verdict: dict[str, list[MethodSummary]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: -(row.speedup.value if row.speedup else 0.0)):
        assert row.speedup is not None
        by_verdict[row.speedup.verdict].append(row)
    parts = [
        f"{_WORDS[verdict]}: {', '.join(_found(row) for row in by_verdict[verdict])}"
        for verdict in _WORDS
        if by_verdict[verdict]
    ]
    graded = [row for row in rows if row.lossless]
    other = [row.method for row in graded if row.lossless and row.lossless.verdict != "exact"]
    texts = f"; not every text of {', '.join(other)} is {BASELINE}'s" if other else f"; all texts are {BASELINE}'s"
    return f"Found: {'; '.join(parts)}{texts if graded else ''}.{_as_good(summary)}"


def _as_good(summary: RunSummary) -> str:
    """The rows that may be as fast as the fastest; empty where nobody asked which is."""
    fastest = summary.fastest
    if fastest is None or fastest.among < 2 or not fastest.told_apart or summary.unsure:
        return ""
    others = [method for method in fastest.as_good if method != fastest.method]
    if not others:
        return f" {fastest.method} is the fastest of {fastest.among}."
    return f" As good as the fastest, {fastest.method}, by these prompts: {', '.join(others)}."


def _found(row: MethodSummary) -> str:
    return f"{name(row)} {speedup(row.speedup)}{degeneration.aside(row)}"


_WORDS = {
    "faster": f"faster than {BASELINE}",
    "slower": f"slower than {BASELINE}",
    "no difference shown": "no difference shown",
    "too few prompts": "too few prompts to say",
}
_WORDS |= {f"{UNSURE}{verdict}": f"{UNSURE}{words}" for verdict, words in _WORDS.items()}


def simulated_title(simulated: Mapping[str, Mapping[str, float]]) -> str:
    """What stands above every figure of a run whose acceptance was decided by lot."""
    asked = {label: str(SimulatedAcceptance.model_validate(figures)) for label, figures in simulated.items()}
    of = set(asked.values())
    figures = of.pop() if len(of) == 1 else ", ".join(f"{label} {figures}" for label, figures in asked.items())
    return f"simulated acceptance {figures}: drafts are accepted at random, so the text is meaningless"


def acceptance(row: MethodSummary) -> str:
    """Whether the target decided what a row accepted."""
    return f"simulated {row.simulated}" if row.simulated else "the target's"


def _not_judged(task: Mapping[str, Any]) -> list[str]:
    """Says of a task without a metric that nothing was judged: no figure here stands for quality."""
    if task.get("metric", "pass@1"):
        return []
    return [
        "Answers are not judged" + ("; specbench judge RUN --judge MODEL rates them." if task.get("judge") else ".")
    ]


def judgments(scores: Mapping[str, Any]) -> RenderableType:
    """Mean ratings of one judge by category and method, with how many answers have one."""
    methods = scores["methods"]
    table = plain(["score", *methods])
    for category in dict.fromkeys(c for method in methods.values() for c in method["categories"]):
        table.add_row(category, *(_rating(method["categories"].get(category)) for method in methods.values()))
    for turn in dict.fromkeys(turn for method in methods.values() for turn in method["turns"]):
        table.add_row(f"turn {turn}", *(_rating(method["turns"].get(turn)) for method in methods.values()))
    table.add_row("all", *(_rating(method) for method in methods.values()), style="bold")
    judge = scores["judge"]
    how = {"local": "run here", "endpoint": f"at {judge['endpoint']}", "import": "imported"}[judge["kind"]]
    said = f"Mean rating, 1 to 10, by {judge['id']} ({how}); in brackets the answers that have one."
    return Group(table, Text(said, style="dim"), *(Text(remark, style="yellow") for remark in remarks(scores)))


def _rating(score: Mapping[str, Any] | None) -> str:
    if score is None:
        return "–"
    rated, asked = score["rated"], score["judged"]
    return f"{number(score['score'], 2)} ({rated if rated == asked else f'{rated}/{asked}'})"


def metrics(summary: RunSummary, headline: str) -> RenderableType:
    """Right answers by every metric of the task, the headline first."""
    further = list(next(row.metrics for row in summary.rows if row.metrics))
    table = plain(["right answers", headline, *further])
    for row in summary.rows:
        others = [accuracy(row.metrics.get(metric)) for metric in further]
        table.add_row(row.method, accuracy(row.accuracy), *others)
    return table


def groups(summary: RunSummary) -> RenderableType:
    """Figures of each group of categories, a line per method beside AR, with Spec-Bench's own figures in the end."""
    rows = [row for row in summary.rows if row.groups and row.method != BASELINE]
    rows = rows or [row for row in summary.rows if row.groups]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("group", overflow="fold")
    table.add_column("method", overflow="fold")
    for column in ("prompts", "TPF"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("speedup", no_wrap=True)
    table.add_column("MAT*", justify="right", no_wrap=True)
    table.add_column("speedup*", justify="right", no_wrap=True)
    for group in dict.fromkeys(group for row in rows for group in row.groups):
        shown = group
        for row in rows:
            if figures := row.groups.get(group):
                ours = [str(figures.prompts), number(figures.tokens_per_forward, 2), speedup(figures.speedup)]
                theirs = [number(figures.specbench_mat, 2), number(figures.specbench_speedup, 2)]
                table.add_row(shown, name(row), *ours, *theirs)
                shown = ""
    said = "* as Spec-Bench defines them: prefill included, means of prompts' speeds, AR without stop tokens."
    return Group(table, Text(said, style="dim"))


def rate_table(rates: Mapping[str, Mapping[str, Rate]]) -> RenderableType:
    """Prompts of each grade and their share."""
    table = plain(["method", "prompts", *ORDER])
    for method, grades in rates.items():
        graded = max(share.of for share in grades.values())
        table.add_row(method, str(graded), *(_rate(grades.get(grade)) for grade in ORDER))
    return table


def _rate(share: Rate | None) -> str:
    if share is None or not share.of or share.low is None or share.high is None:
        return "–"
    return f"{share.count} · {share.count / share.of:.0%} [{round(100 * share.low)}, {round(100 * share.high)}]"


def phases(summary: RunSummary) -> RenderableType:
    """Where a step's time goes: medians over steps, in milliseconds; host is everything but the forward."""
    table = Table(title="ms a step", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("method", min_width=6, overflow="fold")
    for phase in (*PHASES, "host"):
        table.add_column(phase, justify="right", no_wrap=True)
    for row in summary.rows:
        if row.phases:
            spent = [row.phases.get(f"{phase}_s") for phase in (*PHASES, "host")]
            table.add_row(name(row), *(number(each and 1e3 * each, 2) for each in spent))
    return table


def gpu(summary: RunSummary) -> RenderableType:
    """What the GPU did under each method."""
    table = plain(["GPU", "SM MHz", "W", "max °C", "J/token", "throttled"])
    for row in summary.rows:
        if seen := row.gpu:
            figures = [number(seen.sm_clock_mhz, 0), number(seen.power_w, 0), number(seen.temperature_c, 0)]
            throttled = f"{seen.throttled}/{row.requests}"
            table.add_row(name(row), *figures, number(seen.energy_per_token_j, 3), throttled)
    return table
