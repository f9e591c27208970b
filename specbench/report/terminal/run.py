"""The headline table of a run, for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.results import BASELINE
from specbench.results.grades import ORDER
from specbench.results.schema import PHASES, SimulatedAcceptance, TaskSpec
from specbench.results.stats.power import FILLINGS

LEGEND = (
    "TPF: tokens per target forward after prefill. tok/s: decode tokens over decode seconds. speedup: AR's seconds per "
    "token over the method's, with its 95% paired-bootstrap interval over prompts."
)


def headline(
    run: Mapping[str, Any], summary: Mapping[str, Any], judged: Sequence[Mapping[str, Any]] = ()
) -> RenderableType:
    """The table of one run.

    Args:
        run: content of ``run.json``.
        summary: content of ``summary.json``.
        judged: scores by judge, see :func:`specbench.results.judgments.scores`.
    """
    model, task, sampling = run["model"], run["task"], run["sampling"]
    how = "greedy" if sampling["temperature"] == 0 else f"T={sampling['temperature']:g} seed {sampling['seed']}"
    device = run["environment"]["device"]["name"]
    title = Text()
    title.append(f"{task['name']} v{task['version']}", style="bold")
    title.append(f" · {model['name']} {model['dtype']}{' (dummy weights)' if model['dummy'] else ''} · {device}\n")
    chosen = TaskSpec.model_validate(task)
    asked = [how, *([] if chosen.taken else [chosen.said]), f"at most {run['max_new_tokens']} new tokens"]
    title.append(" · ".join([*asked, f"concurrency {run['concurrency']}"]), style="dim")
    if chosen.taken:  # a line of its own: behind the others it would break at 80 columns
        title.append(f"\n{chosen.said}", style="dim")
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
    table.add_column("cut", justify="right", no_wrap=True)
    if metric:
        table.add_column(metric, justify="right", min_width=6, overflow="fold")
    table.add_column("acceptance" if simulated else "lossless", min_width=11, overflow="fold")
    for row in summary["rows"]:
        right = [accuracy(row["accuracy"])] if metric else []
        table.add_row(
            row["method"],
            str(row["tokens"]),
            number(row["tpf"], 2),
            number(row["tok_s"], 1),
            speedup(row["speedup"]) if row["method"] != BASELINE else "1",
            f"{row['truncated'] / row['requests']:.0%}" if row["requests"] else "–",
            *right,
            acceptance(row) if simulated else lossless(row["lossless"]),
        )
    further: list[RenderableType] = [judgments(scores) for scores in judged]
    if any(row.get("metrics") for row in summary["rows"]):
        further.append(metrics(summary, task["metric"]))
    if any(row.get("groups") for row in summary["rows"]):
        further.append(groups(summary))
    parted = [row for row in summary["rows"] if (row["lossless"] or {}).get("verdict", "exact") != "exact"]
    if any(row["lossless"].get("rates") for row in parted):
        further.append(rate_table({row["method"]: row["lossless"]["rates"] for row in parted}))
    if any(row.get("phases") for row in summary["rows"]):
        further.append(phases(summary))
    if any(row.get("gpu") for row in summary["rows"]):
        further.append(gpu(summary))
    parts: list[RenderableType] = [title, Text(), table]
    for part in further:
        parts += [Text(), part]
    parts += [Text()] if further else []
    said = notes(run, summary) if judged or simulated else [*_not_judged(run["task"]), *notes(run, summary)]
    return Group(*parts, *(Text(note, style="dim") for note in said))


def simulated_title(simulated: Mapping[str, Mapping[str, float]]) -> str:
    """What stands above every figure of a run whose acceptance was decided by lot."""
    asked = {label: str(SimulatedAcceptance.model_validate(figures)) for label, figures in simulated.items()}
    of = set(asked.values())
    figures = of.pop() if len(of) == 1 else ", ".join(f"{label} {figures}" for label, figures in asked.items())
    return f"simulated acceptance {figures}: drafts are accepted by lot, the text means nothing"


def acceptance(row: Mapping[str, Any]) -> str:
    """Whether the target decided what a row accepted."""
    asked = row.get("simulated")
    return f"simulated {SimulatedAcceptance.model_validate(asked)}" if asked else "the target's"


def name(row: Mapping[str, Any]) -> str:
    """A row's method, marked where its acceptance was simulated: no figure of it may pass for a real one."""
    return f"{row['method']} (simulated)" if row.get("simulated") else str(row["method"])


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


