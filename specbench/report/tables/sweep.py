"""Tables and notes of a sweep, and a recommendation with its evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from specbench.analysis import UNSURE
from specbench.hardware import free_rows
from specbench.report.charts.sweep_cells import FAILED, HALVED, LARGE, drawn_cells
from specbench.report.charts.user_lines import user_lines, user_sentences
from specbench.report.document import NOTHING, Block, Cell, Column, Medium, Row, Source, Table, Words
from specbench.report.tables import cell
from specbench.report.tables.columns import PROMPTS, SPEEDUP, TOK_S, TPF
from specbench.report.tables.notes import PromptSupply, few_blocks, prompt_supply, seldom_filled
from specbench.report.tables.run_title import sweep_title
from specbench.results import BASELINE, device_name

#: Configurations per concurrency in a table; the CSV file has all.
SHOWN = 20


SWEPT = (
    "tok/s and TPF as for runs; speedup over AR at the same concurrency on the same prompts, 95% paired bootstrap over "
    "prompts, or over blocks of prompts that were stepped together. best: the highest speedup above 1; where none is, "
    "ar has the highest speed, and is the fastest if the best method is shown to be slower. within noise: multiple "
    "comparisons with the best method do not rule it out. own text: the method writes another text than ar and is "
    "never the best; compare accuracy."
)


def sweep_report(run: Mapping[str, Any], cells: pd.DataFrame, verbose: bool = True) -> list[Block]:
    """Terminal output of a sweep: title, the fastest configurations at each concurrency, and notes.

    ``verbose`` adds what memory gave, and what the columns mean.
    """
    blocks = sweep_blocks("", cells, run["task"], memory=verbose)
    shown = [replace(block, source=Source()) if isinstance(block, Table) else block for block in blocks]
    return [sweep_title(run).over_tables(), *shown, *([Words([SWEPT], "notes")] if verbose else [])]


def sweep_blocks(
    name: str, cells: pd.DataFrame, task: Mapping[str, Any] | None = None, *, memory: bool = True
) -> list[Block]:
    """A table for each concurrency, and its sentences; ``task`` is the record of it, which knows all its prompts."""
    blocks: list[Block] = []
    supply = prompt_supply(task) if task and "prompts" in task else None
    for _, at in cells.groupby("concurrency"):
        blocks.append(_table(name, at, int(at["concurrency"].iloc[0])))
        read = [line for line in at["memory"].dropna() if line][:1] if memory and "memory" in at else []
        more = len(ranked(at)) - SHOWN
        lines = [*read, *sentences(at, supply)]
        lines += [f"{more} slower configurations are in cells.csv."] if more > 0 else []
        blocks += [Words(lines, "notes")] if lines else []
    baseline, lines_over_users = user_lines(drawn_cells(cells))
    if baseline is not None and lines_over_users:
        blocks.append(Words([*user_sentences(baseline, lines_over_users)], "notes"))
    return blocks


def _table(name: str, at: pd.DataFrame, concurrency: int) -> Table:
    # A terminal has room for it only where it decides: texts that are not AR's may be worse.
    accuracy: Medium = "" if "own_text" in at and at["own_text"].eq(True).any() else "page"
    columns = [
        Column("cell", "configuration", words=True), Column("set", "prompts of", words=True, only="page"),
        PROMPTS, TPF, TOK_S,
        SPEEDUP, Column("rows_per_step", "rows"),
        Column("accuracy", "accuracy", only=accuracy), Column("found", "", words=True),
    ]  # fmt: skip
    plain, held_out = at[at["method"] == BASELINE], at[(at["set"] != "tuning") & (at["method"] != BASELINE)]
    best = ranked(at).head(SHOWN)
    faster = best["speedup"] > 1
    wins = plain_place(at)
    body = [
        _row(name, row, wins) for row in pd.concat([best[faster], plain, best[~faster], held_out]).to_dict("records")
    ]
    return Table(f"sweep c{concurrency}", f"Concurrency {concurrency}", columns, body, Source([name], SWEPT))


def plain_place(cells: pd.DataFrame) -> str:
    """What plain decoding is where the best method's speedup is not above 1: "fastest" only if that is shown."""
    best = _measured(cells)
    best = best[best["best"].astype(bool)]
    if not len(best) or float(best["speedup"].iloc[0]) > 1:
        return ""
    return "fastest" if str(best["verdict"].iloc[0]).removeprefix(UNSURE) == "slower" else "highest speed"


def _row(name: str, row: Mapping[Any, Any], place: str = "") -> Row:
    plain = row["method"] == BASELINE
    figures = [
        cell.known(row["tokens_per_forward"], 2),
        cell.known(row["decode_tok_s"], 1),
        cell.ONE if plain else estimate(row, "speedup"),
        cell.known(row["rows_per_step"], 0),
        cell.share(None if pd.isna(row["accuracy"]) else row["accuracy"]),
        Cell(found(row, place)),
    ]
    head = [Cell(str(row["label"])), Cell(str(row["set"])), cell.count(int(row["prompts"]))]
    key = f"{row['label']} / {row['set']}"
    # The terminal shows the figures of held-out prompts in a sentence.
    only: Medium = "" if row["set"] == "tuning" else "page"
    return Row([*head, *figures], name, str(row["label"]), strong=plain, key=key, only=only)


