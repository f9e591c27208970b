"""Write the results page as Markdown and HTML: measured, predicted and published figures."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.catalog import Part
from benchmarks.gpu_check.records import NOT_MEASURED, Figure, Journal, Outcome, passed
from benchmarks.gpu_check.shapes import STAND_IN

_STYLE = Path(__file__).with_name("page.css")
_HEAD = ("figure", "measured", "predicted", "measured / predicted", "aim", "conditions")
_PUBLISHED = ("published", "AR tok/s", "tok/s", "speedup", "tokens per forward", "round over AR step")
_ASSUMED = (
    "Predicted: kernels of a step × time per kernel + the longer of bytes / bandwidth and FLOPs / peak. Bandwidth and "
    "peak come from the first part, or from the datasheet if that part failed. Kernels are counted without a device, "
    "and a library may launch more; the time per kernel is an assumption. The range in brackets follows from the ends "
    "of the assumptions; the basis of each prediction is given with its figure."
)
_THEIRS = (
    "As published, on the publication's GPUs, engines and prompts: neither measured here nor predicted. A round over "
    "an AR step is the published tokens per forward divided by the published speedup."
)


@dataclass(frozen=True)
class Section:
    """A heading, a text and a table; the table's first column has labels."""

    title: str
    text: str = ""
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    bad: bool = False


def write(journal: Journal, parts: Sequence[Part]) -> None:
    """Write ``gpu-check.md`` and ``gpu-check.html`` next to the journal, each atomically.

    Args:
        journal: journal of the check.
        parts: parts in order; parts without journal lines are listed as missing.
    """
    sections = list(_sections(journal, parts))
    for name, text in (("gpu-check.md", markdown(sections)), ("gpu-check.html", as_html(sections))):
        new = journal.path.with_name(f"{name}.new")
        new.write_text(text, encoding="utf-8")
        new.replace(journal.path.with_name(name))


def _sections(journal: Journal, parts: Sequence[Part]) -> Iterator[Section]:
    outcomes, device = journal.outcomes(), journal.last("device")
    known = {part.name: outcomes[part.name] for part in parts if part.name in outcomes}
    failed, missing = (
        [outcome for outcome in known.values() if outcome.state == state] for state in ("failed", NOT_MEASURED)
    )
    rehearsed = bool(device.get("rehearse"))
    verdict = "passed" if known and passed(known) else "not passed"
    ended = sum(one.state == "done" for one in known.values())
    text = (
        f"{_device(device)} {ended} of {len(parts)} parts finished, {len(failed)} failed, "
        f"{len(missing)} not measured: {verdict}."
    )
    if rehearsed:
        text = f"A rehearsal with tiny models: the figures are not results. {text}"
    yield Section("GPU check", text)
    if failed:
        yield Section(
            "Parts that failed",
            "",
            ("part", "how it ended"),
            [(one.part, one.why) for one in failed],
            True,
        )
    if missing:
        yield Section("Parts that were not measured", "", ("part", "why"), [(one.part, one.why) for one in missing])
    wrong = [
        one for outcome in known.values() for one in outcome.figures if one.unit == "failures" and one.met is False
    ]
    if wrong:
        yield Section(
            "What is wrong",
            "",
            ("figure", "failures", "how"),
            [(label(one), one.shown, one.note) for one in wrong],
            True,
        )
    keyed = [_row(one)[:-1] for outcome in known.values() for one in outcome.figures if one.key]
    if keyed:
        yield Section("At a glance", _ASSUMED, _HEAD[:-1], keyed)
    for part in parts:
        if part.name in known:
            yield _of_part(part, known[part.name])
        else:
            yield Section(part.title, f"`{part.name}`: not run.")
    named = (one.shape.removesuffix(STAND_IN) for outcome in known.values() for one in outcome.figures)
    yield from _of_publications(list(dict.fromkeys(named)))


