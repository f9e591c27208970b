"""The headline table of a run, for a terminal of 80 columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.report.terminal import degeneration
from specbench.report.terminal.end_to_end import end_to_end
from specbench.results import BASELINE
from specbench.results.bandwidth_line import bandwidth_line
from specbench.results.blocks import FILLINGS, prompts_for
from specbench.results.disturbance import UNSURE, disturbance_line
from specbench.results.engine_line import layers_line
from specbench.results.grades import ORDER
from specbench.results.run_file import device_name
from specbench.results.schema import PHASES, SimulatedAcceptance, TaskSpec
from specbench.results.stats import minimum_clusters
from specbench.results.summary_schema import (
    Accuracy,
    AccuracyDifference,
    Again,
    Lossless,
    MethodSummary,
    Rate,
    RunSummary,
    Speedup,
    ToTell,
)

LEGEND = (
    "TPF: tokens per target forward after prefill. tok/s: decode tokens over decode seconds. speedup: AR's seconds per "
    "token over the method's, with its 95% paired-bootstrap interval over prompts. e2e: the same with the prefill."
)


def headline(run: Mapping[str, Any], summary: RunSummary, judged: Sequence[Mapping[str, Any]] = ()) -> RenderableType:
    """The table of one run.

    Args:
        run: content of ``run.json``.
        summary: its figures.
        judged: scores by judge, see :func:`specbench.results.judgments.scores`.
    """
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
    return f"{row.method} ({row.rows_per_step:.0f} rows)" if auto else row.method


def finding(summary: RunSummary) -> str:
    """What was found, in a sentence: which methods are faster than AR and which slower, and whose texts are AR's.

    Only intervals that exclude 1 are called faster or slower, and of a disturbed run none is without its mark. Empty
    where there is nothing but AR.
    """
    rows = [
        row for row in summary.rows if row.method != BASELINE and row.speedup and not row.simulated and not row.again
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
    return f"{row.method} {speedup(row.speedup)}{degeneration.aside(row)}"


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
    return f"simulated acceptance {figures}: drafts are accepted by lot, the text means nothing"


def acceptance(row: MethodSummary) -> str:
    """Whether the target decided what a row accepted."""
    return f"simulated {row.simulated}" if row.simulated else "the target's"


def name(row: MethodSummary) -> str:
    """A row's method, marked where its acceptance was simulated: no figure of it may pass for a real one."""
    return f"{row.method} (simulated)" if row.simulated else row.method


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
    return Group(table, Text(said, style="dim"))


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
    """Prompts of each grade and their share.

    Args:
        rates: method -> grade -> how many prompts have it.
    """
    table = plain(["method", "prompts", *ORDER])
    for method, grades in rates.items():
        graded = max(share.of for share in grades.values())
        table.add_row(method, str(graded), *(_rate(grades.get(grade)) for grade in ORDER))
    return table


def _rate(share: Rate | None) -> str:
    if share is None or not share.of or share.low is None or share.high is None:
        return "–"
    return f"{share.count} · {share.count / share.of:.0%} [{round(100 * share.low)}, {round(100 * share.high)}]"