def estimate(row: Mapping[Any, Any], column: str) -> Cell:
    """A figure of a configuration, with its interval if it has one."""
    if pd.isna(row[column]):
        return NOTHING
    low, high = (None if pd.isna(row[f"{column}_{end}"]) else float(row[f"{column}_{end}"]) for end in ("low", "high"))
    line = interval(row, column)
    return Cell(line, float(row[column]), low, high, line=line)


def ranked(cells: pd.DataFrame) -> pd.DataFrame:
    """The configurations measured on the tuning prompts, the fastest first, without plain decoding."""
    measured = _measured(cells)
    return measured.sort_values("speedup", ascending=False, na_position="last", kind="stable")


def found(row: Mapping[Any, Any], place: str = "") -> str:
    """The result of a configuration, in words; ``place``: what :func:`plain_place` says of plain decoding."""
    if row["method"] == BASELINE:
        return f"{UNSURE if _why(row) else ''}{place}" if place and row["set"] == "tuning" else ""
    best = "best method" if place else "best"
    lines = [
        "own text" if row.get("own_text") is True else "",
        row["stopped"],
        best if row["best"] else "within noise" if row["within_noise"] else "",
    ]
    return f"{UNSURE if row['best'] and _why(row) else ''}{' '.join(word for word in lines if word)}"


def _why(row: Mapping[Any, Any] | pd.Series[Any]) -> str:
    """Why a configuration's run was disturbed; empty if it was not, or if the table is too old to record it."""
    why = row.get("disturbed", "")
    return "" if pd.isna(why) else str(why)


def sentences(cells: pd.DataFrame, supply: PromptSupply | None = None) -> list[str]:
    """Sentences on the configurations of one concurrency; ``supply``: all prompts of the task."""
    tuning = cells[(cells["set"] == "tuning") & (cells["method"] != BASELINE)]
    measured, large, failed = _measured(cells), tuning[tuning["stopped"] == LARGE], tuning[tuning["stopped"] == FAILED]
    found = []
    best = measured[measured["best"].astype(bool)]
    if len(measured) and (why := _why(measured.iloc[0])):
        found.append(f"Disturbed: {why}; what is best here is unsure.")
    if len(best):
        row = best.iloc[0]
        concurrency = int(row["concurrency"])
        compared, dropped = compared_cells(measured)
        of = f"{len(compared)} configuration{'s' * (len(compared) != 1)}"
        if plain_place(cells):
            best = f"{row['label']}, {interval(row, 'speedup')} on {int(row['prompts'])} prompts, best of {of}"
            found.append(f"{_plain_wins(row)} ({best}){_near(compared)}.")
        else:
            found.append(f"Best of {of}: {row['label']}, {_chosen(row, len(compared))}{_near(compared)}.")
        if len(dropped):
            least, most = int(dropped["prompts"].min()), int(dropped["prompts"].max())
            after = f"{least}" if least == most else f"{least} to {most}"
            found.append(f"{_dropped(len(dropped), f'after {after} prompts')}.")
        again = cells[(cells["set"] == "held-out") & (cells["label"] == row["label"])]
        if len(again):
            other = again.iloc[0]
            found.append(
                f"On {int(other['prompts'])} held-out prompts: speedup {interval(other, 'speedup')}, "
                f"{other['verdict']}."
            )
        if seldom := seldom_filled(int(measured["prompts"].max()), concurrency, supply):
            found.append(seldom)
        if few := few_blocks(None if pd.isna(row["blocks"]) else int(row["blocks"]), concurrency, supply):
            found.append(few)
    if len(large):
        found.append(f"Not run because their trees are too large: {_some(list(large['label']))}.")
    found += [f"Failed: {row['label']}: {row['fault']}." for row in failed.to_dict("records")]
    return found


def _plain_wins(row: Mapping[Any, Any] | pd.Series[Any]) -> str:
    """A sentence for a concurrency at which no method has a higher speed than plain decoding."""
    count = int(row["concurrency"])
    at = f"at {count} sequence{'s' * (count != 1)}"
    if row["verdict"].removeprefix(UNSURE) == "slower":
        return f"Plain decoding ({BASELINE}) is fastest {at}; the best method is {row['speedup']:.2f} of it"
    return (
        f"No method is shown to be faster than plain decoding ({BASELINE}) {at}; the best is {row['speedup']:.2f} of it"
    )


def _measured(cells: pd.DataFrame) -> pd.DataFrame:
    """The configurations that have figures on the tuning prompts."""
    without = cells["stopped"].isin([LARGE, FAILED])
    return cells[(cells["set"] == "tuning") & ~without & (cells["method"] != BASELINE)]