def _of_part(part: Part, outcome: Outcome) -> Section:
    state = (
        outcome.state
        if outcome.state == "done"
        else f"{outcome.state}: {outcome.why}"
        if outcome.why
        else outcome.state
    )
    text = f"`{part.name}`: {state}, {outcome.seconds:.0f} s."
    measured = {label(figure) for figure in outcome.figures}
    left = [] if outcome.state == "done" else [one for one in outcome.predicted if label(one) not in measured]
    rows = [_row(figure) for figure in [*outcome.figures, *left]]
    return Section(part.title, text, _HEAD if rows else (), rows, outcome.state == "failed")


def _row(figure: Figure) -> Sequence[str]:
    predicted = ratio = ""
    if figure.predicted is not None:
        predicted = figure.expected
        if figure.value is not None and figure.predicted:
            ratio = f"{figure.value / figure.predicted:.2f}"
    met = {None: "", True: f"{figure.aim}: met", False: f"{figure.aim}: MISSED"}[figure.met]
    basis = f"predicted: {figure.basis}" if figure.basis and predicted else ""
    notes = "; ".join(filter(None, (figure.note, basis)))
    return (label(figure), figure.shown, predicted, ratio, met, notes)


def label(figure: Figure) -> str:
    """Name of a figure, with the model that it is measured on."""
    return f"{figure.shape}: {figure.name}" if figure.shape else figure.name


def _of_publications(shapes: Sequence[str]) -> Iterator[Section]:
    """Published figures of the same shapes: a section for each source, GPU and caveat."""
    try:
        from benchmarks.gpu_check import published  # without the packages for it, the page leaves this section out

        found = published.rows(shapes)
    except Exception as error:  # the page is written in any case
        yield Section("Published", f"The published claims cannot be read: {error}")
        return
    yield Section("Published for the same shapes", _THEIRS if found else "None.")
    for (source, gpu, caveat), together in groupby(found, lambda one: (one.source, one.gpu, one.caveat)):
        rows = [
            (f"{one.shape}: {one.what}", one.baseline, one.tok_s, one.speedup, one.tpf, one.round) for one in together
        ]
        yield Section(f"{source}, {gpu}", f"Note: {caveat}." if caveat else "", _PUBLISHED, rows)


def _device(device: Mapping[str, Any]) -> str:
    if not device:
        return "The device is unknown."
    free = f"{device['free_bytes'] / 2**30:.1f} GiB free" if device.get("free_bytes") else ""
    versions = [f"{name} {version}" for name, version in device["versions"].items() if version]
    return f"{', '.join(filter(None, [device['name'], free, *versions]))}."


def markdown(sections: Sequence[Section]) -> str:
    """Format the page as Markdown."""
    lines = []
    for number_, section in enumerate(sections):
        lines += [f"{'##' if number_ else '#'} {section.title}", ""]
        if section.text:
            lines += [section.text, ""]
        if section.head:
            lines.append(_line(section.head))
            lines.append(_line(["---"] * len(section.head)))
            lines += [*map(_line, section.rows), ""]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def as_html(sections: Sequence[Section]) -> str:
    """Format the page as one HTML file without scripts or external files."""
    body = []
    for number_, section in enumerate(sections):
        heading = "h2" if number_ else "h1"
        body.append(f"<section{' class=bad' if section.bad else ''}><{heading}>{_escaped(section.title)}</{heading}>")
        if section.text:
            body.append(f"<p>{_escaped(section.text)}</p>")
        if section.head:
            head = "".join(f"<th>{_escaped(cell)}</th>" for cell in section.head)
            rows = "\n".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in section.rows)
            body.append(f"<div><table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></div>")
        body.append("</section>")
    style = _STYLE.read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>GPU check</title><style>{style}</style><body>{chr(10).join(body)}</body></html>\n"
    )


def _cell(text: str) -> str:
    kind = ' class="missed"' if text.endswith("MISSED") else ' class="met"' if text.endswith(": met") else ""
    return f"<td{kind}>{_escaped(text)}</td>"


def _escaped(text: str) -> str:
    return html.escape(text).replace("`", "")