def plain(columns: Sequence[str], left: Sequence[str] = ()) -> Table:
    """A table of words in its first column and in ``left``, and of figures in the others."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column(columns[0], overflow="fold")
    for column in columns[1:]:
        table.add_column(column, justify="left" if column in left else "right", overflow="fold")
    return table


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


def _throttled(summary: RunSummary) -> list[str]:
    """The warning that some times are not those of the GPU at its clocks, in one line."""
    seen = [row.gpu for row in summary.rows if row.gpu]
    count = sum(gpu.throttled for gpu in seen)
    if not count:
        return []
    reasons = ", ".join(dict.fromkeys(reason for gpu in seen for reason in gpu.throttle_reasons))
    total = sum(row.requests for row in summary.rows)
    return [f"{count} of {total} requests ran on a throttled GPU ({reasons}); show --requests marks them."]


def notes(run: Mapping[str, Any], summary: RunSummary, *, alone: bool = True) -> list[str]:
    """Sentences that qualify the table; where it stands alone, also figures that a page has tables for, and legend."""
    found = []
    described = {spec["label"]: spec.get("measures", {}) for spec in run["methods"]}
    for row in summary.rows:
        for figure, value in row.measures.items() if alone else ():
            found.append(f"{name(row)}: {value:.2f} {described[row.method].get(figure, figure)}.")
        if row.draft_forwards and alone:
            drafting = row.draft_forwards / max(1, row.target_forwards)
            found.append(f"{name(row)}: {drafting:.2f} forwards of its draft model for each of the target.")
        ratio = row.speedup
        if row.method == BASELINE or ratio is None:
            continue
        if row.again:
            found.append(_again(row, row.again))
            continue
        if row.drafted_as:
            found.append(
                f"{name(row)} drafted what {row.drafted_as} did, in every forward: as it is set, it is the same."
            )
        if row.method in summary.engine.get("calibrated", []):
            found.append(
                f"{name(row)}: auto settings, by step times stored before it began: trees of "
                f"{number(row.rows_per_step, 1)} rows in the mean."
            )
        parts = f"{number(row.tokens_per_forward, 2)} TPF × {number(row.step_ratio, 2)} step-time ratio"
        if alone:
            found.append(
                f"{name(row)}: {ratio.verdict}; {number(ratio.value, 2)} = {parts}{_spread(ratio)}.{tells(ratio)}"
            )
        elif said := tells(ratio):
            found.append(f"{name(row)}:{said}")
        if asked := row.simulated:
            if row.tokens_per_forward is not None and row.tokens_per_forward < 0.9 * asked.mean:
                found.append(
                    f"{name(row)}: {row.tokens_per_forward:.2f} tokens a forward where {asked.mean:g} were asked for; "
                    "its trees offer no more here, or answers are too short."
                )
            continue  # its answers end at the budget, and AR's where they end
        if row.length_changed:
            found.append(f"{row.method}: {row.length_changed} answers have another length than AR's.")
        if row.prompt_changed:
            found.append(f"{row.method}: {row.prompt_changed} later turns follow other answers than AR's.")
        if row.accuracy_difference and not (row.lossless and row.lossless.verdict == "exact"):
            found.append(f"{row.method}: {gained(row.accuracy_difference)}.")
    found += _over_base(run, summary)
    found += [said for row in summary.rows for said in degeneration.made_by_loops(row)] if alone else []
    real = [row for row in summary.rows if not row.simulated]
    truncated, total = sum(row.truncated for row in real), sum(row.requests for row in real)
    if total and truncated / total > 0.02:
        found.append(f"{truncated} of {total} answers were cut at the token budget (cut); raise --max-new-tokens.")
    if settings := {k: v for k, v in run["task"]["options"].items() if v not in ("", None)}:
        found.insert(0, f"{run['task']['name']}: {', '.join(f'{k} {_short(v)}' for k, v in settings.items())}.")
    if seldom := seldom_filled(max(row.prompts for row in summary.rows), run["concurrency"]):
        found.append(seldom)
    if few := few_blocks(next((row.speedup.blocks for row in real if row.speedup), None), run["concurrency"]):
        found.append(few)
    found += _throttled(summary)
    found += _of_losslessness(run, real)
    if run["concurrency"] > 1 and any(
        row.speedup and row.speedup.low is not None and not row.speedup.blocks for row in real
    ):
        found.append("Intervals: over prompts, as an earlier version made them; stepped together, they are too narrow.")
    if summary.interval is None and any(row.speedup and row.speedup.low is not None for row in real):
        found.append("Intervals: percentile bootstrap, as an earlier version made them; too narrow for few prompts.")
    if not summary.complete:
        found.append("This run is not complete; repeat its command to go on.")
    return [*found, LEGEND] if alone else found


def seldom_filled(prompts: int, concurrency: int) -> str:
    """A sentence where so many prompts say little of a concurrency; empty where they say enough."""
    if concurrency == 1 or prompts >= FILLINGS * concurrency:
        return ""
    if prompts < concurrency:
        said = f"{prompts} prompts do not fill {concurrency} slots"
    else:
        often = "once" if prompts == concurrency else f"{prompts / concurrency:.2g} times"
        said = f"{prompts} prompts fill {concurrency} slots {often}"
    return (
        f"{said}: slots stand empty at the end, the more so the less even a method's speed is; "
        f"use --limit {FILLINGS * concurrency} or more."
    )


def few_blocks(blocks: int | None, concurrency: int) -> str:
    """A sentence where so few blocks of sequences stepped together allow no interval; empty where they do."""
    least = minimum_clusters()
    if concurrency == 1 or blocks is None or blocks >= least:
        return ""
    were = f"{blocks} blocks were" if blocks != 1 else "1 block was"
    return (
        f"No interval: {were} timed, {concurrency} sequences together, and an interval takes {least} blocks; "
        f"use --limit {prompts_for(least, concurrency)}."
    )


def _over_base(run: Mapping[str, Any], summary: RunSummary) -> Iterator[str]:
    """What a fine-tuned model is worth beside the one that it was made from."""
    for row in summary.rows:
        over = row.over_base
        if over and over.speedup:
            right = f"; {gained(over.accuracy_difference)}" if over.accuracy_difference else ""
            base = f"AR of {run['base']['name']}, which {run['model']['name']} was made from"
            yield f"{name(row)} over {base}: {over.speedup.verdict}, {speedup(over.speedup)}{right}."


def _again(row: MethodSummary, again: Again) -> str:
    """What a method's second row in a run says of the run itself: the A/A check."""
    ratio, twice = again.speedup, f"{name(row)} is {again.of} once more"
    if ratio.interval is None:
        return f"{twice}; too few prompts to say how noisy this run is."
    low, high = ratio.interval
    if low <= 1 <= high:
        return f"{twice}: {speedup(ratio)}, no difference, as it has to be.{tells(ratio)}"
    off = max(abs(low - 1), abs(high - 1))
    return f"{twice} and yet {speedup(ratio)}: something disturbed this run; trust no difference below {off:.0%}."