def compared_cells(measured: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The configurations compared on all prompts, and those that halving dropped earlier."""
    halved = measured["stopped"] == HALVED
    return measured[~halved], measured[halved]


def _chosen(row: Mapping[Any, Any] | pd.Series[Any], rows: int) -> str:
    """The best configuration's speedup with its interval, and the verdict, which allows for the choice."""
    if pd.isna(row["chosen_low"]):
        return f"speedup {interval(row, 'speedup')} on {int(row['prompts'])} prompts"
    allows = f" (the verdict allows for the choice among {rows})" if rows > 1 else ""
    return f"{row['verdict']}, speedup {interval(row, 'speedup')}{allows} on {int(row['prompts'])} prompts"


def _dropped(count: int, when: str) -> str:
    """How many configurations halving dropped; they are not compared."""
    if count == 1:
        return f"1 slower configuration was dropped {when} and is not compared"
    return f"{count} slower configurations were dropped {when} and are not compared"


def _near(compared: pd.DataFrame) -> str:
    """The configurations that the prompts cannot distinguish from the best."""
    if len(compared) < 2:
        return ""
    if not compared["within_noise"].any():
        return "; too few prompts to distinguish configurations"
    near = compared[compared["within_noise"].astype(bool) & ~compared["best"].astype(bool)]
    others = len(compared) - 1
    if others == 1:
        label = _some(list(near["label"]))
        return f"; the other is within noise of it: {label}" if label else "; the other is not within noise of it"
    if not len(near):
        return f"; none of the {others} others is within noise of it"
    return f"; {len(near)} of the {others} others are within noise of it: {_some(list(near['label']))}"


def interval(row: Mapping[Any, Any] | pd.Series[Any], name: str) -> str:
    """A figure, with its interval if there is one."""
    value, low, high = row[name], row[f"{name}_low"], row[f"{name}_high"]
    if pd.isna(value):
        return "–"
    return f"{value:.2f} (too few)" if pd.isna(low) else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _some(labels: list[str]) -> str:
    more = f" and {len(labels) - 4} more" if len(labels) > 4 else ""
    return ", ".join(labels[:4]) + more


_TOLERANCE = 0.10


def sweep_advice(
    run: Mapping[str, Any], cells: pd.DataFrame, curve: Sequence[tuple[int, float]], method: str
) -> dict[str, Any]:
    """Recommendation as JSON-ready data; ``curve`` holds (rows, seconds) of steps measured on this machine.

    Keys: ``best`` (its row), ``set`` (values for ``--set``), ``faster`` (whether the interval on the held-out prompts
    shows it, in an undisturbed run), ``free_rows``, ``sentences``.
    """
    tuning = _measured(cells)
    best = tuning[tuning["best"].astype(bool)]
    model = run["model"]
    where = f"{run['task']['name']}, {model['name']} {model['dtype']}, {device_name(run)}"
    free = free_rows(dict(curve), _TOLERANCE)
    if not len(best):
        return {
            "best": None,
            "set": [],
            "faster": False,
            "free_rows": free,
            "sentences": [f"{where}: nothing measured."],
        }
    row = best.iloc[0]
    held = cells[(cells["set"] == "held-out") & (cells["label"] == row["label"])]
    judged = held.iloc[0] if len(held) else row
    faster, why = judged["verdict"] == "faster", _why(judged)
    options = str(row["label"]).split(" ")[1:]
    settings = [f"{method}.{word}" for word in options]
    compared, dropped = compared_cells(tuning)
    lines = [
        f"{where}:",
        f"{' '.join([method, *options])}: speedup {interval(judged, 'speedup')} over ar on {int(judged['prompts'])} "
        f"{'held-out' if len(held) else 'tuning'} prompts.",
        f"Why: {judged['tokens_per_forward']:.2f} tokens per forward of {judged['rows_per_step']:.0f} rows; on this "
        f"machine a step of up to {free} rows costs at most {_TOLERANCE:.0%} more than one row.",
    ]
    if near := _near(compared):
        lines.append(f"It is the fastest of {len(compared)} configurations on all prompts{near}.")
    if len(dropped):
        lines.append(f"{_dropped(len(dropped), 'earlier')}.")
    if faster:
        lines.append("Use: specbench run --method " + method + "".join(f" --set {setting}" for setting in settings))
    elif judged["verdict"] == f"{UNSURE}faster":
        lines.append(
            f"Disturbed: {why}; unsure whether it is faster than ar: repeat on a quiet machine, with another --out."
        )
    elif judged["speedup"] <= 1:
        lines.append(f"{_plain_wins(judged)}.")
        lines.append(f"Use: specbench run --method {BASELINE}")
    else:
        lines.append("No tested configuration is shown to be faster than ar on this machine.")
    return {
        "best": {key: None if pd.isna(value) else value for key, value in judged.to_dict().items()},
        "set": settings,
        "faster": faster,
        "free_rows": free,
        "sentences": lines,
    }