def metrics(summary: Mapping[str, Any], headline: str) -> RenderableType:
    """Right answers by every metric of the task, the headline first."""
    further = list(next(row["metrics"] for row in summary["rows"] if row.get("metrics")))
    table = plain(["right answers", headline, *further])
    for row in summary["rows"]:
        others = [accuracy(row.get("metrics", {}).get(metric)) for metric in further]
        table.add_row(row["method"], accuracy(row["accuracy"]), *others)
    return table


def groups(summary: Mapping[str, Any]) -> RenderableType:
    """Figures of each group of categories, a line per method beside AR, with Spec-Bench's own figures in the end."""
    rows = [row for row in summary["rows"] if row.get("groups") and row["method"] != BASELINE]
    rows = rows or [row for row in summary["rows"] if row.get("groups")]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("group", overflow="fold")
    table.add_column("method", overflow="fold")
    for column in ("prompts", "TPF"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("speedup", no_wrap=True)
    table.add_column("MAT*", justify="right", no_wrap=True)
    table.add_column("speedup*", justify="right", no_wrap=True)
    for group in dict.fromkeys(group for row in rows for group in row["groups"]):
        shown = group
        for row in rows:
            if figures := row["groups"].get(group):
                ours = [str(figures["prompts"]), number(figures["tpf"], 2), speedup(figures["speedup"])]
                theirs = [number(figures["specbench_mat"], 2), number(figures["specbench_speedup"], 2)]
                table.add_row(shown, name(row), *ours, *theirs)
                shown = ""
    said = "* as Spec-Bench defines them: prefill included, means of prompts' speeds, AR without stop tokens."
    return Group(table, Text(said, style="dim"))


def rate_table(rates: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    """Prompts of each grade and their share.

    Args:
        rates: method -> :func:`specbench.results.grades.rates`.
    """
    table = plain(["method", "prompts", *ORDER])
    for method, grades in rates.items():
        table.add_row(method, str(grades["exact"]["of"]), *(_rate(grades[grade]) for grade in ORDER))
    return table


def _rate(share: Mapping[str, Any]) -> str:
    if not share["of"]:
        return "–"
    low, high = round(100 * share["low"]), round(100 * share["high"])
    return f"{share['count']} · {share['count'] / share['of']:.0%} [{low}, {high}]"


def plain(columns: Sequence[str], left: Sequence[str] = ()) -> Table:
    """A table of words in its first column and in ``left``, and of figures in the others."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column(columns[0], overflow="fold")
    for column in columns[1:]:
        table.add_column(column, justify="left" if column in left else "right", overflow="fold")
    return table


def phases(summary: Mapping[str, Any]) -> RenderableType:
    """Where a step's time goes: medians over steps, in milliseconds; host is everything but the forward."""
    table = Table(title="ms a step", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("method", min_width=6, overflow="fold")
    for phase in (*PHASES, "host"):
        table.add_column(phase, justify="right", no_wrap=True)
    for row in summary["rows"]:
        if row.get("phases"):
            table.add_row(name(row), *(f"{1e3 * row['phases'][f'{phase}_s']:.2f}" for phase in (*PHASES, "host")))
    return table


def gpu(summary: Mapping[str, Any]) -> RenderableType:
    """What the GPU did under each method."""
    table = plain(["GPU", "SM MHz", "W", "max °C", "J/token", "throttled"])
    for row in summary["rows"]:
        if seen := row.get("gpu"):
            figures = [number(seen["sm_clock_mhz"], 0), number(seen["power_w"], 0), number(seen["temperature_c"], 0)]
            throttled = f"{seen['throttled']}/{row['requests']}"
            table.add_row(name(row), *figures, number(seen["energy_per_token_j"], 3), throttled)
    return table


def _throttled(summary: Mapping[str, Any]) -> list[str]:
    """The warning that some times are not those of the GPU at its clocks, in one line."""
    seen = [row["gpu"] for row in summary["rows"] if row.get("gpu")]
    count = sum(gpu["throttled"] for gpu in seen)
    if not count:
        return []
    reasons = ", ".join(dict.fromkeys(reason for gpu in seen for reason in gpu["throttle_reasons"]))
    total = sum(row["requests"] for row in summary["rows"])
    return [f"{count} of {total} requests ran on a throttled GPU ({reasons}); show --requests marks them."]


def notes(run: Mapping[str, Any], summary: Mapping[str, Any], *, alone: bool = True) -> list[str]:
    """Sentences that qualify the table; where it stands alone, also figures that a page has tables for, and legend."""
    found = []
    described = {spec["label"]: spec.get("measures", {}) for spec in run["methods"]}
    for row in summary["rows"]:
        for figure, value in row.get("measures", {}).items() if alone else ():
            found.append(f"{name(row)}: {value:.2f} {described[row['method']].get(figure, figure)}.")
        if row.get("draft_forwards") and alone:
            drafting = row["draft_forwards"] / max(1, row["target_forwards"])
            found.append(f"{name(row)}: {drafting:.2f} forwards of its draft model for each of the target.")
        ratio = row["speedup"]
        if row["method"] == BASELINE or ratio is None:
            continue
        if row.get("again"):
            found.append(_again(row))
            continue
        parts = f"{number(row['tpf'], 2)} TPF × {number(row['step_ratio'], 2)} step-time ratio"
        if alone:
            found.append(
                f"{name(row)}: {ratio['verdict']}; {number(ratio['value'], 2)} = {parts}{_spread(ratio)}.{tells(ratio)}"
            )
        elif said := tells(ratio):
            found.append(f"{name(row)}:{said}")
        if asked := row.get("simulated"):
            if row["tpf"] is not None and row["tpf"] < 0.9 * asked["mean"]:
                found.append(
                    f"{name(row)}: {row['tpf']:.2f} tokens a forward where {asked['mean']:g} were asked for; its trees "
                    "offer no more here, or answers are too short."
                )
            continue  # its answers end at the budget, and AR's where they end
        if row["length_changed"]:
            found.append(f"{row['method']}: {row['length_changed']} answers have another length than AR's.")
        if row.get("prompt_changed"):
            found.append(f"{row['method']}: {row['prompt_changed']} later turns follow other answers than AR's.")
        if row.get("accuracy_difference") and (row["lossless"] or {}).get("verdict") != "exact":
            found.append(f"{row['method']}: {gained(row['accuracy_difference'])}.")
    found += _over_base(run, summary)
    real = [row for row in summary["rows"] if not row.get("simulated")]
    truncated, total = sum(row["truncated"] for row in real), sum(row["requests"] for row in real)
    if total and truncated / total > 0.02:
        found.append(f"{truncated} of {total} answers were cut at the token budget (cut); raise --max-new-tokens.")
    if settings := {k: v for k, v in run["task"]["options"].items() if v not in ("", None)}:
        found.insert(0, f"{run['task']['name']}: {', '.join(f'{k} {_short(v)}' for k, v in settings.items())}.")
    if seldom := seldom_filled(max(row["prompts"] for row in summary["rows"]), run["concurrency"]):
        found.append(seldom)
    found += _throttled(summary)
    found += _of_losslessness(run, real)
    if "interval" not in summary and any(row["speedup"] and row["speedup"]["low"] is not None for row in real):
        found.append("Intervals: percentile bootstrap, as an earlier version made them; too narrow for few prompts.")
    if not summary["complete"]:
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


def _over_base(run: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[str]:
    """What a fine-tuned model is worth beside the one that it was made from."""
    for row in summary["rows"]:
        over = row.get("over_base")
        if over and over["speedup"]:
            ratio = over["speedup"]
            right = f"; {gained(over['accuracy_difference'])}" if over["accuracy_difference"] else ""
            base = f"AR of {run['base']['name']}, which {run['model']['name']} was made from"
            yield f"{name(row)} over {base}: {ratio['verdict']}, {speedup(ratio)}{right}."


def _again(row: Mapping[str, Any]) -> str:
    """What a method's second row in a run says of the run itself: the A/A check."""
    ratio, twice = row["again"]["speedup"], f"{name(row)} is {row['again']['of']} once more"
    if ratio["low"] is None:
        return f"{twice}; too few prompts to say how noisy this run is."
    if ratio["low"] <= 1 <= ratio["high"]:
        return f"{twice}: {speedup(ratio)}, no difference, as it has to be.{tells(ratio)}"
    off = max(abs(ratio["low"] - 1), abs(ratio["high"] - 1))
    return f"{twice} and yet {speedup(ratio)}: something disturbed this run; trust no difference below {off:.0%}."


def _spread(ratio: Mapping[str, Any]) -> str:
    """How single prompts fared, where the summary says so."""
    each = ratio.get("per_prompt")
    return (
        f"; per prompt {each['median']:.2f} in the median, geometric mean {each['geometric_mean']:.2f}" if each else ""
    )


def tells(ratio: Mapping[str, Any]) -> str:
    """Where nothing was shown: which difference would have been, and how many prompts a small one takes."""
    if ratio["verdict"] not in ("no difference shown", "too few prompts"):
        return ""
    parts = []
    if seen := ratio.get("detectable"):
        parts.append(f"these prompts tell differences of {percent(seen)} or more")
    if (needed := ratio.get("to_tell")) and needed["prompts"]:
        parts.append(f"it takes about {_rounded(needed['prompts'])} to tell {percent(needed['difference'])}")
    return f" {'; '.join(parts).capitalize()}." if parts else ""


def percent(share: float) -> str:
    """A share with two digits where one would say too little."""
    return f"{share:.1%}" if share < 0.0295 else f"{share:.0%}"


def _rounded(count: int) -> int:
    """A count with its first two digits, rounded up: it is an estimate."""
    unit = 10 ** max(0, len(str(count)) - 2)
    return -(-count // unit) * unit


def gained(difference: Mapping[str, Any]) -> str:
    """How many more answers are right than AR's, on the same prompts."""
    points = f"{100 * difference['value']:+.1f} points"
    if difference["low"] is not None:
        points += f" [{100 * difference['low']:+.1f}, {100 * difference['high']:+.1f}]"
    split = f"{difference['gained']} prompts gained, {difference['lost']} lost, McNemar p = {difference['p_value']:.2g}"
    return f"{difference['verdict']}: {points} of right answers; {split}"


def _of_losslessness(run: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of how many prompts the verdict stands, and of which rows it cannot be said from one run."""
    found = []
    graded = [row for row in rows if row["method"] != BASELINE and (row["lossless"] or {}).get("rates")]
    exact = [row["lossless"]["rates"]["exact"] for row in graded]
    if exact and all(share["count"] == share["of"] for share in exact):
        fewest = min(exact, key=lambda share: share["of"])
        found.append(f"Exact on all {fewest['of']} prompts: 95% interval of such prompts {fewest['low']:.0%} to 100%.")
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


def speedup(ratio: Mapping[str, Any] | None) -> str:
    """Value and interval."""
    if ratio is None:
        return "–"
    if ratio["low"] is None:
        return f"{ratio['value']:.2f} (too few)"
    return f"{ratio['value']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"


def accuracy(score: Mapping[str, Any] | None) -> str:
    """Share of right answers with its count."""
    return "not scored" if score is None else f"{score['passed']}/{score['scored']}"


def lossless(verdict: Mapping[str, Any] | None) -> str:
    """The graded verdict; counts where it is not exact throughout."""
    if verdict is None:
        return "not checked"
    if verdict["verdict"] == "exact":
        return "exact"
    differing = verdict["numeric_tie"] + verdict["lossy"]
    return f"{verdict['verdict']} {differing}/{differing + verdict['exact']}"