def _spread(ratio: Speedup) -> str:
    """How single prompts fared, where the summary says so."""
    each = ratio.per_prompt
    if each is None:
        return ""
    what = "prompts" if ratio.blocks is None else "blocks"
    won = "" if each.faster is None else f", faster on {each.faster} of {each.prompts} {what}"
    won += "" if each.p_value is None else f" (sign test p = {each.p_value:.2g})"
    return f"; per prompt {each.median:.2f} in the median, geometric mean {each.geometric_mean:.2f}{won}"


def tells(ratio: Speedup) -> str:
    """Where nothing was shown: which difference would have been, and how many prompts would show the one seen."""
    if "faster" in ratio.verdict or "slower" in ratio.verdict:
        return ""
    parts = []
    own = ratio.interval
    if own is None and ratio.blocks is None:
        parts.append(f"an interval takes {minimum_clusters()} prompts")
    if ratio.among and own and not own[0] <= 1 <= own[1]:
        parts.append(f"by itself its interval leaves out 1, and among {ratio.among.rows} rows that is no evidence")
    if seen := ratio.detectable:
        parts.append(f"these prompts tell differences of {percent(seen)} or more")
    measured = (ratio.per_prompt and ratio.per_prompt.prompts) or 0
    if (needed := ratio.to_tell) and needed.prompts and needed.prompts > measured:
        parts.append(f"about {_rounded(needed.prompts)} would tell {_what(needed)}")
    return f" {'; '.join(parts).capitalize()}." if parts else ""


#: What older summaries say how to tell, whatever difference they saw.
_FORMERLY = 0.03


def _what(needed: ToTell) -> str:
    return percent(needed.difference) if needed.difference == _FORMERLY else "the difference seen"


def percent(share: float) -> str:
    """A share with two digits where one would say too little."""
    return f"{share:.1%}" if share < 0.0295 else f"{share:.0%}"


def _rounded(count: int) -> int:
    """A count with its first two digits, rounded up: it is an estimate."""
    unit = 10 ** max(0, len(str(count)) - 2)
    return -(-count // unit) * unit


def gained(difference: AccuracyDifference) -> str:
    """How many more answers are right than AR's, on the same prompts."""
    points = f"{100 * difference.value:+.1f} points"
    if difference.interval is not None:
        low, high = difference.interval
        points += f" [{100 * low:+.1f}, {100 * high:+.1f}]"
    split = f"{difference.gained} prompts gained, {difference.lost} lost, McNemar p = {difference.p_value:.2g}"
    return f"{difference.verdict}: {points} of right answers; {split}"


def _of_losslessness(run: Mapping[str, Any], rows: Sequence[MethodSummary]) -> list[str]:
    """Of how many prompts the verdict stands, and of which rows it cannot be said from one run."""
    found = []
    graded = [row.lossless.rates for row in rows if row.method != BASELINE and row.lossless and row.lossless.rates]
    exact = [rates.get("exact") for rates in graded]
    if exact and all(share and share.count == share.of and share.low is not None for share in exact):
        fewest = min((share for share in exact if share), key=lambda share: share.of)
        found.append(f"Exact on all {fewest.of} prompts: 95% interval of such prompts {fewest.low:.0%} to 100%.")
    if run["sampling"]["temperature"] > 0:
        own = [spec["label"] for spec in run["methods"] if spec.get("own_noise")]
        found += [
            f"{label} draws noise of its own: check-lossless --seeds 0:49 tests its distribution." for label in own
        ]
    return found


def _short(value: Any) -> str:
    """An option's value; of a hash, as much as tells two apart."""
    text = str(value)
    return text[:12] if len(text) == 64 else text


def number(value: float | None, digits: int) -> str:
    """A figure, or a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def speedup(ratio: Speedup | None) -> str:
    """Value and interval."""
    if ratio is None:
        return "–"
    if ratio.interval is None:
        return f"{ratio.value:.2f} (too few)"
    low, high = ratio.interval
    return f"{ratio.value:.2f} [{low:.2f}, {high:.2f}]"


def accuracy(score: Accuracy | None) -> str:
    """Share of right answers with its count."""
    return "not scored" if score is None else f"{score.passed}/{score.scored}"


def lossless(verdict: Lossless | None) -> str:
    """The graded verdict; counts where it is not exact throughout."""
    if verdict is None:
        return "not checked"
    if verdict.verdict == "exact":
        return "exact"
    differing = verdict.numeric_tie + verdict.lossy
    return f"{verdict.verdict} {differing}/{differing + verdict.exact}"
